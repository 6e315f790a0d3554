"""Lanes on an accelerator: a stream a lane, and events between them in place of waiting hosts."""

from __future__ import annotations

from typing import Any

import torch

from nestlab.pipeline.executors import Perform
from nestlab.pipeline.schedule import Action, Key, Lane, Schedule, Stage


class Streams:
    """Every action is queued on its lane's stream, behind the events of the actions that it has to wait for.

    The host orders launches by the same edges; the events order what the device does. Tensors that one stream made and
    another uses live until RELEASE, which waits for the device to have ended the batch's UPDATE: before that none of
    their memory is given to anybody else.

    Args:
        schedule: whose edges are obeyed.
        backend: `torch.cuda`, or what has the same `Stream`, `Event`, `stream`.
    """

    def __init__(self, schedule: Schedule, device: torch.device, backend: Any = torch.cuda) -> None:
        self._schedule, self._backend = schedule, backend
        self._streams: dict[Lane, Any] = {lane: backend.Stream(device=device) for lane in schedule.lanes}
        self._ended: dict[Key, Any] = {}

    def run(self, action: Action, perform: Perform) -> object:
        """`perform(action)`, queued where it belongs."""
        stream = self._streams[action.lane]
        with self._backend.stream(stream):
            for source in self._schedule.predecessors(action.key):
                if source in self._ended:
                    stream.wait_event(self._ended[source])
            if action.key.stage is Stage.RELEASE:
                self.wait(Key(Stage.UPDATE, action.key.batch))
            result = perform(action)
            event = self._backend.Event()
            event.record(stream)
            self._ended[action.key] = event
        if action.key.stage is Stage.RELEASE:
            self._forget(action.key.batch + self._schedule.reach)
        return result

    def wait(self, key: Key) -> None:
        """The host waits until the device has ended this action."""
        if key in self._ended:
            self._ended[key].synchronize()

    def _forget(self, oldest: int) -> None:
        """What no action to come can ask for."""
        for key in [key for key in list(self._ended) if key.batch < oldest]:
            del self._ended[key]
