"""A tiny model and made batches: three features over two tables, with ids that consecutive batches share."""

from __future__ import annotations

from itertools import pairwise

import torch

from nestlab.batch import Batch
from nestlab.embedding import EmbeddingStore, TableConfig, Tiers, optimizer
from nestlab.embedding.features.rules import FeatureRules
from nestlab.models import DLRM, RecModel
from nestlab.pipeline import Inline, Pipeline, Shape

FEATURES = ("user", "item", "tag")
DIM = 4


def make_batches(count: int, size: int = 6, seed: int = 0, distinct: int = 12) -> list[Batch]:
    """Jagged batches with empty bags, repeated and negative ids; consecutive batches share many keys."""
    generator = torch.Generator().manual_seed(seed)
    return [_make_batch(size, generator, distinct) for _ in range(count)]


def _make_batch(size: int, generator: torch.Generator, distinct: int) -> Batch:
    lengths = torch.randint(0, 4, (len(FEATURES) * size,), generator=generator)
    ids = torch.randint(-distinct // 2, distinct // 2, (int(lengths.sum()),), generator=generator) * (2**40 + 1)
    labels = torch.randint(0, 2, (size,), generator=generator).float()
    weights = torch.rand(size, generator=generator) + 0.5
    return Batch(torch.randn(size, 3, generator=generator), FEATURES, ids, lengths, labels, weights)


def make_model(
    optimizer_name: str = "adagrad", dtype: torch.dtype = torch.float32, tiers: Tiers | None = None
) -> RecModel:
    tables = [TableConfig("people", DIM, ("user",)), TableConfig("things", DIM, ("item", "tag"), pooling="mean")]
    store = EmbeddingStore(tables, optimizer(optimizer_name, lr=0.1), seed=3, dtype=dtype, tiers=tiers)
    return RecModel(store, DLRM(3, FEATURES, DIM, bottom=(8,), top=(8,), seed=5).to(dtype))


def tiers_for(
    shape: Shape, batches: list[Batch], policy: str = "clock", rules: FeatureRules | None = None, **options
) -> Tiers:
    """The tiers of a shape; a slot cache as small as these batches allow, eviction of all that may go or by `rules`."""
    if shape.evicts:
        rules = rules or FeatureRules(evict="age", evict_after=1)
        object.__setattr__(rules, "evict_every", 1)  # users get no round more often than every tenth batch
        options["features"] = rules
    if shape.tier == "slot_cache":
        policy = "oracle" if shape.foresees else policy
        keys = [unique_keys(batch) for batch in batches]
        slots = max(len(a | b) for a, b in pairwise([set(), *keys, set()]))
        options |= {"cache_policy": policy, "cache_slots": slots, "look_ahead": 3}
    return Tiers(shape.tier, **options)


def unique_keys(batch: Batch) -> set[tuple[int, int]]:
    """(table, id) of a batch; the second and third feature share a table."""
    counts = batch.feature_lengths().sum(dim=1).tolist()
    tables = torch.repeat_interleave(torch.tensor([0, 1, 1]), torch.tensor(counts))
    return set(zip(tables.tolist(), batch.ids.tolist(), strict=True))


def make_pipeline(model: RecModel | None = None, **options) -> Pipeline:
    model = model or make_model()
    options.setdefault("executor", Inline())
    return Pipeline(model, torch.optim.Adam(model.dense.parameters(), lr=0.01), **options)


def weights_of(model: RecModel) -> list[bytes]:
    """Everything that was learnt, in canonical order, as bytes."""
    tables = [model.embedding.export(t.name) for group in model.embedding.groups for t in group.tables]
    values = [value for table in tables for _, value in sorted(table.items())]
    dense = [value for _, value in sorted(model.dense.state_dict().items())]
    return [torch.as_tensor(value).contiguous().numpy().tobytes() for value in values + dense]


def train(batches: list[Batch], model: RecModel | None = None, **options) -> tuple[RecModel, list[float]]:
    model = model or make_model()
    pipeline = make_pipeline(model, **options)
    return model, [float(output.loss) for output in pipeline.run(batches)]
