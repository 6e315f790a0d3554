"""How much each part of the study does, at the three scales."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nestlab.errors import UserError


@dataclass(frozen=True)
class Settings:
    """What every part is given.

    Attributes:
        dataset, data_root, seed, device: as the notebook's parameters.
        rows: of real data sets and twins, None: all.
        batch_size: samples a batch.
        steps: of a training that is only timed or counted.
        seconds: about as long as one part may take on two cores.
    """

    dataset: str = "kuairand"
    data_root: str = "datasets"
    seed: int = 0
    device: str = "cpu"
    rows: int | None = None
    batch_size: int = 256
    steps: int = 200
    seconds: float = 30.0


SCALES = {
    "smoke": Settings(rows=20_000, steps=24, seconds=3.0),
    "quick": Settings(rows=200_000, steps=200, seconds=20.0),
    "paper": Settings(rows=None, steps=2_000, seconds=300.0),
}


def settings(scale: str, **changes) -> Settings:
    """The settings of a scale with some fields changed; those that are None or empty are not.

    Raises:
        UserError: no scale is called so.
    """
    if scale not in SCALES:
        raise UserError(f"two_tier: scale={scale}: it must be one of {', '.join(SCALES)}")
    return replace(SCALES[scale], **{name: value for name, value in changes.items() if value not in (None, "", 0)})
