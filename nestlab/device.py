"""All access to devices, on `torch.accelerator`: another accelerator is a port of this one file."""

from __future__ import annotations

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
