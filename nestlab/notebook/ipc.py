"""A kernel manager that talks over socket files: no TCP port to race for, and no traffic that others can read."""

from __future__ import annotations

import signal
import sys

from jupyter_client.manager import AsyncKernelManager
from jupyter_core.paths import jupyter_runtime_dir
from traitlets import default


class KernelManager(AsyncKernelManager):
    @default("transport")
    def _socket_files_where_there_are_any(self) -> str:
        return "tcp" if sys.platform == "win32" else "ipc"

    @default("connection_file")
    def _also_in_the_private_folder(self) -> str:
        return f"{jupyter_runtime_dir()}/kernel.json"

    @default("ip")
    def _in_the_private_folder(self) -> str:
        # jupyter_client would put the sockets into the current folder under one name, which kernels that start at the
        # same time then share.
        return "127.0.0.1" if sys.platform == "win32" else f"{jupyter_runtime_dir()}/socket"

    async def _async_interrupt_kernel(self) -> None:
        # jupyter_client interrupts a kernel before it asks it to end. One that is idle has nothing to interrupt and now
        # and then writes an error about it into the run's log; one that is busy is ended by the command that owns it.
        if not self.shutting_down:
            await super()._async_interrupt_kernel()

    async def _async_is_alive(self) -> bool:
        """Whoever asks learns only that the kernel is dead; the run's stderr.log tells of what."""
        alive = await super()._async_is_alive()
        code = await self.provisioner.poll() if self.provisioner is not None and not alive else None
        if code is not None and code < 0 and not self.shutting_down:
            print(f"the kernel was ended by signal {-code}: {signal.strsignal(-code)}", file=sys.stderr)
        return alive

    is_alive = _async_is_alive
