"""Several ranks on this machine, started from a script or a notebook: `launch(function, world_size=2)`."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestlab.errors import RankFailed, UserError
from nestlab.launch.guards import caller_as_before
from nestlab.launch.worker import Folders, run_rank

if TYPE_CHECKING:
    from torch.distributed import TCPStore
    from torch.distributed.elastic.multiprocessing.api import MultiprocessContext

_GRACE_S = 3.0  # after one rank's error the others may say theirs
_CLOSE_S = 3  # between asking a process to end and killing it
_TAIL = 15  # lines of a log in an error message


def launch(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    world_size: int,
    log_dir: str | os.PathLike[str] | None = None,
    timeout_s: float | None = None,
    threads: int = 1,
) -> list[Any]:
    """Runs `function(*args, **kwargs)` in `world_size` processes, ranks of one world, and gives their results by rank.

    The ranks find each other as under `torchrun`, by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. The
    store behind that port is this process's: no port has to be chosen, and a rank that ends does not take it away.
    Whatever happens, no process is left when the call ends.

    Args:
        function: at the top of a module that can be imported: processes find it by name, so cells and nested
            functions do not do.
        args, kwargs: must survive pickling.
        log_dir: where `rank_0.log` … are written, made if absent; without it logs live until the call ends.
        timeout_s: seconds that the function may take, counted once every rank has begun; each rank's log then says
            where it stood.
        threads: of torch and OpenMP, in each rank.

    Raises:
        UserError: `function` cannot be found by name, an argument cannot be pickled, or a rank raised UserError.
        RankFailed: a rank failed, ended or was late; with its error and the last lines of its log.
        KeyboardInterrupt: after all processes have been ended.
    """
    if world_size < 1 or threads < 1:
        raise UserError(f"launch: world_size {world_size}, threads {threads}: each must be 1 or more")
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UserError("launch: called while a rank imports the script; put the call under if __name__ == '__main__':")
    target, payload = _target(function), _payload(args, kwargs or {})
    with caller_as_before(threads), _folders(log_dir) as folders:
        for rank in range(world_size):
            folders.log(rank).unlink(missing_ok=True)
        store, context = _prepare(world_size, (target, payload, folders, threads))
        try:
            results = _Run(context, folders, world_size, timeout_s).results()
        finally:
            context.close(signal.SIGTERM, _CLOSE_S)
            vars(context).clear()  # its semaphores go now, not when an error's traceback does
        del store  # until here: the ranks meet at its port
        return results


def _target(function: Callable[..., Any]) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module == "__main__":
        raise UserError(f"launch: {name} stands in a cell or script; move it to a module that the ranks can import")
    if not module or not name.isidentifier():
        raise UserError(f"launch: {name or function!r} cannot be found by name; give a function at the top of a module")
    return f"{module}:{name}"


def _payload(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    try:
        return pickle.dumps((tuple(args), dict(kwargs)))
    except Exception as error:
        raise UserError(f"launch: an argument cannot travel to another process ({error}); pass plain values") from error


def _prepare(world_size: int, call: tuple[Any, ...]) -> tuple[TCPStore, MultiprocessContext]:
    """The store where the ranks meet, and torch's launcher for them; nothing is started."""
    import torch.distributed as dist
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, MultiprocessContext

    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False)
    common = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    envs = {rank: {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)}
    logs = DefaultLogsSpecs(log_dir=os.devnull)  # each rank has one log file of its own instead
    context = MultiprocessContext("nestlab", run_rank, dict.fromkeys(envs, call), envs, "spawn", logs)
    return store, context


class _Run:
    """Started ranks, watched until all have a result or one has failed."""

    def __init__(
        self, context: MultiprocessContext, folders: Folders, world_size: int, timeout_s: float | None
    ) -> None:
        self._context, self._folders, self._ranks = context, folders, range(world_size)
        self._timeout_s = timeout_s
        self._limit = float("inf")

    def results(self) -> list[Any]:
        self._context.start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)  # torch's handler raises an error of its own
        first_sign: float | None = None
        while (outcome := self._context.wait(0.1, 0.02)) is None:
            now = time.monotonic()
            if self._timeout_s is not None and all(self._folders.begun(rank).exists() for rank in self._ranks):
                self._limit = min(self._limit, now + self._timeout_s)
            if now > self._limit:
                raise self._late()
            if first_sign is None and (self._errors() or self._dead()):
                first_sign = now
            if first_sign is not None and now > first_sign + _GRACE_S:
                break
        errors = self._errors()
        if errors:
            raise self._failed(errors)
        if outcome is None or outcome.failures:
            raise self._ended({} if outcome is None else outcome.failures)
        return [pickle.loads(outcome.return_values[rank]) for rank in self._ranks]

    def _errors(self) -> dict[int, dict[str, Any]]:
        files = {rank: self._folders.error(rank) for rank in self._ranks}
        return {rank: json.loads(file.read_text()) for rank, file in files.items() if file.exists()}

    def _dead(self) -> list[int]:
        """Ranks whose process has ended, whatever its exit status."""
        alive = {child.pid for child in multiprocessing.active_children()}
        return [rank for rank, pid in self._context.pids().items() if pid not in alive]

    def _failed(self, errors: dict[int, dict[str, Any]]) -> Exception:
        """The first error, but rather one that is a rank's own than one about another rank."""
        rank = min(errors, key=lambda rank: (errors[rank]["of_another"], errors[rank]["at"]))
        found = errors[rank]
        if found["of_user"]:
            return UserError(found["text"])
        return RankFailed(f"rank {rank} failed: {found['kind']}: {found['text']}{self._tail(rank)}")

    def _ended(self, failures: dict[int, Any]) -> RankFailed:
        rank = min(failures) if failures else min(self._dead(), default=0)
        how = f" with exit status {failures[rank].exitcode}" if failures else ""
        if failures and failures[rank].exitcode < 0:
            how = f" by {signal.Signals(-failures[rank].exitcode).name}"
        if self._folders.begun(rank).exists():
            return RankFailed(f"rank {rank} ended{how} without a result{self._tail(rank)}")
        guard = "if the call stands in a script, put it under if __name__ == '__main__':"
        return RankFailed(f"rank {rank} ended{how} before its function began; {guard}{self._tail(rank)}")

    def _late(self) -> RankFailed:
        for pid in self._context.pids().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(0.2)  # while the ranks write down where they stand
        tails = "".join(self._tail(rank) for rank in self._ranks)
        return RankFailed(f"launch: no end within {self._timeout_s:g} s{tails}")

    def _tail(self, rank: int) -> str:
        file = self._folders.log(rank)
        lines = file.read_text(errors="replace").splitlines()[-_TAIL:] if file.exists() else []
        return "\n".join(["", f"--- {file.name}, its last lines", *(lines or ["(empty)"])])


@contextlib.contextmanager
def _folders(log_dir: str | os.PathLike[str] | None) -> Iterator[Folders]:
    with tempfile.TemporaryDirectory(prefix="nestlab-launch-") as name:
        logs = Path(name) if log_dir is None else Path(log_dir)
        logs.mkdir(parents=True, exist_ok=True)
        yield Folders(logs.resolve(), Path(name))
