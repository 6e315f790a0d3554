"""Where the ranks of a notebook compute, from its parameters `device`, `backend` and `world_size`."""

from __future__ import annotations

import torch

from nestlab import device
from nestlab.errors import UserError


def place(experiment: str, device_name: str, backend: str, world_size: int) -> str:
    """The device of every rank. On accelerators each rank needs one of its own; `auto` goes by the backend.

    Raises:
        UserError: the backend does not go with the device, or there is no accelerator for each rank that asks for one.
    """
    where = _device(experiment, device_name, backend, world_size)
    wanted = "gloo" if torch.device(where).type == "cpu" else "nccl"
    if backend != wanted:
        raise UserError(f"{experiment}: backend={backend} on {where}: give backend={wanted}, or another device")
    return where


def _device(experiment: str, device_name: str, backend: str, world_size: int) -> str:
    if device_name == "auto" and backend == "gloo":
        return "cpu"
    where = device.resolve(device_name)
    if where.type == "cpu" or torch.accelerator.device_count() >= world_size:
        return str(where)
    if device_name == "auto":
        return "cpu"
    raise UserError(
        f"{experiment}: device={device_name} for {world_size} rank(s): there are {torch.accelerator.device_count()}; "
        "give device=cpu, or fewer ranks"
    )
