"""What tests of ends and failures run in each rank: uneven data, a rank that fails, dies or has other settings."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import combinations, islice

import torch
import tt_cases
from rank_cases import Case, executor_of, learn, learnt
from tiny import DIM, make_batches, make_model, unique_keys

from nestlab.batch import Batch
from nestlab.embedding import EmbeddingStore, TableConfig, Tiers, optimizer
from nestlab.errors import RankFailed
from nestlab.exchange import Transport
from nestlab.exchange.collective import CollectiveTransport
from nestlab.models import DLRM, RecModel
from nestlab.pipeline import Clipped, Pipeline, Stage, StepOutput
from nestlab.pipeline.executors import Executor
from nestlab.techniques import Techniques

TIMEOUT_S = 5.0
FAILS_AT = 4  # the batch

# One pass: what each rank has of each batch: its half (x), none of its samples (o); then its data end.
Halves = tuple[str, str]


@dataclass(frozen=True)
class Journey:
    """Passes over data that end at another batch on each rank, with what comes between them."""

    first: Halves
    heldout: Halves
    drained: Halves
    drain_after: int
    broken_off: Halves
    break_after: int
    last: Halves

    @property
    def passes(self) -> tuple[Halves, ...]:
        return self.first, self.heldout, self.drained, self.broken_off, self.last


def batches_of(halves: Halves, rank: int | None, seed: int) -> list[Batch]:
    """The batches of a rank; with None those that hold the samples of both."""
    found = []
    for t, batch in enumerate(make_batches(max(map(len, halves)), 14, seed, distinct=40)):
        cuts = [batch.slice(0, 7), batch.slice(7, 14)]
        here = [t < len(each) for each in halves]
        has = [there and each[t] == "x" for there, each in zip(here, halves, strict=True)]
        if rank is not None:
            found += [cuts[rank] if has[rank] else batch.slice(0, 0)] * here[rank]
        else:
            found.append(batch if all(has) else cuts[has.index(True)] if any(has) else batch.slice(0, 0))
    return found


def travel(
    transport: Transport, case: Case, journey: Journey, counts: tuple[int, int] | None = None
) -> dict[str, object]:
    """The whole journey: what was learnt, losses, predictions, and where the drain and the pass broken off came to.

    `counts`: those two, for one rank alone that loads no batch ahead.
    """
    rank = transport.mesh.rank if transport.mesh.world_size > 1 else None
    first, heldout, drained, broken, last = (
        batches_of(halves, rank, seed) for seed, halves in enumerate(journey.passes)
    )
    pipeline = _pipeline(transport, case, journey)
    outputs = list(pipeline.run(first))
    looks = [pipeline.evaluate(heldout)]
    source = iter(drained)
    if counts is None:
        whole = [pipeline.progress(source) for _ in range(journey.drain_after)] + pipeline.drain()
    else:
        whole = [pipeline.progress(source) for _ in range(counts[0])]
    outputs += whole
    looks.append(pipeline.evaluate([]))
    looks.append(pipeline.evaluate(heldout))
    outputs += list(pipeline.run(source))
    if counts is None:
        outputs += list(islice(pipeline.run(broken), journey.break_after))
        rest = list(pipeline.run(last))
        counts = len(whole), journey.break_after + len(rest) - max(map(len, journey.last))
        outputs += rest
    else:
        outputs += list(pipeline.run(broken[: counts[1]])) + list(pipeline.run(last))
    again = list(pipeline.run([]))
    assert not again and not pipeline._step.flight
    losses = torch.stack([output.loss for output in outputs])
    predictions = torch.cat([torch.from_numpy(each) for look in looks for each in look])
    return {**learnt(pipeline.model), "losses": losses, "dense.predictions": predictions, "counts": counts}


class Again:
    """A loader that gives the same iterator every time, begun again, as torch's DataLoader with persistent workers."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches, self._left = batches, iter(batches)

    def __iter__(self) -> Iterator[Batch]:
        self._left = iter(self._batches)
        return self

    def __next__(self) -> Batch:
        return next(self._left)


def progressed(pipeline: Pipeline, source: Iterator[Batch]) -> list[StepOutput]:
    """What `progress` gives until the source ends."""
    outputs = []
    with suppress(StopIteration):
        while True:
            outputs.append(pipeline.progress(source))
    return outputs


def begin_again(transport: Transport, case: Case) -> dict[str, object]:
    """Three passes over one iterator, the second drained in between: what was learnt, and the losses."""
    mesh = transport.mesh
    half = 14 // mesh.world_size
    own = [batch.slice(mesh.rank * half, (mesh.rank + 1) * half) for batch in make_batches(8, 14, distinct=40)]
    pipeline, loader = _pipeline(transport, case), Again(own)
    outputs = list(pipeline.run(loader))
    source = iter(loader)
    outputs += [pipeline.progress(source) for _ in range(3)] + pipeline.drain() + progressed(pipeline, source)
    outputs += pipeline.run(loader)
    assert len(outputs) == 24 and not pipeline._step.flight
    return {**learnt(pipeline.model), "losses": torch.stack([output.loss for output in outputs])}


