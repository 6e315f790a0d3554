"""A kernel manager that talks over socket files: no TCP port to race for, and no traffic that others can read."""

from __future__ import annotations

import sys

from jupyter_client.manager import AsyncKernelManager
from traitlets import default


class KernelManager(AsyncKernelManager):
    @default("transport")
    def _socket_files_where_there_are_any(self) -> str:
        return "tcp" if sys.platform == "win32" else "ipc"
