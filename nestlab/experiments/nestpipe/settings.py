"""How much each part of the study does, at the three scales."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nestlab.errors import UserError


@dataclass(frozen=True)
class Settings:
    """What every part and every rank is given.

    Attributes:
        dataset, data_root, seed, device, world_size: as the notebook's parameters.
        rows: of real data sets and twins, None: all.
        batch_size: samples a rank and step.
        dim, layers: of the tables, and of the dense part.
        micro_batches: N of the ablation.
        warm, steps, after: batches before the traced ones, traced, and behind them (so that the last one prefetches).
        rounds: how often the ablation's rows take turns.
        sweep: the N that are tried.
        dims, depths: what is varied of the model.
        exchange, retrieval: what the emulated links are to need, of a step's computation: row and gradient exchange
            over the network, retrieval over the link between host and device.
        save_steps: of the training that is killed.
        clustered: batches, spread over the training split, on which clustering rules are compared.
        torchrec: its pipelines are in the table, where it is installed.
    """

    dataset: str = "kuairand"
    data_root: str = "datasets"
    seed: int = 0
    device: str = "cpu"
    world_size: int = 2
    rows: int | None = None
    batch_size: int = 2048
    dim: int = 128
    layers: int = 4
    micro_batches: int = 8
    warm: int = 3
    steps: int = 5
    after: int = 4
    rounds: int = 2
    sweep: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    dims: tuple[int, ...] = (64, 128, 256)
    depths: tuple[int, ...] = (2, 4, 8)
    exchange: float = 0.6
    retrieval: float = 0.4
    save_steps: int = 60
    clustered: int = 8
    torchrec: bool = True

    @property
    def batches(self) -> int:
        """Of one training."""
        return self.warm + self.steps + self.after


SCALES = {
    "smoke": Settings(
        rows=20_000,
        batch_size=256,
        dim=32,
        layers=2,
        micro_batches=4,
        warm=2,
        steps=5,
        after=3,
        rounds=1,
        sweep=(1, 4),
        dims=(16, 32),
        depths=(2, 4),
        save_steps=40,
        clustered=2,
    ),
    "quick": Settings(rows=200_000),
    "paper": Settings(
        batch_size=4096,
        dim=128,
        layers=8,
        steps=30,
        rounds=5,
        sweep=(1, 2, 4, 8, 16, 32, 64),
        dims=(512, 768, 1024),
        depths=(2, 4, 8),
        save_steps=200,
        clustered=16,
    ),
}


def settings(scale: str, **changes) -> Settings:
    """The settings of a scale with some fields changed; those that are None or empty are not.

    Raises:
        UserError: no scale is called so, or there is no rank.
    """
    if scale not in SCALES:
        raise UserError(f"nestpipe: scale={scale}: it must be one of {', '.join(SCALES)}")
    if changes.get("world_size", 1) < 1:
        raise UserError(f"nestpipe: world_size={changes['world_size']}: it must be at least 1")
    return replace(SCALES[scale], **{name: value for name, value in changes.items() if value not in (None, "", 0)})
