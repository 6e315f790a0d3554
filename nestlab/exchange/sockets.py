"""Cutting a gloo group's connections: the one way to end what is outstanding in it.

gloo (torch 2.13) has no abort: `ProcessGroup.abort` and `shutdown` leave its operations waiting, and the group's
destructor waits for them until the group's own timeout. An operation whose connection is shut down ends at once, on
both sides. The connections are those that appeared while the group was made.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Connection:
    """An open TCP connection of this process; `mark` tells it from a later one with the same number."""

    number: int
    mark: tuple[str, Any, Any]

    def cut(self) -> None:
        """Shuts it down; the number stays its owner's. Nothing happens where it is closed already."""
        with contextlib.suppress(OSError):
            if _look(self.number) == self:
                with socket.socket(fileno=os.dup(self.number)) as found:
                    found.shutdown(socket.SHUT_RDWR)


def connections() -> set[Connection]:
    """All of this process now; none where the system does not list them."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return set()
    return {found for name in os.listdir(folder) if (found := _look(int(name))) is not None}


def _look(number: int) -> Connection | None:
    """The connection with this number; None for files, pipes and sockets that only listen."""
    try:
        name = os.readlink(f"/proc/self/fd/{number}")
        if not name.startswith("socket:"):
            return None
        with socket.socket(fileno=os.dup(number)) as found:
            if found.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            return Connection(number, (name, found.getsockname(), found.getpeername()))
    except OSError:
        return None
