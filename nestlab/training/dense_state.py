"""The state of the dense part, of its optimizer and of the random generators, as tensors by name and plain scalars.

No pickle: a state dict of torch is taken apart by parameter name, its tensors into one flat dict and its scalars into
JSON, and put together again. A value that is neither is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from nestlab.errors import UserError

Tensors = dict[str, Tensor]
_SCALARS = (bool, int, float, str, type(None))


def dense_tensors(dense: nn.Module) -> Tensors:
    """`dense.<name>`: the parameters, which are the same on every rank."""
    return {f"dense.{name}": parameter for name, parameter in dense.named_parameters()}


def check_dense(dense: nn.Module, tensors: Tensors) -> None:
    """
    Raises:
        UserError: the saved parameters are not those of `dense`.
    """
    saved, mine = under("dense", tensors), dict(dense.named_parameters())
    for name in sorted(saved.keys() | mine.keys()):
        shapes = [_shape(which.get(name)) for which in (saved, mine)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"restart: parameter '{name}' is {shapes[0]} in the checkpoint and {shapes[1]} in the model; "
                "build the model as it was"
            )


@torch.no_grad()
def load_dense(dense: nn.Module, tensors: Tensors) -> None:
    """Puts saved parameters in place of those of `dense`."""
    for name, parameter in dense.named_parameters():
        parameter.copy_(tensors[f"dense.{name}"])


def optimizer_state(optimizer: torch.optim.Optimizer, dense: nn.Module) -> tuple[Tensors, dict[str, Any]]:
    """Tensors `optimizer.<parameter>.<key>` and `group.<i>.<key>`, and the scalars beside them.

    Raises:
        UserError: the optimizer holds a parameter that is not of `dense`, or keeps what is no tensor and no scalar.
    """
    names = {id(parameter): name for name, parameter in dense.named_parameters()}
    tensors: Tensors = {}
    scalars: dict[str, Any] = {"class": type(optimizer).__name__, "groups": [], "state": {}}
    for i, group in enumerate(optimizer.param_groups):
        if any(id(parameter) not in names for parameter in group["params"]):
            raise UserError("checkpoint: the optimizer trains a parameter that the dense part lacks; leave it out")
        values = {key: value for key, value in group.items() if key != "params"}
        kept = _split(values, f"group.{i}", tensors)
        scalars["groups"].append({**kept, "params": [names[id(parameter)] for parameter in group["params"]]})
    for parameter, values in optimizer.state.items():
        name = names[id(parameter)]
        scalars["state"][name] = _split(values, f"optimizer.{name}", tensors)
    return tensors, scalars


def check_optimizer(optimizer: torch.optim.Optimizer, dense: nn.Module, scalars: dict[str, Any]) -> None:
    """
    Raises:
        UserError: the saved optimizer is of another kind, or over other groups of parameters.
    """
    names = {id(parameter): name for name, parameter in dense.named_parameters()}
    mine = [[names.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]
    saved = [group["params"] for group in scalars["groups"]]
    if scalars["class"] != type(optimizer).__name__ or mine != saved:
        raise UserError(
            f"restart: the checkpoint's optimizer is {scalars['class']} over {_counts(saved)} parameters, the run's "
            f"{type(optimizer).__name__} over {_counts(mine)}; use the checkpoint's"
        )


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors, scalars: dict[str, Any]) -> None:
    """Puts the saved state in place of that of an optimizer that `check_optimizer` found to be the same."""
    groups, number, state = [], 0, {}
    for i, group in enumerate(scalars["groups"]):
        numbers = list(range(number, number + len(group["params"])))
        number += len(numbers)
        values = {**group, **under(f"group.{i}", tensors), "params": numbers}
        groups.append(_as_before(values, optimizer.param_groups[i]))
        for at, name in zip(numbers, group["params"], strict=True):
            if name in scalars["state"]:
                state[at] = {**scalars["state"][name], **_of_parameter(name, tensors)}
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def rank_tensors(dense: nn.Module, device: torch.device) -> Tensors:
    """What a rank has of its own: `rng.cpu`, `rng.device` (where there is one), and `buffer.<name>`."""
    found = {"rng.cpu": torch.get_rng_state()}
    if device.type != "cpu":
        found["rng.device"] = torch.get_device_module(device).get_rng_state(device)
    return found | {f"buffer.{name}": value.detach().cpu() for name, value in _buffers(dense)}


@torch.no_grad()
def load_rank_tensors(dense: nn.Module, device: torch.device, tensors: Tensors) -> None:
    """As `rank_tensors` gave them; what is not among them stays as it is."""
    if "rng.cpu" in tensors:
        torch.set_rng_state(tensors["rng.cpu"])
    if "rng.device" in tensors and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(tensors["rng.device"], device)
    for name, value in _buffers(dense):
        if (saved := tensors.get(f"buffer.{name}")) is not None:
            value.copy_(saved)


def under(prefix: str, tensors: Tensors) -> Tensors:
    """Those whose name begins with `prefix.`, by what follows."""
    start = f"{prefix}."
    return {name[len(start) :]: value for name, value in tensors.items() if name.startswith(start)}


def _buffers(dense: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Those that belong to the module's state (the others are constants), in its order."""
    kept = dense.state_dict(keep_vars=True)
    return [(name, value) for name, value in dense.named_buffers() if name in kept]


def _of_parameter(name: str, tensors: Tensors) -> Tensors:
    """Keys have no dot: the state of `a.b` is none of `a`."""
    return {key: value for key, value in under(f"optimizer.{name}", tensors).items() if "." not in key}


def _split(values: dict[str, Any], prefix: str, tensors: Tensors) -> dict[str, Any]:
    """Tensors go to `tensors` under `prefix.<key>`; the scalars, and tuples of them, are returned."""
    scalars = {}
    for key, value in values.items():
        if isinstance(value, Tensor):
            tensors[f"{prefix}.{key}"] = value
        elif isinstance(value, _SCALARS) or (
            isinstance(value, tuple | list) and all(isinstance(one, _SCALARS) for one in value)
        ):
            scalars[key] = value
        else:
            raise UserError(
                f"checkpoint: the optimizer keeps '{key}', a {type(value).__name__}, which is no tensor and no scalar; "
                "use another optimizer, or no checkpoint"
            )
    return scalars


def _as_before(saved: dict[str, Any], mine: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples: a list becomes one where the optimizer has one."""
    return {key: tuple(value) if isinstance(mine.get(key), tuple) else value for key, value in saved.items()}


def _shape(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _counts(groups: list[list[str]]) -> str:
    return " + ".join(str(len(group)) for group in groups)
