"""Where a training stands, as a checkpoint holds it: a place in the data, and the curve up to it in tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nestlab.data import Position
from nestlab.training.dense_state import Tensors
from nestlab.training.history import History


@dataclass(frozen=True)
class State:
    """Where a training stands: `position` is that of the first batch not trained, `history` the curve up to it."""

    position: Position
    history: History


def curve_of(history: History) -> Tensors:
    """Losses and sizes of the steps, and each metric of the looks at held-out data."""
    losses = np.array([loss for _, loss, _ in history.losses], dtype=np.float64)
    samples = np.array([samples for _, _, samples in history.losses], dtype=np.int64)
    looks = {name: [look[name] for look in history.evaluations] for name in (history.evaluations or [{}])[0]}
    curve = {"curve.loss": losses, "curve.samples": samples}
    curve |= {f"look.{name}": np.array(values, dtype=np.float64) for name, values in looks.items()}
    return {name: torch.from_numpy(values) for name, values in curve.items()}


def state_of(content: Mapping[str, Any], tensors: Tensors) -> State:
    """From what `curve_of` gave, and `position`, `looks`, `train_seconds` and `samples` of the content."""
    losses, samples = tensors["curve.loss"].tolist(), tensors["curve.samples"].tolist()
    history = History(
        losses=[(i + 1, loss, size) for i, (loss, size) in enumerate(zip(losses, samples, strict=True))],
        evaluations=_looks({name: tensors[f"look.{name}"] for name in content["looks"]}),
        before=len(losses),
        train_seconds=content["train_seconds"],
        samples=content["samples"],
    )
    return State(Position(**content["position"]), history)


def _looks(columns: Mapping[str, Tensor]) -> list[dict[str, float]]:
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    looks = [dict(zip(columns, row, strict=True)) for row in rows]
    return [{**look, "step": int(look["step"])} for look in looks]