def _pipeline(transport: Transport, case: Case, journey: Journey | None = None) -> Pipeline:
    flags = Techniques.parse(case.techniques)
    tiers = Tiers.of(flags, torch.device("cpu"))
    if flags.device_tier == "slot_cache":
        passes = [batches_of(halves, None, seed) for seed, halves in enumerate(journey.passes)] if journey else []
        keys = [unique_keys(batch) for batches in passes for batch in batches]
        slots = max((len(a | b) for a, b in combinations(keys, 2)), default=200)
        tiers = Tiers.of(replace(flags, cache_slots=slots), torch.device("cpu"))
    trains = flags.table_kind == "tt"
    model = tt_cases.tt_model(_of_trains(case), []) if trains else make_model(case.optimizer, case.dtype, tiers)
    adam = torch.optim.Adam(model.dense.parameters(), lr=0.01)
    chosen = Clipped(adam, case.clip) if case.clip else adam
    return Pipeline(model, chosen, flags, executor=executor_of(case.executor), transport=transport)


def _of_trains(case: Case) -> tt_cases.Case:
    """The same training as one of tests/pipeline/tt_cases.py, with tensor-train tables alone."""
    flags = case.techniques.removeprefix("table_kind=tt,")
    return tt_cases.Case(flags, case.executor, case.optimizer, case.dtype, case.steps, clip=case.clip, kinds="ttt")


def learn_anew(transport: Transport, case: Case) -> dict[str, torch.Tensor]:
    """What four steps teach, after whatever came before."""
    case = replace(case, steps=4)
    if case.techniques.startswith("table_kind=tt"):
        return tt_cases.learn(transport, _of_trains(case))
    return learn(transport, case)


@dataclass(frozen=True)
class Failure:
    """What goes wrong on one rank, at batch FAILS_AT: an error in a stage, or what `HOW` says."""

    rank: int
    where: str  # a stage or a name of HOW
    case: Case

    @property
    def place(self) -> str:
        return HOW.get(self.where, (None, self.where))[1]


class Broke(Exception):
    """The fault of these tests."""


@dataclass(frozen=True)
class Ending:
    """How a training ended on one rank."""

    error: str  # the type's name; none: ""
    text: str
    notes: tuple[str, ...]
    seconds: float  # since the last batch that was through
    threads: tuple[str, ...]  # new ones, left over
    refused: bool  # a further call was


def end_badly(transport: Transport, failure: Failure) -> tuple[Ending, dict[str, torch.Tensor]]:
    """Trains until it fails, closes, connects again and trains once more: how it ended, and what was learnt then."""
    before = set(threading.enumerate())
    broken = CollectiveTransport.connect(timeout_s=TIMEOUT_S)
    pipeline = _pipeline(broken, failure.case)
    batches: Iterator[Batch] = iter(make_batches(9, 7, seed=broken.mesh.rank, distinct=40))
    heldout = iter(make_batches(2, 3)) if failure.where == "evaluation" else None
    if broken.mesh.rank == failure.rank and heldout:
        heldout = _breaks(make_batches(1, 3))
    elif broken.mesh.rank == failure.rank:
        batches = break_it(pipeline, failure.where, batches)
    ending = _ending(pipeline, batches, heldout)
    broken.close()
    left = tuple(thread.name for thread in threading.enumerate() if thread not in before)
    with closing(CollectiveTransport.connect(timeout_s=60.0)) as mended:
        return replace(ending, threads=left), learn_anew(mended, failure.case)


def _ending(pipeline: Pipeline, batches: Iterator[Batch], heldout: Iterator[Batch] | None = None) -> Ending:
    """Trains to the end, and then looks at held-out data where there are any."""
    error: BaseException | None = None
    last = time.monotonic()
    try:
        for _ in pipeline.run(batches):
            last = time.monotonic()
        if heldout is not None:
            pipeline.evaluate(heldout)
    except BaseException as raised:
        error = raised
    seconds = time.monotonic() - last
    notes = tuple(getattr(error, "__notes__", ()))
    refused = error is not None and _refuses(pipeline)
    return Ending("" if error is None else type(error).__name__, str(error), notes, seconds, (), refused)


def _refuses(pipeline: Pipeline) -> bool:
    """To go on: by itself, or after an evaluation because no rank answers any more."""
    try:
        pipeline.progress(iter([]))
    except RuntimeError as error:
        return isinstance(error, RankFailed) or "stopped at an error" in str(error)
    return False


