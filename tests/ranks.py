"""Two rank processes for the tests, started once a session: `ranks.run(function, …)` runs a function on both.

`function(transport, *args, **kwargs)` must stand at the top of a test module (or of a helper beside it), since the
workers import it by name; results and arguments are pickled. Each worker has one thread, `transport` is a
`CollectiveTransport` over gloo. A function that needs other timeouts or replica groups connects once more: the
default process group is there.

The workers are forked from one process that has imported what they need and has no threads: a new pair after an error
costs next to nothing. So both have one seed of string hashes; ranks that `nestlab.launch` starts have two.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

WORLD = 2
START_S = 150.0  # on a fresh checkout the kernels are compiled first


class RankEnded(Exception):
    """A rank process ended by itself; `exit_status` as multiprocessing has it (−9 for SIGKILL)."""

    def __init__(self, rank: int, exit_status: int | None) -> None:
        super().__init__(f"rank {rank} ended with exit status {exit_status}")
        self.exit_status = exit_status


class RemoteTraceback(Exception):
    """The text of a traceback in a rank process."""


class Ranks:
    """A pair of rank processes, made anew after an error or a timeout."""

    def __init__(self) -> None:
        self._workers: list[tuple[Any, Connection]] = []

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 120.0, **kwargs: Any) -> list[Any]:
        """The results of `function(transport, *args, **kwargs)`, by rank.

        Raises:
            Exception: what a rank raised (what came of another's failure last), with its traceback as the cause.
            RankEnded: a process ended.
            TimeoutError: a rank did not answer in time.
        """
        outcomes = self.outcomes(function, *args, timeout_s=timeout_s, **kwargs)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if errors:
            raise min(errors, key=lambda error: type(error).__name__ in ("RankFailed", "TimeoutError"))
        return outcomes

    def outcomes(self, function: Callable[..., Any], *args: Any, timeout_s: float = 120.0, **kwargs: Any) -> list[Any]:
        """As `run`, but a rank's exception stands in the list in place of its result."""
        if not self._workers:
            self._start()
        call = pickle.dumps((function, args, kwargs))
        for _, connection in self._workers:
            with contextlib.suppress(OSError):  # it ended: its end is read below
                connection.send((sys.path, call))
        outcomes = self._collect(timeout_s)
        if any(isinstance(outcome, BaseException) for outcome in outcomes):
            self.close()
        return outcomes

    @property
    def pids(self) -> list[int]:
        """Process ids of the present pair, by rank; empty before the first call and after an error."""
        return [process.pid for process, _ in self._workers]

    def close(self) -> None:
        """Ends both processes, kindly where they listen."""
        for _, connection in self._workers:
            connection.close()  # a worker that waits for a call reads the end of the pipe, and leaves
        limit = monotonic() + 3.0
        for process, _ in self._workers:
            process.join(max(0.0, limit - monotonic()))
        for process, _ in self._workers:
            process.kill()
            process.join()
            process.close()
        self._workers = []

    def _start(self) -> None:
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(["rank_imports"])
        port = free_port()
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])  # where that process looks for it
        with _environment(OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR", PYTHONPATH=path):
            for rank in range(WORLD):
                here, there = server.Pipe()
                process = server.Process(target=_work, args=(there, rank, port), name=f"rank-{rank}", daemon=True)
                process.start()
                there.close()
                self._workers.append((process, here))
        errors = [outcome for outcome in self._collect(START_S) if isinstance(outcome, BaseException)]
        if errors:
            self.close()
            raise errors[0]

    def _collect(self, timeout_s: float) -> list[Any]:
        late = TimeoutError(f"no answer within {timeout_s:g} s")
        outcomes: list[Any] = [late] * WORLD
        open_ranks = {connection: rank for rank, (_, connection) in enumerate(self._workers)}
        limit = monotonic() + timeout_s
        while open_ranks and (left := limit - monotonic()) > 0:
            for connection in wait(list(open_ranks), left):
                rank = open_ranks.pop(connection)
                outcomes[rank] = self._receive(rank, connection)
        return outcomes

    def _receive(self, rank: int, connection: Connection) -> Any:
        try:
            result, error, text = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            process = self._workers[rank][0]
            process.join(5.0)
            return RankEnded(rank, process.exitcode)
        if error is not None:
            error.__cause__ = RemoteTraceback(f"rank {rank}:\n{text}")
            return error
        return result


def _work(connection: Connection, rank: int, port: int) -> None:
    """A rank process: connects, then answers calls until the pipe ends or a call fails."""
    import torch

    from nestlab.exchange.collective import CollectiveTransport

    torch.set_num_threads(1)
    place = {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    transport = CollectiveTransport.connect(env=place)
    try:
        connection.send_bytes(pickle.dumps((None, None, "")))
        while True:
            path, call = connection.recv()
            sys.path[:] = path
            answer, failed = _answer(transport, call)
            connection.send_bytes(answer)
            if failed:
                return
    except (EOFError, OSError, KeyboardInterrupt):
        pass
    finally:
        transport.close()
    sys.stdout.flush()
    os._exit(0)  # nothing is left but the interpreter's own end, which with torch loaded takes a second and more


def _answer(transport: Any, call: bytes) -> tuple[bytes, bool]:
    try:
        function, args, kwargs = pickle.loads(call)
        return pickle.dumps((function(transport, *args, **kwargs), None, "")), False
    except BaseException as error:
        text = traceback.format_exc()
        transport.fail("a test", error)  # the other rank need not wait for this one
        return pickle.dumps((None, _portable(error), text)), True


def _portable(error: BaseException) -> BaseException:
    """The error itself where it survives pickling, else one that says the same."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """What processes started meanwhile inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Two persistent rank processes; see `Ranks.run`."""
    pair = Ranks()
    yield pair
    pair.close()
