"""Training under a schedule that lacks something, on two ranks, run after run: whether it is seen in what is learnt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from unittest import mock

import numpy as np
import torch
from rank_cases import Case, global_batches, learnt, same_bits, slices
from test_missing_edges import Late
from tiny import make_model, unique_keys

from nestlab.batch import Batch
from nestlab.embedding import Tiers
from nestlab.embedding.sharding import owner
from nestlab.exchange import Channel, Mesh, RoutedBatch, Transport
from nestlab.exchange.collective import CollectiveTransport
from nestlab.exchange.rows import accumulate
from nestlab.pipeline import Clipped, Inline, Lanes, Pipeline, Shuffled, Stage
from nestlab.pipeline.executors import Executor
from nestlab.techniques import Techniques
from nestlab.tracing import Recorder

TIMEOUT_S = 3.0
SLOW_S = 0.02


@dataclass(frozen=True)
class Trial:
    """Some runs of one training, each to be compared with the plain loop.

    Attributes:
        orders: how each run is carried out: `shuffled:SEED`, `late:SEED:STAGE` (which puts a stage off), `lanes` or
            `inline`.
        slow: a stage, of one part or all (−2), that takes SLOW_S longer: in lanes what does not wait for it overtakes.
        fault: of FAULTS, not of the schedule.
    """

    case: Case
    orders: tuple[str, ...]
    slow: tuple[Stage, int] | None = None
    fault: str = ""


def try_out(transport: Transport, trial: Trial) -> list[str]:
    """Of each run what is wrong with it on this rank: nothing, `weights`, or the name of an error.

    `transport` stays whole: each run's is another one, made anew after an error, on which the ranks agree over the
    first.
    """
    found: list[str] = []
    mine = None
    expected = None
    for order in ("", *trial.orders):
        mine = mine or CollectiveTransport.connect(replicas=_replicas(trial.case), timeout_s=TIMEOUT_S)
        if not order:
            expected = _train(mine, trial, order)
            continue
        try:
            learnt_so = _train(mine, trial, order)
            found.append("" if same_bits(learnt_so, expected) else "weights")
        except Exception as error:
            found.append(type(error).__name__)
        if bool(transport.all_reduce(Channel.DENSE, torch.tensor([int(found[-1] not in ("", "weights"))]))):
            mine.close()
            mine = None
    if mine is not None:
        mine.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("nestlab ")]
    return found


def _train(transport: Transport, trial: Trial, order: str) -> dict[str, torch.Tensor]:
    """With an empty `order` the reference: the plain loop's, or with staleness the stale loop's."""
    case, mesh = trial.case, transport.mesh
    if not order:
        flags = Techniques.parse(case.techniques)
        case = replace(case, schedule=None) if flags.staleness or flags.replica_groups > 1 else case.reference
    batches = global_batches(trial.case)
    pipeline = pipeline_of(case, transport, order or "inline")
    torch.manual_seed(40 + mesh.rank)
    with FAULTS[trial.fault](pipeline) if order and trial.fault else _none(pipeline):
        if order and trial.slow:
            _slow_down(pipeline, *trial.slow)
        losses = [output.loss for output in pipeline.run(slices(batches, mesh.rank, mesh.world_size))]
    return {**learnt(pipeline.model), "losses": torch.stack(losses)}


def pipeline_of(case: Case, transport: Transport, order: str, recorder: Recorder | None = None) -> Pipeline:
    """The tiny model, with dropout in its dense part: it shows in which order random numbers are drawn."""
    flags = Techniques.parse(case.techniques)
    model = make_model(case.optimizer, case.dtype, _tight(flags, global_batches(case), transport.mesh))
    model.dense.bottom.append(torch.nn.Dropout(0.2))
    adam = torch.optim.Adam(model.dense.parameters(), lr=0.01)
    chosen = Clipped(adam, case.clip) if case.clip else adam
    options = {"schedule": case.schedule, "executor": executor_of(order), "recorder": recorder}
    return Pipeline(model, chosen, flags, transport=transport, **options)


def _tight(flags: Techniques, batches: Sequence[Batch], mesh: Mesh) -> Tiers:
    """As the flags say; a slot cache with room for what this rank owns of two consecutive batches and no more."""
    keys = [{key for key in unique_keys(batch) if _owner(*key, mesh.shards) == mesh.shard} for batch in batches]
    slots = max(len(a | b) for a, b in pairwise([set(), *keys, set()]))
    chosen = replace(flags, cache_slots=slots) if flags.device_tier == "slot_cache" else flags
    return Tiers.of(chosen, torch.device("cpu"))


def _owner(table: int, key: int, shards: int) -> int:
    return int(owner(np.array([key]), ("people", "things")[table], shards)[0])


def executor_of(order: str) -> Executor:
    name, _, rest = order.partition(":")
    seed, _, stage = rest.partition(":")
    if name == "late":
        return Late(int(seed), Stage(stage))
    return {"inline": Inline, "lanes": Lanes, "shuffled": lambda: Shuffled(int(seed))}[name]()


def _replicas(case: Case) -> int:
    return Techniques.parse(case.techniques).replica_groups


def _slow_down(pipeline: Pipeline, stage: Stage, part: int) -> None:
    right = pipeline._step._do[stage]

    def slow(t: int, *parts: int) -> object:
        if part == -2 or parts == (part,):
            time.sleep(SLOW_S)
        return right(t, *parts)

    pipeline._step._do[stage] = slow


@contextmanager
def _none(pipeline: Pipeline) -> Iterator[None]:
    yield


@contextmanager
def _no_commit(pipeline: Pipeline) -> Iterator[None]:
    pipeline._step._do[Stage.COMMIT] = lambda t: None
    yield


@contextmanager
def _local_weight(pipeline: Pipeline) -> Iterator[None]:
    """The loss is divided by the weight of the rank's own batch."""
    rows = pipeline._step.rows
    right = rows.route

    def route(batch, present=True) -> RoutedBatch:
        return replace(right(batch, present), weight=batch.total_weight)

    with mock.patch.object(rows, "route", route):
        yield


