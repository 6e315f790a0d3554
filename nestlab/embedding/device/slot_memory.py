"""Memory of the slots: where it may grow, it grows in place."""

from __future__ import annotations

import torch
from torch import Tensor

from nestlab.embedding.host.arena import reserve
from nestlab.errors import UserError
from nestlab.host import memory_bytes

_MAP_BYTES = 24  # a slot, of the map and its lists at the most


def slot_memory(count: int, like: Tensor, grows: bool, device: torch.device) -> Tensor:
    """[count, width] records like those of the host tier, on `device`.

    On the CPU address space is reserved and costs memory as slots are used, so that a cache that grows never moves a
    record that another thread works on. An accelerator has no such space: there a cache has a fixed number of slots.

    Raises:
        UserError: a cache that grows with the rows is asked for on an accelerator, or the memory is not there.
    """
    if grows and device.type != "cpu":
        raise UserError(f"slot_cache: a share of the rows cannot grow on {device}; give cache_slots as a number")
    width, dtype = like.shape[1], like.dtype
    needed = count * (width * dtype.itemsize + _MAP_BYTES)
    if not grows and device.type == "cpu" and needed > memory_bytes():
        raise UserError(
            f"slot_cache: no memory for {count:,} slots of {width} elements: {needed:,} bytes of {memory_bytes():,}; "
            "give fewer"
        )
    try:
        if device.type != "cpu":
            return torch.zeros(count, width, dtype=dtype, device=device)
        memory = reserve(max(count * width * dtype.itemsize, 1))
    except (OSError, ValueError, OverflowError, torch.OutOfMemoryError) as error:
        text = str(error).splitlines()[0]
        raise UserError(
            f"slot_cache: no memory for {count:,} slots of {width} elements ({text}); give fewer"
        ) from error
    return torch.frombuffer(memory, dtype=dtype, count=count * width).view(count, width)
