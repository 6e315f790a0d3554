"""How torch.optim and torchrec's fused optimizers write down the state of a row optimizer, read and written.

What they hold of a table of N rows and D columns (looked at in torch 2.13, torchrec 1.8, fbgemm 1.8):

| row optimizer | torch.optim's state | fbgemm's, in torchrec's fused optimizers |
|---|---|---|
| SGD | nothing that counts | nothing |
| Adagrad | step, sum [N, D] | momentum_1 [N, D] |
| RowWiseAdagrad (torchrec.optim's) | step, sum [N, 1] | momentum_1 [N] |
| LazyAdam (torch.optim.SparseAdam) | step, exp_avg, exp_avg_sq [N, D] | momentum_1, momentum_2 [N, D]; no step |

`FusedEmbeddingBagCollection` calls them `<table>.weight` → `<table>.weight.momentum_1`; sharded modules
`<path>.<table>.weight` → `<table>.momentum1`, `<table>.exp_avg_sq`. All are read; the first is what is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nestlab.embedding import RowOptimizer
from nestlab.errors import UserError

if TYPE_CHECKING:
    from torchrec.modules.embedding_configs import BaseEmbeddingConfig

_PARTS = {  # of a record's state, in its order, by all their names; fbgemm's is the second
    "sgd": (),
    "adagrad": (("sum", "momentum_1", "momentum1"),),
    "rowwise_adagrad": (("sum", "momentum_1", "momentum1"),),
    "lazy_adam": (("exp_avg", "momentum_1", "momentum1"), ("exp_avg_sq", "momentum_2", "momentum2")),
}
_STEP = ("step", "iter")


@dataclass(frozen=True)
class Saved:
    """What a state dict says.

    Attributes:
        states: [N, s] a table, in the order of the record; None where the optimizer never touched the table.
        step: steps made; None where it does not say.
        lr: of the tables; None where it does not say, or of several minds.
    """

    states: dict[str, Tensor | None]
    step: int | None
    lr: float | None


def find(values: Mapping[str, Any], ends: Sequence[str], what: str) -> Any:
    """The value whose key is one of `ends`, or ends so after a dot.

    Raises:
        UserError: there is none, or more than one.
    """
    keys = [key for key in values if any(key == end or str(key).endswith("." + end) for end in ends)]
    if len(keys) != 1:
        raise UserError(
            f"{what}: {len(keys)} keys end in {ends[0]}, there must be one; give the state of one collection"
        )
    return values[keys[0]]


def plain(table: str, what: str, values: Any, expected: Sequence[tuple[int, ...]]) -> Tensor:
    """`values`, a plain tensor of one of the shapes, in the first of them.

    Raises:
        UserError: it is not.
    """
    if type(values) not in (Tensor, torch.nn.Parameter):
        raise UserError(f"table '{table}': {what} is a {type(values).__name__}; gather it to a plain tensor first")
    if tuple(values.shape) not in expected:
        raise UserError(f"table '{table}': {what} is {list(values.shape)}; its configuration says {list(expected[0])}")
    return values.detach().reshape(expected[0])


def read(
    saved: Mapping[str, Any],
    configs: Sequence[BaseEmbeddingConfig],
    prefix: str,
    optimizer: RowOptimizer,
    parameters: Sequence[str] | None,
    step: int | None,
) -> Saved:
    """Reads the state dict of an optimizer; arguments as in `tiered_state.import_state`."""
    state, groups = saved.get("state", saved), list(saved.get("param_groups", []))
    keys = {config.name: f"{prefix}.{config.name}.weight" for config in configs}
    if groups and all(isinstance(number, int) for group in groups for number in group["params"]):
        names = _names(groups, list(keys.values()), parameters)
        known = {names[number]: entries for number, entries in state.items()}
        state = {**{name: {} for name in names}, **known}
        groups = [{**group, "params": [names[number] for number in group["params"]]} for group in groups]
    states: dict[str, Tensor | None] = {}
    steps: list[int] = []
    for config in configs:
        entries = {}
        if _PARTS[optimizer.name]:
            entries = find(state, [keys[config.name], f"{config.name}.weight"], "the optimizer's state")
        states[config.name] = _state(config, entries, optimizer, steps)
    step = _step(groups, steps, optimizer) if step is None else step
    return Saved(states, step, _lr(groups, list(keys.values())))


def _names(groups: list, tables: list[str], parameters: Sequence[str] | None) -> list[str]:
    """Names of an optimizer's numbered parameters: those given, its own, or the tables if it has nothing else."""
    numbers = [number for group in groups for number in group["params"]]
    if parameters is None and all("param_names" in group for group in groups):
        parameters = [name for group in groups for name in group["param_names"]]
    names = tables if parameters is None else list(parameters)
    if len(names) != len(numbers):
        raise UserError(
            f"the optimizer has {len(numbers)} numbered parameters, and {len(names)} names for them; give "
            "parameters=[name for name, _ in model.named_parameters()]"
        )
    return names


