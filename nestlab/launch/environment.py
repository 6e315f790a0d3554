"""Which rank this process is, as torchrun and every other launcher tell it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nestlab.errors import UserError

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
REMEDY = "start with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in each process"


@dataclass(frozen=True)
class Place:
    """Where a process stands among its ranks, and where they meet.

    `local_rank` counts on this host alone (0 where no launcher says it). `store_of_launcher`: the launcher serves the
    store at the meeting point, not rank 0; `attempt` tells one restart from the next.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29500
    store_of_launcher: bool = False
    attempt: int = 0


def environment(env: Mapping[str, str] | None = None) -> Place | None:
    """The place that the variables name; None where none of them is set: this process is on its own.

    Args:
        env: os.environ where None.

    Raises:
        UserError: some are set and others are missing, or a value cannot be.
    """
    env = os.environ if env is None else env
    missing = [name for name in _NEEDED if not env.get(name)]
    if not env.get("RANK") and not env.get("WORLD_SIZE"):
        return None
    if missing:
        given = ", ".join(name for name in _NEEDED if env.get(name))
        raise UserError(f"environment: {given} set, but not {', '.join(missing)}; {REMEDY}")
    world_size = _whole(env, "WORLD_SIZE", 1)
    rank = _whole(env, "RANK", 0)
    if rank >= world_size:
        raise UserError(f"environment: RANK={rank} in WORLD_SIZE={world_size}: ranks are 0 … {world_size - 1}")
    port = _whole(env, "MASTER_PORT", 1)
    if port > 65535:
        raise UserError(f"environment: MASTER_PORT={port}: a port is 1 … 65535")
    return Place(
        rank=rank,
        world_size=world_size,
        local_rank=_whole(env, "LOCAL_RANK", 0) if env.get("LOCAL_RANK") else 0,
        master_addr=env["MASTER_ADDR"],
        master_port=port,
        store_of_launcher=launcher_serves_store(env),
        attempt=_whole(env, "TORCHELASTIC_RESTART_COUNT", 0) if env.get("TORCHELASTIC_RESTART_COUNT") else 0,
    )


def tell_launcher(line: str, env: Mapping[str, str] | None = None) -> None:
    """Torchrun ends with a summary of its own; with this the summary repeats our line. Without torchrun: nothing."""
    path = (os.environ if env is None else env).get("TORCHELASTIC_ERROR_FILE")
    if path:
        with contextlib.suppress(OSError):
            shown = {"py_callstack": line, "timestamp": str(int(time.time()))}
            content = {"message": {"message": line, "extraInfo": shown}}
            Path(path).write_text(json.dumps(content), encoding="utf-8")


def launcher_serves_store(env: Mapping[str, str]) -> bool:
    return env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _whole(env: Mapping[str, str], name: str, least: int) -> int:
    try:
        value = int(env[name])
    except ValueError:
        value = least - 1
    if value < least:
        raise UserError(f"environment: {name}={env[name]!r} is no whole number of {least} or more; {REMEDY}")
    return value
