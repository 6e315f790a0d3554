"""How the ranks of a run learn that one of them failed, ended, or does not come: one thread a rank, over the store.

Every rank writes its pulse (a count, and how many collectives it has entered a channel) every `PULSE_S` seconds and
looks whether a failure was written. The first failure written is the one that every rank reports. All access to the
store is the thread's, so that a store that no longer answers never blocks a lane.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from torch.distributed import Store

from nestlab.errors import INTERRUPTED, RankFailed

PULSE_S = 0.2
ENDED_S = 0.8  # a rank whose pulse has stood still for so long has ended
_LEAVE_S = 5.0  # how long the host of the store stays for ranks that have not left yet
_ANSWER_S = 1.0  # how long a lane waits for the thread
_LINE = 400  # characters of an error message that travel


def describe(rank: int, place: str, error: BaseException) -> str:
    """`rank 1 failed in FORWARD(7): ValueError: …`, one line; a RankFailed speaks for itself."""
    lines = str(error).strip().splitlines()
    text = lines[0][:_LINE] if lines else ""
    if isinstance(error, RankFailed):
        return text
    if isinstance(error, KeyboardInterrupt):
        return f"rank {rank} {INTERRUPTED}"
    return f"rank {rank} failed in {place}: {type(error).__name__}{': ' if text else ''}{text}"


class Watch:
    """What this rank knows of the others, and tells them.

    Args:
        store: of this watch alone: no other thread uses it.
        rank, world_size: this rank among all.
        host: the rank whose process serves the store, None where the launcher does.
    """

    def __init__(self, store: Store, rank: int, world_size: int, host: int | None) -> None:
        self._store, self._rank, self._world_size, self._host = store, rank, world_size, host
        self._calls: Counter[str] = Counter()
        self._failure: str | None = None
        self._lost: str | None = None  # the store does not answer any more
        self._gone: list[int] = []  # found ended: nobody waits for them
        self._failed_for_all = False  # the failure stands in the store
        self._beat = 0
        self._told = False  # the host may end: this rank has read the failure, or left
        self._stopped = False
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="nestlab-watch", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def failure(self) -> str:
        """What every rank reports; empty while nothing has failed."""
        return self._failure or ""

    def enter(self, channel: str) -> None:
        """This rank enters a collective.

        Raises:
            RankFailed: a rank has failed already.
        """
        if self._failure is not None:
            raise RankFailed(self._failure)
        self._calls[channel] += 1

    def check(self) -> None:
        """Between two slices of waiting.

        Raises:
            RankFailed: a rank has failed, or the one that serves the store has ended.
        """
        reason = self._failure or self._lost
        if reason is not None:
            raise RankFailed(reason)

    def publish(self, reason: str) -> str:
        """Every rank will report `reason`, this one from now on, unless another was first: the one they report."""
        if self._failure is None:
            self._failure, self._failed_for_all = reason, True
            self._failure = self._ask(lambda: self._first(reason)) or reason
            self._let_read(ENDED_S)
        return self._failure

    def stop_waiting(self, reason: str) -> None:
        """This rank's own threads stop waiting; nobody else hears of it."""
        self._failure = self._failure or reason

    def absent(self, channel: str, ranks: Iterable[int]) -> list[int]:
        """Of `ranks` those that entered fewer collectives on the channel than this one."""
        mine = self._calls[channel]
        pulses = self._ask(lambda: {rank: self._pulse(rank) for rank in ranks if rank != self._rank}) or {}
        return [rank for rank, pulse in pulses.items() if pulse.get("calls", {}).get(channel, 0) < mine]

    def ended(self, ranks: Iterable[int]) -> list[int]:
        """Of `ranks` those whose pulse stands still for `ENDED_S`; returns early once a failure is known."""
        others = [rank for rank in ranks if rank != self._rank]
        before = self._ask(lambda: {rank: self._pulse(rank) for rank in others})
        limit = time.monotonic() + ENDED_S
        while time.monotonic() < limit and not (self._failure or self._lost):
            time.sleep(PULSE_S / 4)
        after = self._ask(lambda: {rank: self._pulse(rank) for rank in others})
        if before is None or after is None:
            return []
        self._gone = [rank for rank in others if before[rank].get("beat") == after[rank].get("beat")]
        return self._gone

    def leave(self) -> None:
        """Ends the thread. The rank that serves the store first gives the others a moment to read what stands there."""
        if self._thread.is_alive():
            self._ask(self._tell)
            self._let_read(ENDED_S if self._failed_for_all else _LEAVE_S)
        self._stopped = True
        self._jobs.put((lambda: None, Future()))  # wakes it
        self._thread.join(_ANSWER_S)

    def _let_read(self, seconds: float) -> None:
        """Where this rank serves the store: waits until the others have read the failure or left."""
        if self._rank != self._host:
            return
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            told = self._ask(lambda: self._store.add("told", 0))
            if told is None or told >= self._world_size - 1 - len(self._gone):
                return
            time.sleep(PULSE_S / 4)

    def _ask(self, job: Callable[[], Any]) -> Any:
        """The job's result from the thread; None where the store does not answer in time."""
        if self._lost or not self._thread.is_alive():
            return None
        answer: Future = Future()
        self._jobs.put((job, answer))
        try:
            return answer.result(_ANSWER_S)
        except (TimeoutError, RuntimeError):
            return None

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._serve_one()
                self._look()
            except RuntimeError as error:  # torch.distributed.DistError among them: the store is gone
                ended = "the launcher" if self._host is None else f"rank {self._host}"
                self._lost = f"{ended} ended (the store is gone: {str(error).splitlines()[0][:_LINE]})"
                return

    def _serve_one(self) -> None:
        try:
            job, answer = self._jobs.get(timeout=PULSE_S)
        except queue.Empty:
            return
        try:
            answer.set_result(job())
        except RuntimeError as error:
            answer.set_exception(error)
            raise

    def _look(self) -> None:
        self._beat += 1
        self._store.set(f"pulse/{self._rank}", json.dumps({"beat": self._beat, "calls": dict(self._calls)}))
        if self._store.check(["failure"]):
            self._failure, self._failed_for_all = self._store.get("failure").decode(), True
            self._tell()

    def _first(self, reason: str) -> str:
        return self._store.compare_set("failure", "", reason).decode()

    def _tell(self) -> None:
        if not self._told and self._rank != self._host:
            self._told = True
            self._store.add("told", 1)

    def _pulse(self, rank: int) -> dict:
        key = f"pulse/{rank}"
        return json.loads(self._store.get(key)) if self._store.check([key]) else {}
