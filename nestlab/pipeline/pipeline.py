"""What a training loop holds on to: a model, its optimizer, and the schedule that the flags ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from nestlab.batch import Batch
from nestlab.device import peak_bytes
from nestlab.exchange import LocalTransport, Transport
from nestlab.models import RecModel
from nestlab.pipeline.agreement import agree, of_dense, of_tables, of_techniques
from nestlab.pipeline.builders import build
from nestlab.pipeline.dense import Clipped
from nestlab.pipeline.depths import depth_over_time
from nestlab.pipeline.evaluating import look_up, predict
from nestlab.pipeline.executors import Executor, Inline, Progress
from nestlab.pipeline.lanes import Lanes
from nestlab.pipeline.performing import Performer
from nestlab.pipeline.rows import Wire
from nestlab.pipeline.schedule import Key, Schedule, Stage
from nestlab.pipeline.shape import Shape
from nestlab.pipeline.source import Source, arrangement
from nestlab.pipeline.step import StepOutput, TrainStep
from nestlab.pipeline.streams import Streams
from nestlab.techniques import Techniques
from nestlab.tracing import Recorder, Trace
from nestlab.tracing.memory import Ends, account

if TYPE_CHECKING:
    import pandas as pd


class Pipeline:
    """Trains a model batch by batch, in the order a schedule allows, on one rank or on each of many.

    `progress(iterator)` is the interface of torchrec's train pipelines; `run(loader)` loops over it. After `progress`
    returns, that batch's update has finished. Tables are complete after `drain()`.

    Pipelines over the same tables may take turns, step numbers count on; one that has batches in flight when another
    one goes on ends there: `drain()` first.

    Args:
        model: sparse and dense part; the dense part is moved to `device`. Under micro-batches it is called once for
            each: with dropout, which draws at every call, a frozen window is not exact.
        optimizer: torch optimizer over the dense part's parameters, or `Clipped(optimizer, max_norm)`. Row optimizers
            belong to the embedding store.
        techniques: the flags, from which the schedule is built.
        schedule: one of your own instead; it is *not* validated here (see `nestlab.pipeline.validator`).
        executor: `Inline()`, `Shuffled(seed)` or `Lanes()`. All give the same bits; a learning rate that is changed
            between two calls reaches `Shuffled` late, which plans several steps at a time.
        recorder: where every action leaves an event; None records nothing.
        transport: how ranks meet; None: this rank is alone. Buffers of the dense part (running statistics) are each
            rank's own. Every rank makes the same calls, with the same techniques,
            start weights of the dense part and executor, each on its own slice of the global batches. That they are
            the same is asked before the first batch (nestlab/pipeline/agreement.py).

    Raises:
        UserError: the schedule is made for another device tier than the store has.
    """

    def __init__(
        self,
        model: RecModel,
        optimizer: torch.optim.Optimizer | Clipped,
        techniques: Techniques | None = None,
        *,
        schedule: Schedule | None = None,
        executor: Executor | None = None,
        device: torch.device | str = "cpu",
        recorder: Recorder | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.techniques = techniques or Techniques()
        self.schedule = schedule or build(Shape.of(self.techniques, clips=isinstance(optimizer, Clipped)))
        if self.schedule.shape is not None:
            self.schedule.shape.check(model.embedding)
        self.model = model
        model.dense.to(device)
        inner = optimizer.optimizer if isinstance(optimizer, Clipped) else optimizer
        inner.zero_grad(set_to_none=True)  # what an interrupted step left behind is not this pipeline's
        where = torch.device(device)
        self._transport = transport or LocalTransport()
        self._step = TrainStep(model, optimizer, self._transport, where, self.techniques)
        self._streams = Streams(self.schedule, where) if where.type == "cuda" and isinstance(executor, Lanes) else None
        self._perform = Performer(self._step, self.schedule, recorder, self._streams)
        self._arrange = arrangement(self.techniques, model.embedding.layout)
        self._executor = executor or Inline()
        self._progress = Progress(self.schedule, self._executor, depth_over_time(self.techniques))
        self._optimizer = optimizer
        self._rebalances = self.techniques.tt_rebalance if self._transport.mesh.world_size > 1 else 0
        self._since_rebalance = 0
        self._agreed = self._transport.mesh.world_size == 1
        self._broken = ""
        model.embedding.hand_to(self)

    @property
    def recorder(self) -> Recorder | None:
        return self._perform.recorder

    @recorder.setter
    def recorder(self, recorder: Recorder | None) -> None:
        self._perform.recorder = recorder

    @property
    def transport(self) -> Transport:
        """How ranks meet; what others send over it has to be sent with nothing in flight, by every rank."""
        return self._transport

    def give_way(self) -> None:
        """Another pipeline takes the tables over: with batches in flight, this one ends here."""
        if not self._broken:
            self._progress.settle()  # under `Lanes` the release of the last batch may be under way
        if self._step.flight:
            self._progress.close()
            self._broken = self._broken or "another pipeline took over its tables"

    def progress(self, iterator: Iterator[Batch]) -> StepOutput:
        """Completes the next batch and returns its output.

        Raises:
            StopIteration: the iterator is at its end and everything in flight has been trained and handed out. The
                pipeline is then empty and may go on with another iterator.
            UserError: the ranks do not have the same techniques, tables, optimizers or start weights.
            RankFailed: another rank failed, ended or did not come; the message names it, and the place.
        """
        output = self._next(iterator)
        if output is None:
            raise StopIteration
        return output

    def run(self, loader: Iterable[Batch]) -> Iterator[StepOutput]:
        """One pass over a loader, an output a batch, nothing left in flight at its end.

        Whoever breaks off such a loop under a schedule that looks ahead leaves batches in flight: `drain()` trains and
        hands them out, else they come out at the head of the next pass. So do those whose keys alone were looked at
        (the `oracle` policy), which a drain leaves as they are; a pipeline made anew does not have them. Among several
        ranks nothing of the next loader is loaded before those are trained.
        """
        iterator = chain(iter(loader))  # each pass has its own: some loaders give the same one every time, reset
        while (output := self._next(iterator)) is not None:
            yield output

    def drain(self) -> list[StepOutput]:
        """Trains what is in flight or planned to be loaded, and no more; the outputs of those batches.

        Which ones these are depends on the steps alone: on every rank they are the same.
        """
        if not (self.model.embedding.is_used_by(self) or self._broken or self._progress.has_planned()):
            return []  # and whoever uses the tables goes on
        self._progress.stop_loading()
        outputs = []
        while (output := self._advance()) is not None:
            outputs.append(output)
        return outputs

    @torch.no_grad()
    def evaluate(self, loader: Iterable[Batch]) -> tuple[np.ndarray, np.ndarray]:
        """Labels [n] and predictions, [n] or, of k > 1 a sample, [n, k]; float32. Changes nothing that is learnt.

        Raises:
            RuntimeError: batches are in flight; `drain()` first.

        With several ranks each gives its own slices; all get everyone's labels and predictions, batch by batch, rank by
        rank.
        """
        with self._looking("evaluate", "evaluation"):
            return predict(self._step, loader)

    @torch.no_grad()
    def look_up(self, table: str, ids: Tensor | np.ndarray) -> Tensor:
        """[n, dim]: the row of each id [n] int64 (repeats allowed) as evaluation reads it, wherever it lies; on the
        pipeline's device. Changes nothing that is learnt; a collective, in which each rank may ask for other ids.

        Raises:
            RuntimeError: batches are in flight; `drain()` first.
            UserError: there is no such table.
        """
        with self._looking("look_up", "a look-up"):
            return look_up(self._step, table, ids)

    @contextmanager
    def _looking(self, call: str, place: str) -> Iterator[None]:
        """Nothing is in flight, the clock stands still, and a failure is told to the other ranks."""
        self._progress.settle()  # under `Lanes` the release of the last batch may be under way
        self._perform.pause()
        try:
            if self._step.flight:
                raise RuntimeError(f"{call}: {len(self._step.flight)} batches are in flight; call drain() first")
            self._agree()
            yield
        except BaseException as error:
            self._perform.tell(place, f"in {place}", error)
            raise

    def trace(self, meta: dict | None = None) -> Trace:
        """What was recorded, with the schedule's edges between the recorded events.

        Raises:
            RuntimeError: this pipeline records nothing.
        """
        if self.recorder is None:
            raise RuntimeError("trace: no recorder was given; use Pipeline(..., recorder=Recorder())")
        return self.recorder.trace(
            predecessors=lambda stage, batch, part: self.schedule.predecessors(Key(Stage(stage), batch, part)),
            lanes=[lane.value for lane in self.schedule.lanes],
            meta={"schedule": self.schedule.name, "how": "measured", **(meta or {})},
        )

    def memory(self, trace: Trace) -> pd.DataFrame:
        """Peak bytes by kind and in all (see `nestlab.tracing.memory.account`); `trace` is this pipeline's."""
        device = self._step.device
        allocator = None if device.type == "cpu" else peak_bytes(device)
        store = self.model.embedding
        tables = sum(store.nbytes().values()) + store.whole.nbytes
        return account(trace, Ends(tables, self._step.dense_bytes(), allocator))

    @property
    def wire(self) -> Wire:
        """What this rank has sent so far, in bytes, and what it comes to."""
        return self._step.rows.wire

    def _next(self, iterator: Iterator[Batch]) -> StepOutput | None:
        """The next batch's output, with `iterator` as the source of what is loaded from now on."""
        step = self._step
        if (step.source is None or step.source.batches is not iterator) and (rest := self._turn_to(iterator)):
            return rest
        if self._rebalances and self._since_rebalance >= self._rebalances:
            if rest := self._rebalance():
                return rest
            if step.source is None:  # its end was found on the way
                return None
        output = self._advance()
        if output is None and step.source is not None:
            return self._advance()  # the end that a look-ahead had found was that of the source before
        return output

    def _turn_to(self, iterator: Iterator[Batch]) -> StepOutput | None:
        """Makes `iterator` the source. An output: of a batch of the source before, which comes first.

        Among several ranks what is in flight is trained before anything of the new source is loaded: an end of the old
        one that ROUTE has yet to find would take with it what was loaded behind it.
        """
        step, many = self._step, self._transport.mesh.world_size > 1
        self._progress.settle()  # what a lane still loads is of the source before
        if many and step.source is not None:
            self._progress.stop_loading()
            if (output := self._advance()) is not None:
                return output
        step.source = Source(iterator, self._arrange, step.filler if many else None)
        return None

    def _rebalance(self) -> StepOutput | None:
        """Lets tables move to less loaded ranks once nothing is in flight. An output: of a batch that was, before that.

        Batches that are routed know who owned the tables then: they are trained first.
        """
        self._progress.stop_loading()
        if (output := self._advance()) is not None:
            return output
        self._since_rebalance = 0
        try:
            self._step.tables.rebalance()
        except BaseException as error:
            batch = self._progress.batch
            self._perform.tell(f"rebalance({batch})", f"in a rebalance of tables before batch {batch}", error)
            self._broken = type(error).__name__
            self._progress.close()
            raise
        return None

    def _advance(self) -> StepOutput | None:
        if self._broken:
            raise RuntimeError(f"this pipeline stopped at an error ({self._broken}); make a new one")
        if not self.model.embedding.is_used_by(self):
            self.model.embedding.hand_to(self)
            self._step.foresee_held()
        self._perform.resume()  # the clock stood still from the first look at held-out data on
        try:
            self._agree()
            done = self._progress.advance(self._perform)
        except BaseException as error:
            perform, batch = self._perform, self._progress.batch
            if not perform.failed_in:  # no action did: an interrupt, most of the time
                perform.tell(f"batch {batch}", f"before batch {batch} was through", error)
            self._broken = perform.failed_in or type(error).__name__
            self._progress.close()  # now that the others know: a lane may be waiting for them
            raise
        if done is None:
            self._step.end_epoch()
            if self.recorder is not None:
                self.recorder.forget(self._progress.batch)
            return None
        self._since_rebalance += 1
        if self._streams is not None:
            self._streams.wait(Key(Stage.UPDATE, done))
        return self._step.outputs.pop(done)

    def _agree(self) -> None:
        """Once, before anything is asked of the other ranks; model and optimizer are then as training begins."""
        if not self._agreed:
            flags = of_techniques(self.techniques, self.schedule, self._executor)
            agree(
                self._transport,
                [*flags, *of_tables(self.model.embedding), *of_dense(self.model.dense, self._optimizer)],
            )
            self._agreed = True
