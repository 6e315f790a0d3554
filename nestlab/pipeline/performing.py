"""Around an action: an event for the trace, a stream on an accelerator, and an error that says where it was."""

from __future__ import annotations

import time

from nestlab.device import synchronise
from nestlab.errors import RankFailed
from nestlab.pipeline.agreement import RanksDisagree
from nestlab.pipeline.ledger import EndOfData
from nestlab.pipeline.schedule import Action, Schedule, Stage
from nestlab.pipeline.step import TrainStep
from nestlab.pipeline.streams import Streams
from nestlab.tracing import Recorder
from nestlab.tracing.memory import COUNT_EVERY

# After these stages bytes in use are read: where much comes or goes. What others add shows a stage later.
_SAMPLED = frozenset(
    (
        Stage.LOAD,
        Stage.EMB_EXCHANGE,
        Stage.FORWARD,
        Stage.BACKWARD,
        Stage.TT_FORWARD,
        Stage.TT_EXCHANGE,
        Stage.TT_GRAD_EXCHANGE,
        Stage.TT_BACKWARD,
        Stage.DENSE_REDUCE,
        Stage.RELEASE,
    )
)


class Performer:
    """Carries out the actions of a step for an executor.

    Attributes:
        recorder: where events go; None: nowhere.
        failed_in: the first action that failed, and how; empty while none has.
    """

    def __init__(
        self, step: TrainStep, schedule: Schedule, recorder: Recorder | None = None, streams: Streams | None = None
    ) -> None:
        self._step, self._schedule, self._streams = step, schedule, streams
        self.recorder = recorder
        self._paused_at: int | None = None
        self._paused_ns = 0  # of evaluations: no part of any step, cut out of the trace
        self.failed_in = ""

    def __call__(self, action: Action) -> None:
        recorder, (stage, batch, _) = self.recorder, action.key
        if recorder is None:
            self._guarded(action)
            return
        wanted = recorder.wants(batch)
        if stage is Stage.FORWARD:
            self._step.counts_activations = wanted and (batch - recorder.first_batch) % COUNT_EVERY == 0
        if wanted:
            self._record(recorder, action)
        else:
            self._guarded(action)

    def pause(self) -> None:
        """The trace's clock stands still until `resume`."""
        self._paused_at = self._paused_at or time.perf_counter_ns()

    def resume(self) -> None:
        if self._paused_at is not None:
            self._paused_ns += time.perf_counter_ns() - self._paused_at
            self._paused_at = None

    def tell(self, place: str, note: str, error: BaseException) -> None:
        """The other ranks need not wait for this one, and the error names where it was."""
        transport = self._step.transport
        error.add_note(f"rank {transport.mesh.rank}, {note}" if transport.mesh.world_size > 1 else note)
        if not isinstance(error, (RankFailed, RanksDisagree)):
            transport.fail(place, error)

    def _record(self, recorder: Recorder, action: Action) -> None:
        """Everything here runs with cold caches, after each kernel of a step: little of it, and no call too many."""
        step, (stage, batch, part) = self._step, action.key
        start = time.perf_counter_ns() - self._paused_ns
        nbytes = self._guarded(action)
        if self._streams is not None:
            self._streams.wait(action.key)
        elif step.device.type != "cpu":
            synchronise(step.device)  # without it an event would time the launch alone
        end = time.perf_counter_ns() - self._paused_ns
        in_use = step.in_use() if stage in _SAMPLED else None
        recorder.record(action.lane, stage, batch, part, start, end, nbytes, in_use)

    def _guarded(self, action: Action) -> int:
        """An error names the stage and the batch; the pipeline does not go on from half a step."""
        perform = self._step.perform
        try:
            return perform(action) if self._streams is None else self._streams.run(action, perform)
        except EndOfData:
            raise
        except BaseException as error:
            if not self.failed_in or not isinstance(error, RankFailed):
                self.failed_in = f"{action.key}: {type(error).__name__}"
            note = f"in {action.key} on lane {action.lane}, schedule '{self._schedule.name}'"
            self.tell(str(action.key), note, error)
            raise
