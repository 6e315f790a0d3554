"""How much the study does, at the three scales, and the recipe of its models."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nestlab.errors import UserError
from nestlab.models.ranking import RANKING

DLRM = "dlrm"
# By name, in the order in which they are shown.
MODELS = {DLRM: "DLRM", **{name: kind.title for name, kind in RANKING.items()}}
MULTITASK = "multitask"  # what the techniques are compared with


@dataclass(frozen=True)
class Settings:
    """What every rank is given.

    The recipe (from `history` to `dense_lr`) was chosen on the newest part of the *training* rows, never on what is
    held out. See `tuning`.

    Attributes:
        dataset, data_root, seed, device, world_size: as the notebook's parameters.
        rows: of real data sets and twins, None: all.
        seeds: trainings of each kind: start weights and order of samples by seed, seed + 1, …
        exact_seeds: of them, those whose exact techniques are trained all over again in float64.
        history: events before a sample, at most.
        dim: of all tables and vectors.
        batch_size: samples a step, over all ranks.
        epochs: over the training rows.
        lr, dense_lr: of the tables' row-wise Adagrad, and of Adam on the dense part.
        micro_batches: N of FWP.
    """

    dataset: str = "kuairand"
    data_root: str = "datasets"
    seed: int = 0
    device: str = "cpu"
    world_size: int = 2
    rows: int | None = None
    seeds: int = 3
    exact_seeds: int = 1
    history: int = 50
    dim: int = 16
    batch_size: int = 512
    epochs: int = 1
    lr: float = 0.1
    dense_lr: float = 0.001
    micro_batches: int = 2


SCALES = {
    "smoke": Settings(rows=1_500, seeds=1, history=8, dim=4, batch_size=300),
    "quick": Settings(rows=300_000),
    "paper": Settings(seeds=5, exact_seeds=5, history=200, micro_batches=8),
}


def settings(scale: str, **changes) -> Settings:
    """The settings of a scale with some fields changed; those that are None or empty are not.

    Raises:
        UserError: no scale is called so, or there is no rank.
    """
    if scale not in SCALES:
        raise UserError(f"ranking: scale={scale}: it must be one of {', '.join(SCALES)}")
    if changes.get("world_size", 1) < 1:
        raise UserError(f"ranking: world_size={changes['world_size']}: it must be at least 1")
    return replace(SCALES[scale], **{name: value for name, value in changes.items() if value not in (None, "")})
