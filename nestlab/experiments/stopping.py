"""A training that is stopped from outside says where it stood, and its run says why it ended."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from nestlab import results
from nestlab.errors import INTERRUPTED, RankFailed
from nestlab.exchange import Transport
from nestlab.launch.environment import tell_launcher
from nestlab.training.fit import Saving


class Stopping:
    """SIGTERM, and with several ranks SIGINT, end the process with a line, a sealed run and status 128 + signal.

    A launcher that loses one rank ends the others within tenths of a second, and sends an interrupt twice. So the line
    comes first, and nothing is unwound: lanes may wait for ranks that are gone. A save that is cut off leaves the
    checkpoint before it whole.

    Attributes:
        transport, saving, run: of the training, as soon as they are there.
        status: set once an error has been told: a signal then only ends the process, with it.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._several = rank, world_size > 1
        self._pid = os.getpid()  # a forked child inherits handlers
        self._before: dict[int, Any] = {}
        self.transport: Transport | None = None
        self.saving: Saving | None = None
        self.run: results.Run | None = None
        self.status: int | None = None

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT) if self._several else (signal.SIGTERM,):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def rank(self) -> int | None:
        """None where there is only one."""
        return self._rank if self._several else None

    @property
    def standing(self) -> str:
        """How far the training is, and how it can go on."""
        if self.saving is None:
            return "before the first step"
        at = f"at step {self.saving.history.step}"
        if self.saving.checkpoints is None or self.saving.saved_step is None:
            return f"{at}; no checkpoint"
        folder = self.saving.checkpoints.folder
        return f"{at}; last checkpoint: step {self.saving.saved_step} in '{folder}'; go on with --restart"

    @property
    def failure(self) -> str:
        """What is known of another rank; empty: nothing."""
        return getattr(self.transport, "failure", "")

    def _on_signal(self, number: int, _: Any) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_IGN)
        if os.getpid() != self._pid:
            os._exit(128 + number)
        try:
            if self.status is None:
                self._tell(number)
        finally:
            os._exit(128 + number if self.status is None else self.status)

    def _tell(self, number: int) -> None:
        name = signal.Signals(number).name
        line = f"{'interrupted' if number == signal.SIGINT else f'stopped ({name})'} {self.standing}"
        line += f"; {self.failure}" if self.failure else ""
        if number == signal.SIGTERM or self._rank == 0:
            said = f"rank {self._rank}: {line}" if self._several and number == signal.SIGTERM else line
            os.write(2, f"nestlab: {said}\n".encode())  # past Python's buffer, which may be in use
        tell_launcher(f"nestlab: {line}")
        if self.run is not None:
            self.run.finish("killed", exception=line, exit_code=128 + number)
        if self.transport is not None:
            how = INTERRUPTED if number == signal.SIGINT else f"was stopped ({name})"
            self.transport.fail("nestlab train", RankFailed(f"rank {self._rank} {how}"))
