"""Training of the tiny model on a rank's slices of global batches: what tests of many ranks run in each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from tiny import make_batches, make_model, unique_keys

from nestlab.batch import Batch
from nestlab.embedding import Tiers
from nestlab.exchange import LocalTransport, Transport
from nestlab.models import RecModel
from nestlab.pipeline import Clipped, Inline, Lanes, Pipeline, Schedule, Shuffled
from nestlab.techniques import Techniques

BATCH = 14  # samples of a global batch: parts and slices of many sizes, empty ones too


@dataclass(frozen=True)
class Case:
    """One training, the same for every rank."""

    techniques: str = ""
    executor: str = "inline"  # or lanes, or shuffled:SEED
    optimizer: str = "adagrad"
    dtype: torch.dtype = torch.float32
    steps: int = 50
    size: int = BATCH
    seed: int = 0
    clip: float | None = None
    schedule: Schedule | None = None
    whole: bool = False  # the last batch as large as the others

    @property
    def reference(self) -> Case:
        """The plain loop on the same micro-batches."""
        flags = Techniques.parse(self.techniques)
        parts = f"micro_batches={flags.micro_batches}" if flags.micro_batches > 1 else ""
        kept = ",".join(filter(None, [parts, f"clustering={flags.clustering}" if flags.clustering != "none" else ""]))
        return replace(self, techniques=kept, executor="inline", schedule=None)


def global_batches(case: Case) -> list[Batch]:
    """Batches of `case.size` samples, the last one short, with weights and ids that neighbours share."""
    batches = make_batches(case.steps, case.size, case.seed, distinct=40)
    return batches if case.whole else [*batches[:-1], batches[-1].slice(0, max(1, case.size // 3))]


def slices(batches: Sequence[Batch], rank: int, world: int) -> Iterator[Batch]:
    for batch in batches:
        yield batch.slice(rank * batch.size // world, (rank + 1) * batch.size // world)


def make(case: Case, transport: Transport, batches: Sequence[Batch]) -> tuple[RecModel, Pipeline]:
    flags = Techniques.parse(case.techniques)
    model = make_model(case.optimizer, case.dtype, tiers_of(flags, batches))
    optimizer = torch.optim.Adam(model.dense.parameters(), lr=0.01)
    pipeline = Pipeline(
        model,
        Clipped(optimizer, case.clip) if case.clip else optimizer,
        flags,
        schedule=case.schedule,
        executor=executor_of(case.executor),
        transport=transport,
    )
    return model, pipeline


def tiers_of(flags: Techniques, batches: Sequence[Batch]) -> Tiers:
    """As the flags say; a slot cache just large enough for what any owner may need."""
    if flags.device_tier != "slot_cache":
        return Tiers.of(flags, torch.device("cpu"))
    keys = [unique_keys(batch) for batch in batches]
    slots = max(len(a | b) for a, b in pairwise([set(), *keys, set()]))
    return Tiers.of(replace(flags, cache_slots=slots), torch.device("cpu"))


def executor_of(text: str) -> Inline | Lanes | Shuffled:
    name, _, seed = text.partition(":")
    return {"inline": Inline, "lanes": Lanes, "shuffled": lambda: Shuffled(int(seed))}[name]()


def learn(transport: Transport, case: Case) -> dict[str, torch.Tensor]:
    """Trains this rank's slices to the end; what it then owns, the dense part and the losses, by name."""
    batches = global_batches(case)
    model, pipeline = make(case, transport, batches)
    mesh = transport.mesh
    losses = [output.loss for output in pipeline.run(slices(batches, mesh.rank, mesh.world_size))]
    return {**learnt(model), "losses": torch.stack(losses)}


def learnt(model: RecModel) -> dict[str, torch.Tensor]:
    tables = [table.name for group in model.embedding.groups for table in group.tables]
    found = {f"{t}.{n}": torch.as_tensor(v) for t in tables for n, v in model.embedding.export(t).items()}
    return found | {f"dense.{name}": value.detach().clone() for name, value in model.dense.state_dict().items()}


def alone(case: Case) -> dict[str, torch.Tensor]:
    return learn(LocalTransport(), case)


def merged(found: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The shards of all ranks as one: tables by ascending id, the rest as it is, which must be the same everywhere."""
    one = {}
    for name in found[0]:
        if name.startswith(("dense.", "losses")):
            for other in found[1:]:
                assert torch.equal(found[0][name], other[name]), f"{name} differs between ranks"
            one[name] = found[0][name]
        elif not name.endswith(".ids"):
            table = name.partition(".")[0]
            order = torch.argsort(torch.cat([each[f"{table}.ids"] for each in found]))
            one[name] = torch.cat([each[name] for each in found])[order]
            one[f"{table}.ids"] = torch.cat([each[f"{table}.ids"] for each in found])[order]
    return one


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[n].numpy().tobytes() == other[n].numpy().tobytes() and one[n].shape == other[n].shape for n in one
    )
