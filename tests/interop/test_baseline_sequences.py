"""torchrec's pipelines on a sequence model of ours: HSTU over an EmbeddingCollection ends where our plain loop does.

float32 on both sides; sums are taken in another order, and with two ranks in two halves: weights of 0.01 to 1 agree to
RTOL and ATOL. Differences grow from step to step, 1e-7 after the first, 1e-5 after the third: two are compared.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from nestlab.batch import Batch
from nestlab.embedding import SGD, Adagrad, EmbeddingStore, RowWiseAdagrad, TableConfig
from nestlab.errors import UserError
from nestlab.models import RecModel
from nestlab.models.sequence import HSTU, Retrieval, Size
from nestlab.pipeline import Pipeline

RTOL, ATOL = 2e-5, 4e-6
ITEMS, DIM, SIZE, NEGATIVES, STEPS = 51, 8, 12, 4, 2
FEATURES = ("time", "item", "target", "action", "negative")
ROWS = {"item": ITEMS, "action": 5}
CASES = [  # optimizer, pipeline, sharding, dedup
    (RowWiseAdagrad(0.1), "sparse_dist", "row_wise", False),
    (Adagrad(0.5, eps=1e-8, initial_accumulator=0.1), "base", "table_wise", False),
    (SGD(1.0), "sparse_dist", "row_wise", True),
]


def model(optimizer) -> RecModel:
    tables = [
        TableConfig("item", DIM, ("item", "target", "negative"), pooling="none"),
        TableConfig("action", DIM, ("action",), pooling="none"),
    ]
    return RecModel(EmbeddingStore(tables, optimizer), Retrieval(HSTU(Size(dim=DIM, longest=9)), temperature=0.2))


def batches(weighted: bool = False) -> list[Batch]:
    """0 to 9 events a sample, milliseconds among the features."""
    rng, made = np.random.default_rng(8), []
    for _ in range(STEPS):
        lengths = rng.integers(0, 10, SIZE)
        count = int(lengths.sum())
        ids = [
            1_650_000_000_000 + rng.integers(0, 1 << 30, count),
            *(rng.integers(0, ITEMS, count) ** 2 // ITEMS for _ in range(2)),
            rng.integers(0, ROWS["action"], count),
            rng.integers(0, ITEMS, SIZE * NEGATIVES),
        ]
        made.append(
            Batch(
                dense=torch.zeros(SIZE, 0),
                features=FEATURES,
                ids=torch.from_numpy(np.concatenate(ids)),
                lengths=torch.from_numpy(np.concatenate([*[lengths] * 4, np.full(SIZE, NEGATIVES)])),
                labels=torch.arange(SIZE, dtype=torch.float32),
                weights=torch.from_numpy(lengths).float() if weighted else None,
                values=("time",),
            )
        )
    return made


def dense_optimizer():
    return partial(torch.optim.SGD, lr=0.1)


def _train(transport, case) -> tuple:
    """On this rank: losses, tables' shards, dense weights."""
    from nestlab.interop.torchrec import Baseline, Variant

    optimizer, *variant = case
    baseline = Baseline(model(optimizer), ROWS, dense_optimizer(), Variant(*variant))
    mesh = transport.mesh
    part = mesh.rank * SIZE // mesh.world_size, (mesh.rank + 1) * SIZE // mesh.world_size
    iterator, losses = iter(baseline.batches([each.slice(*part) for each in batches()])), []
    for _ in range(STEPS):
        loss, states, labels = baseline.progress(iterator)
        assert states.shape == (part[1] - part[0], DIM) and labels.tolist() == list(map(float, range(*part)))
        losses.append(loss.item())
    return losses, baseline.local_weights(), {n: v.detach() for n, v in baseline.dense.named_parameters()}


@pytest.mark.dist
def test_hstu_in_torchrec_ends_where_our_plain_loop_does(ranks):
    """Broken once: times left in what the tables look up."""
    for case in CASES:
        results = ranks.run(_train, case)
        ours = model(case[0])
        before = {name: ours.embedding.full_weight(name, torch.arange(rows)) for name, rows in ROWS.items()}
        losses = [o.loss.item() for o in Pipeline(ours, dense_optimizer()(ours.dense.parameters())).run(batches())]
        assert np.mean([result[0] for result in results], axis=0).tolist() == pytest.approx(losses, rel=RTOL)
        counts = dict.fromkeys(ROWS, 0)
        for _, tables, dense in results:
            for name, (first, weights) in tables.items():
                span = slice(first, first + len(weights))
                after = ours.embedding.full_weight(name, torch.arange(ROWS[name]))[span]
                torch.testing.assert_close(weights, after, rtol=RTOL, atol=ATOL)
                assert (weights - before[name][span]).abs().max() > 0.01  # it learnt
                counts[name] += len(weights)
            for name, value in ours.dense.named_parameters():
                torch.testing.assert_close(dense[name], value, rtol=RTOL, atol=ATOL)
        assert counts == ROWS


def test_what_torchrec_has_no_equal_of_is_refused():
    from nestlab.interop.baseline_model import JaggedBatch, collection, of_sequences

    mixed = EmbeddingStore([TableConfig("item", DIM, pooling="none"), TableConfig("user", DIM)], SGD(0.1))
    with pytest.raises(UserError, match="tables item give sequences and others bags"):
        of_sequences(mixed)
    wide = EmbeddingStore(
        [TableConfig("item", DIM, pooling="none"), TableConfig("action", 4, pooling="none")], SGD(0.1)
    )
    with pytest.raises(UserError, match="has tables of one dim"):
        collection(wide, {"item": 9, "action": 9}, sequences=of_sequences(wide))
    with pytest.raises(UserError, match="leave the samples' weights out"):
        JaggedBatch.of(batches(weighted=True)[0])