def break_it(pipeline: Pipeline, where: str, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Builds the fault in; the batches to train on."""
    if where in HOW:
        return HOW[where][0](pipeline, batches)
    return in_stage(pipeline, Stage(where), _raise, batches)


def in_stage(pipeline: Pipeline, stage: Stage, do: Callable[[], None], batches: Iterator[Batch]) -> Iterator[Batch]:
    """`do` before the stage of batch FAILS_AT."""
    right = pipeline._step._do[stage]

    def wrong(t: int, *part: int) -> object:
        if t == FAILS_AT:
            do()
        return right(t, *part)

    pipeline._step._do[stage] = wrong
    return batches


def _raise() -> None:
    raise Broke("on purpose")


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)  # where this is no thread of its own the interrupt comes here


def _interrupt_here() -> None:
    raise KeyboardInterrupt


def _breaks(batches: Sequence[Batch]) -> Iterator[Batch]:
    yield from batches
    _raise()


def _loader(pipeline: Pipeline, batches: Iterator[Batch]) -> Iterator[Batch]:
    return _breaks(list(islice(batches, FAILS_AT)))


def _forward(pipeline: Pipeline, batches: Iterator[Batch]) -> Iterator[Batch]:
    """The model's own error, in the first micro-batch of its batch."""
    dense, right, calls = pipeline.model.dense, pipeline.model.dense.forward, iter(range(10**6))
    parts = pipeline.techniques.micro_batches

    def wrong(*args: object) -> object:
        return _raise() if next(calls) == FAILS_AT * parts else right(*args)

    dense.forward = wrong
    return batches


def _features(pipeline: Pipeline, batches: Iterator[Batch]) -> Iterator[Batch]:
    for t, batch in enumerate(batches):
        yield replace(batch, features=("user", "item", "label")) if t == FAILS_AT else batch


def _wider(pipeline: Pipeline, batches: Iterator[Batch]) -> Iterator[Batch]:
    for t, batch in enumerate(batches):
        yield replace(batch, dense=torch.zeros(batch.size, 5)) if t == FAILS_AT else batch


# How a rank fails where it is not by an error in a stage; and the place that the others are told.
HOW: dict[str, tuple[Callable[[Pipeline, Iterator[Batch]], Iterator[Batch]], str]] = {
    "loader": (_loader, "LOAD"),
    "model": (_forward, "FORWARD"),
    "features": (_features, "(LOAD|ROUTE)"),  # clustering looks at them first
    "dense width": (_wider, "FORWARD"),
    "interrupt": (lambda p, batches: in_stage(p, Stage.FORWARD, _interrupt, batches), ""),
    "interrupt in a lane": (
        lambda p, batches: in_stage(p, Stage.EMB_EXCHANGE, _interrupt_here, batches),
        "EMB_EXCHANGE",
    ),
}


def die(transport: Transport, rank: int, stage: Stage, case: Case) -> Ending:
    """One rank is killed as it begins a stage; how it ends on the other."""
    before = set(threading.enumerate())
    with closing(CollectiveTransport.connect(timeout_s=TIMEOUT_S)) as mine:
        pipeline = _pipeline(mine, case)
        batches = iter(make_batches(9, 7, seed=mine.mesh.rank, distinct=40))
        if mine.mesh.rank == rank:
            in_stage(pipeline, stage, lambda: os.kill(os.getpid(), signal.SIGKILL), batches)
        ending = _ending(pipeline, batches)
    left = tuple(thread.name for thread in threading.enumerate() if thread not in before)
    return replace(ending, threads=left)


def differ(transport: Transport, what: str) -> Ending:
    """Rank 1 trains with something else than rank 0."""
    other = transport.mesh.rank == 1
    flags = {
        "micro-batches": "micro_batches=2",
        "depth": "pipeline_depth=3",
        "ramp": "pipeline_depth=2,depth_schedule=ramp,ramp_over=7",
    }
    base = "pipeline_depth=2,depth_schedule=ramp" if what == "ramp" else ""
    techniques = Techniques.parse(flags.get(what, base) if other else base)
    dims = {"table width": (8, 8), "rows' optimizer": (DIM, 8), "dense width": (DIM, 16)}
    dim, width = dims.get(what, (DIM, 8)) if other else (DIM, 8)
    rows = optimizer("sgd" if other and what == "rows' optimizer" else "adagrad", lr=0.1)
    tables = [TableConfig("people", dim, ("user",)), TableConfig("things", dim, ("item", "tag"))]
    store = EmbeddingStore(tables, rows, seed=3)
    dense = DLRM(3, ("user", "item", "tag"), dim, bottom=(width,), top=(8,), seed=6 if other and what == "seed" else 5)
    lr, max_norm = (0.02 if other and what == "learning rate" else 0.01), (0.5 if other and what == "clip" else 1.0)
    adam = Clipped(torch.optim.Adam(dense.parameters(), lr=lr), max_norm)
    chosen: Executor = executor_of("shuffled:1" if other and what == "executor" else "shuffled:0")
    pipeline = Pipeline(RecModel(store, dense), adam, techniques, executor=chosen, transport=transport)
    before = set(threading.enumerate())
    ending = _ending(pipeline, iter(make_batches(4, 7)))
    assert set(threading.enumerate()) <= before
    return ending