@contextmanager
def _other_requester_first(pipeline: Pipeline) -> Iterator[None]:
    """An owner adds up the gradients of a key from the last requester to the first."""

    def backwards(acc, plan, grads) -> None:
        assert plan.places is not None
        accumulate(acc, replace(plan, places=plan.places[::-1].copy()), grads.flip(0))

    with mock.patch("nestlab.pipeline.rows.accumulate", backwards):
        yield


@contextmanager
def _nothing_accumulates(pipeline: Pipeline) -> Iterator[None]:
    """Each micro-batch's gradients take the place of those before."""

    def instead(acc, plan, grads) -> None:
        acc.zero_()
        accumulate(acc, plan, grads)

    with mock.patch("nestlab.pipeline.rows.accumulate", instead):
        yield


@contextmanager
def _own_dense_gradients(pipeline: Pipeline) -> Iterator[None]:
    """DENSE_REDUCE sums nothing."""
    transport = pipeline._transport
    right = transport.all_reduce
    with mock.patch.object(transport, "all_reduce", lambda channel, flat: (right(channel, flat.clone()), flat)[1]):
        yield


FAULTS: dict[str, Callable[[Pipeline], object]] = {
    "no commit": _no_commit,
    "local weight": _local_weight,
    "other requester first": _other_requester_first,
    "nothing accumulates": _nothing_accumulates,
    "own dense gradients": _own_dense_gradients,
}


def spans(transport: Transport, case: Case) -> list[tuple[str, int, int, int]]:
    """Under lanes: (stage, batch, start, end) of what one rank records."""
    recorder = Recorder()
    with closing(CollectiveTransport.connect()) as mine:
        pipeline = pipeline_of(case, mine, "lanes", recorder)
        list(pipeline.run(slices(global_batches(case), mine.mesh.rank, mine.mesh.world_size)))
        events = pipeline.trace().events
    return [(event.stage, event.batch, event.start_ns, event.end_ns) for event in events]
