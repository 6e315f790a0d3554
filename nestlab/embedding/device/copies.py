"""Records on their way between host memory and the device.

On an accelerator copies go through pinned memory and over a stream of their own, beside the computation; whoever needs
a copy waits for it then. On the CPU the device tier is plain memory and there is nothing to copy a second time.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:  # a layer beside this one
    from nestlab.exchange.link import Link


@dataclass(eq=False)
class Copy:
    """A copy that is on its way, and the event that tells when it is there (None: it is)."""

    records: Tensor
    done: torch.Event | None = None


class Copies:
    """Copies records between host memory and one device.

    Args:
        link: emulated, between the two: each copy takes at least as long as on it. None: as fast as this machine is.
    """

    def __init__(self, device: torch.device, link: Link | None) -> None:
        self.device, self._link = device, link
        self._stream = None if device.type == "cpu" else torch.Stream(device)

    def up(self, memory: Tensor, at: Tensor) -> Copy:
        """memory[at] [n, width], gathered in host memory now and copied to the device from there."""
        with self._over_link(at.numel() * memory.shape[1] * memory.element_size()):
            if self._stream is None:
                return Copy(memory.index_select(0, at))
            pinned = torch.empty(at.numel(), memory.shape[1], dtype=memory.dtype, pin_memory=True)
            torch.index_select(memory, 0, at, out=pinned)
            with self._stream:
                records = pinned.to(self.device, non_blocking=True)
                done = self._stream.record_event()
            return Copy(records, done)

    def arrived(self, copy: Copy) -> Tensor:
        """The records, for the stream that this thread computes on; it waits, the thread does not."""
        if copy.done is not None:
            stream = torch.accelerator.current_stream(self.device)
            stream.wait_event(copy.done)
            copy.records.record_stream(stream)
        return copy.records

    def down(self, records: Tensor) -> Copy:
        """Records [n, width], gathered on the device, to host memory. Nobody may change `records` from here on; where
        they were gathered from is free."""
        if self._stream is None:
            return Copy(records)
        self._stream.wait_stream(torch.accelerator.current_stream(self.device))
        pinned = torch.empty(records.shape, dtype=records.dtype, pin_memory=True)
        with self._stream:
            pinned.copy_(records, non_blocking=True)
            records.record_stream(self._stream)
            return Copy(pinned, self._stream.record_event())

    def landed(self, copy: Copy) -> Tensor:
        """The records in host memory; this thread waits for them."""
        with self._over_link(copy.records.nbytes):
            if copy.done is not None:
                copy.done.synchronize()
            return copy.records

    def _over_link(self, nbytes: int):
        return self._link.transfer(nbytes) if self._link is not None and nbytes else nullcontext()
