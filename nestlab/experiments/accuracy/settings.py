"""How much the study does, at the three scales, and the recipe of its models."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nestlab.errors import UserError
from nestlab.models.sequence.building import TEMPERATURE

ENCODERS = {"sasrec": "SASRec", "hstu": "HSTU", "fuxi": "FuXi-α"}  # by parameter, in the order in which they are shown
METRICS = ("HR@10", "HR@50", "NDCG@10", "NDCG@50", "MRR")
CONSISTENCY = METRICS[:4]  # those of the systems' papers


@dataclass(frozen=True)
class Settings:
    """What every part and every rank is given.

    The recipe (from `history` to `dense_lr`) was chosen on a validation split: the newest part of the *training*
    events, not by what is held out. See `tuning`.

    Attributes:
        dataset, data_root, seed, device, world_size: as the notebook's parameters.
        model: `hstu`, `fuxi` or `sasrec`: what the techniques are compared with; the others are trained plainly.
        rows: of real data sets and twins, None: all.
        heldout: samples ranked at most, the first of them; None: all.
        later: `all` events of a user behind the border are ranked, each after everything before it, or the `first`
            alone; see `SequenceOptions.heldout`. At scale `paper` the first: of 27K the others are too many.
        seeds: trainings of each kind: start weights, order of samples and negatives by seed, seed + 1, …
        exact_seeds: of them, those in which the exact techniques are trained, with their micro-batches in order too and
            all over again in float64, and the encoders that are neither SASRec nor `model`.
        history: events of a window, at most.
        dim, blocks, heads: of the tables and encoders.
        temperature: of the sampled softmax.
        negatives: a sample.
        batch_size: samples a step, over all ranks.
        epochs: over the training windows.
        lr, dense_lr: of the tables' row-wise Adagrad, and of Adam on the dense part.
        micro_batches: N of FWP.
        tt_rank: of the item table as a tensor train.
    """

    dataset: str = "kuairand"
    model: str = "hstu"
    data_root: str = "datasets"
    seed: int = 0
    device: str = "cpu"
    world_size: int = 2
    rows: int | None = None
    heldout: int | None = None
    later: str = "all"
    seeds: int = 3
    exact_seeds: int = 1
    history: int = 50
    dim: int = 64
    blocks: int = 2
    heads: int = 2
    temperature: float = TEMPERATURE
    negatives: int = 128
    batch_size: int = 256
    epochs: int = 3
    lr: float = 0.3
    dense_lr: float = 0.001
    micro_batches: int = 2
    tt_rank: int = 16


SCALES = {
    "smoke": Settings(
        rows=3_000,
        heldout=100,
        seeds=1,
        exact_seeds=1,
        history=12,
        dim=8,
        blocks=1,
        negatives=16,
        epochs=1,
        batch_size=64,
    ),
    "quick": Settings(rows=300_000, heldout=30_000),
    "paper": Settings(later="first", seeds=5, exact_seeds=5, history=200, epochs=10, micro_batches=8),
}


def settings(scale: str, **changes) -> Settings:
    """The settings of a scale with some fields changed; those that are None or empty are not.

    Raises:
        UserError: no scale or model is called so, or there is no rank.
    """
    if scale not in SCALES:
        raise UserError(f"accuracy: scale={scale}: it must be one of {', '.join(SCALES)}")
    if changes.get("model", "hstu") not in ENCODERS:
        raise UserError(f"accuracy: model={changes['model']}: it must be one of {', '.join(ENCODERS)}")
    if changes.get("world_size", 1) < 1:
        raise UserError(f"accuracy: world_size={changes['world_size']}: it must be at least 1")
    return replace(SCALES[scale], **{name: value for name, value in changes.items() if value not in (None, "", 0)})