def _state(config: BaseEmbeddingConfig, entries: Mapping, optimizer: RowOptimizer, steps: list[int]) -> Tensor | None:
    parts, found = _PARTS[optimizer.name], {}
    for key, value in entries.items():
        name = str(key).rsplit(".", 1)[-1]
        part = next((i for i, names in enumerate(parts) if name in names), None)
        if name in _STEP:
            steps.append(int(value))
        elif part is None:
            raise UserError(f"table '{config.name}': the optimizer's state has '{key}', which {optimizer.name} has not")
        else:
            found[part] = plain(config.name, str(key), value, _shapes(config, optimizer, len(parts)))
    if entries and len(found) != len(parts):
        raise UserError(
            f"table '{config.name}': the state of {optimizer.name} has {len(parts)} parts, not {len(found)}"
        )
    return torch.cat([found[i] for i in range(len(parts))], dim=1) if found else None


def _shapes(config: BaseEmbeddingConfig, optimizer: RowOptimizer, parts: int) -> list[tuple[int, ...]]:
    rows, width = config.num_embeddings, optimizer.state_width(config.embedding_dim) // parts
    return [(rows, width)] + ([(rows,)] if width == 1 else [])


def _step(groups: list, steps: list[int], optimizer: RowOptimizer) -> int | None:
    if optimizer.name == "lazy_adam" and len(set(steps)) > 1:
        raise UserError(f"tables of {steps} steps each; LazyAdam counts one number of steps for all: give step=")
    return max(steps, default=groups[0].get("nestlab_step") if groups else None)


def _lr(groups: list, tables: list[str]) -> float | None:
    def of_tables(group: Mapping) -> bool:
        return any(p == t or str(p).endswith("." + t) for p in group["params"] for t in tables)

    rates = {float(group["lr"]) for group in groups if "lr" in group and of_tables(group)}
    return rates.pop() if len(rates) == 1 else None


def fused(states: Mapping[str, Tensor], keys: Sequence[str], optimizer: RowOptimizer, lr: float, step: int) -> dict:
    """As FusedEmbeddingBagCollection's optimizer has it; the group adds what it leaves out, the step number."""
    entries = {
        f"{table}.weight": {
            f"{table}.weight.{names[1]}": part.view(-1) if optimizer.name == "rowwise_adagrad" else part
            for names, part in _split(state, optimizer)
        }
        for table, state in states.items()
        if state.shape[1]
    }
    return {"state": entries, "param_groups": [{"params": list(keys), "lr": lr, "nestlab_step": step}]}


def torch_optim(states: Mapping[str, Tensor], optimizer: RowOptimizer, lr: float, step: int) -> dict:
    """As an optimizer of torch.optim (RowWiseAdagrad: torchrec.optim's) over the tables has it."""
    group = _peer(optimizer, lr).state_dict()["param_groups"][0]
    number = step if optimizer.name == "lazy_adam" else torch.tensor(float(step))
    entries = {
        i: {"step": number if isinstance(number, int) else number.clone(), **{n[0]: p for n, p in parts}}
        for i, parts in enumerate(_split(state, optimizer) for state in states.values())
        if parts
    }
    return {"state": entries, "param_groups": [{**group, "params": list(range(len(states)))}]}


def _split(state: Tensor, optimizer: RowOptimizer) -> list[tuple[tuple[str, ...], Tensor]]:
    """The parts of a state [N, s] with their names; a part one wide is [N, 1] here."""
    parts = _PARTS[optimizer.name]
    return list(zip(parts, (p.contiguous() for p in state.chunk(max(len(parts), 1), dim=1)), strict=False))


def _peer(optimizer: RowOptimizer, lr: float) -> torch.optim.Optimizer:
    """The optimizer of torch that does the same, over nothing that counts."""
    from torchrec.optim import RowWiseAdagrad

    nothing = [torch.nn.Parameter(torch.zeros(1, 1))]
    match optimizer.name:
        case "sgd":
            return torch.optim.SGD(nothing, lr=lr)
        case "adagrad":
            start = optimizer.initial_accumulator
            return torch.optim.Adagrad(nothing, lr=lr, eps=optimizer.eps, initial_accumulator_value=start)
        case "rowwise_adagrad":
            return RowWiseAdagrad(nothing, lr=lr, eps=optimizer.eps)
        case _:
            return torch.optim.SparseAdam(nothing, lr=lr, betas=optimizer.betas, eps=optimizer.eps)
