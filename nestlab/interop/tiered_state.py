"""Weights and optimizer states of a tiered collection, from and to the state dicts of torch and torchrec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from nestlab.errors import UserError
from nestlab.interop import tiered_formats as formats
from nestlab.interop import tiered_records as records

if TYPE_CHECKING:
    from torchrec.modules.embedding_configs import BaseEmbeddingConfig

    from nestlab.interop.tiered import Tiered


@dataclass(frozen=True)
class ExportedState:
    """
    Attributes:
        weights: the collection's state dict, as torchrec's module has it.
        optimizer: the state dict of its optimizer.
    """

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]


def import_state(
    module: Tiered,
    state_dict: Mapping[str, Tensor],
    optimizer_state: Mapping[str, Any] | None = None,
    *,
    parameters: Sequence[str] | None = None,
    step: int | None = None,
) -> None:
    """Takes over weights, and where they are given optimizer states, the step number and the learning rate.

    Nothing is changed unless everything fits.

    Args:
        state_dict: of torchrec's collection, or of a model that has one: keys are matched by their ends.
        optimizer_state: the state dict of an optimizer of torch.optim, of torchrec's fused or of its keyed optimizers.
        parameters: the names of the parameters that an optimizer of torch.optim has, in its order; not needed where
            it has the tables alone, or was made from named parameters.
        step: the number of steps made, where the state does not say (fbgemm's Adam).

    Raises:
        UserError: a table is missing or of another shape, or the states are not those of the row optimizer.
    """
    found = {c.name: _weight(module, c, state_dict) for c in module.configs}
    saved = None if optimizer_state is None else _read(module, optimizer_state, parameters, step)
    module.settle()
    for config in module.configs:
        records.write(module.store, config.name, found[config.name], None)
    if saved is not None:
        _take_over(module, saved)


def import_optimizer(module: Tiered, optimizer_state: Mapping[str, Any]) -> None:
    """As `import_state`, without the weights."""
    saved = _read(module, optimizer_state, None, None)
    module.settle()
    _take_over(module, saved)


def import_weight(module: Tiered, config: BaseEmbeddingConfig, weight: Tensor) -> None:
    """weight [num_embeddings, dim] of one table; optimizer states stay as they are."""
    weight = formats.plain(config.name, "weight", weight, [_shape(config)])
    module.settle()
    records.write(module.store, config.name, weight, None)


def export_state(module: Tiered, style: Literal["fused", "torch"] = "fused") -> ExportedState:
    """The rows of all ids below `num_embeddings`, as torchrec holds them; initial values where one was never trained.

    Args:
        style: of the optimizer's state: `fused` as FusedEmbeddingBagCollection's (and, in `param_groups`, the step
            number and the learning rate); `torch` as of an optimizer of torch.optim over the tables in their order.

    Raises:
        UserError: a trained id has no place there, or the rows do not fit in memory.
    """
    module.settle()
    store, lr = module.store, module.fused_optimizer.lr
    rows = {c.name: records.read(store, c.name, c.num_embeddings) for c in module.configs}
    weights = {_key(module, c): rows[c.name][0] for c in module.configs}
    states = {name: state for name, (_, state) in rows.items()}
    if style == "torch":
        return ExportedState(weights, formats.torch_optim(states, store.optimizer, lr, store.last_step))
    return ExportedState(weights, formats.fused(states, list(weights), store.optimizer, lr, store.last_step))


def export_weights(module: Tiered) -> dict[str, Tensor]:
    """The collection's state dict, as torchrec's module has it."""
    module.settle()
    return {_key(module, c): records.read(module.store, c.name, c.num_embeddings)[0] for c in module.configs}


def _key(module: Tiered, config: BaseEmbeddingConfig) -> str:
    return f"{module.prefix}.{config.name}.weight"


def _shape(config: BaseEmbeddingConfig) -> tuple[int, int]:
    return config.num_embeddings, config.embedding_dim


def _weight(module: Tiered, config: BaseEmbeddingConfig, state_dict: Mapping[str, Tensor]) -> Tensor:
    weight = formats.find(state_dict, [_key(module, config)], "the state dict")
    return formats.plain(config.name, "weight", weight, [_shape(config)])


def _read(module: Tiered, saved: Mapping, parameters: Sequence[str] | None, step: int | None) -> formats.Saved:
    read = formats.read(saved, module.configs, module.prefix, module.store.optimizer, parameters, step)
    if read.step is None and module.store.optimizer.name == "lazy_adam":
        raise UserError("the optimizer's state does not say how many steps were made; give step=")
    return read


def _take_over(module: Tiered, saved: formats.Saved) -> None:
    store = module.store
    for config in module.configs:
        state = saved.states[config.name]
        if state is None:
            width = store.optimizer.state_width(config.embedding_dim)
            state = torch.full((config.num_embeddings, width), store.optimizer.initial_state)
        records.write(store, config.name, None, state)
    if saved.step is not None:
        store.last_step = saved.step
    if saved.lr is not None:
        module.fused_optimizer.param_groups[0]["lr"] = saved.lr
