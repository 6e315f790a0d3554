"""All access to devices, on `torch.accelerator`: another accelerator is a port of this one file."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from nestlab.errors import UserError


def resolve(name: str = "auto") -> torch.device:
    """`auto` is the accelerator where there is one, else the CPU.

    Raises:
        UserError: a device was named that this machine does not have.
    """
    accelerator = accelerator_type()
    if name == "auto":
        return torch.device(accelerator or "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device '{name}' is not known; use device=auto, device=cpu or, say, device=cuda:0") from None
    if device.type != "cpu" and device.type != accelerator:
        has = f"this machine's accelerator is '{accelerator}'" if accelerator else "this machine has no accelerator"
        raise UserError(f"device '{name}' cannot be used: {has}; use device=auto or device=cpu")
    return device


def accelerator_type() -> str | None:
    """`cuda`, `xpu`, `npu`, … or None."""
    if not torch.accelerator.is_available():
        return None
    return torch.accelerator.current_accelerator().type


def accelerator_name() -> str | None:
    """What the accelerator calls itself, or None."""
    kind = accelerator_type()
    if kind is None:
        return None
    module = torch.get_device_module(kind)
    return module.get_device_name(0) if hasattr(module, "get_device_name") else kind


def synchronise(device: torch.device) -> None:
    """Waits until everything queued on `device` is done; the CPU queues nothing."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def peak_bytes(device: torch.device) -> int:
    """The allocator's peak since the start of the process; 0 on the CPU, where the store accounts for itself."""
    return 0 if device.type == "cpu" else torch.accelerator.max_memory_allocated(device)


def physical_memory() -> int:
    """Bytes of host memory that this process may use: the machine's, or its control group's limit if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        total = min(total, int(text))
    return total
