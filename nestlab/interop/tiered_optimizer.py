"""The handle on the row optimizer of a tiered module, as torchrec's fused modules have one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torchrec.optim.fused import FusedOptimizer

from nestlab.errors import UserError


class TieredOptimizer(FusedOptimizer):
    """Steps happen inside backward: `step` and `zero_grad` do nothing.

    The learning rate is that of `param_groups[0]["lr"]` when the gradient arrives: schedulers of torch and plain
    assignments take effect at the next backward.

    `state_dict` and `load_state_dict` are those of torchrec's fused optimizers; see `nestlab.interop.tiered_state`.
    """

    def __init__(self, module: Any, lr: float) -> None:
        # Not the base's: it wants every row's state as a tensor, now.
        self._optimizer_step_pre_hooks: dict = OrderedDict()
        self._optimizer_step_post_hooks: dict = OrderedDict()
        self._module = module
        self.params: dict = {}
        self.defaults: dict[str, Any] = {"_save_param_groups": False}
        self.param_groups: list[dict[str, Any]] = [{"params": [], "lr": lr}]

    @property
    def lr(self) -> float:
        return float(self.param_groups[0]["lr"])

    @property
    def state(self) -> dict:
        """Refused: rows and their states lie in the store, and a copy would be taken for them."""
        raise UserError(
            "the states of rows are in the tables; use fused_optimizer.state_dict(), or export_state(module)"
        )

    def step(self, closure: Any = None) -> None:
        pass

    def zero_grad(self, set_to_none: bool = False) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        from nestlab.interop.tiered_state import export_state

        return export_state(self._module).optimizer

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        from nestlab.interop.tiered_state import import_optimizer

        import_optimizer(self._module, state_dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._module.store.optimizer}, lr={self.lr})"
