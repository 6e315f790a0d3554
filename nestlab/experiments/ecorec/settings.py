"""How much each part of the study does, at the three scales."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nestlab.errors import UserError


@dataclass(frozen=True)
class Settings:
    """What every part is given. A part has `run(settings) -> DataFrame` and `plot(frame, title) -> Figure`.

    Attributes:
        dataset, data_root, seed, device, world_size: as the notebook's parameters; the data set is the one that is
            trained on.
        rows: of a real data set, None: all.
        twin_rows: of a synthetic twin.
        dim, rank: of tensor-train tables, where they are not what is varied.
        batches: of the redundancy and of the kernels, indices.
        counted: batches counted at most, a size.
        table_rows: of the table that kernels are timed on.
        at_batch: where ranks are varied.
        ranks: at that batch.
        kinds: of ids that kernels are timed with.
        repeats: rounds, in which what is compared takes turns.
        threads: of what is timed in one process; one is least disturbed by what else the machine does.
        slices: of the sorted rows.
        memory_indices: of the look-up whose memory is measured.
        whole_indices: of the look-up that is multiplied as one chunk, which takes most memory.
        forward_share: of the indices of table 1, of which a forward pass is timed.
        mixed: tables of which ever more are tensor trains; mixed_rows: of each of them, and of the ladder.
        placed: tables placed on `placed_on` ranks by measured cost.
        capacity: bytes of memory, the same for each kind of table; disk: bytes of disk below it.
        steps, step_batch: timed steps of the end-to-end model, samples of each.
        ladder_tables, ladder_batch, ladder_steps: of the pipeline's ladder.
        groups, slope: of the tables of a rank.
        exchange: what the emulated link is to need, of a step's computation.
        epochs, epoch_batch, epoch_ranks: of the trainings that are compared by quality.
    """

    dataset: str = "criteo"
    data_root: str = "datasets"
    seed: int = 0
    device: str = "cpu"
    world_size: int = 2
    rows: int | None = None
    twin_rows: int = 300_000
    dim: int = 64
    rank: int = 32
    batches: tuple[int, ...] = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
    counted: int = 9
    table_rows: int = 8_000_000
    at_batch: int = 16384
    ranks: tuple[int, ...] = (8, 16, 32, 64)
    kinds: tuple[str, ...] = ("ranked", "hashed", "uniform")
    repeats: int = 3
    threads: int = 1
    slices: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    memory_indices: int = 131072
    whole_indices: int = 16384
    forward_share: float = 1.0
    mixed: int = 30
    mixed_rows: int = 100_000
    placed: int = 100
    placed_on: int = 8
    capacity: int = 8 << 20
    disk: int = 64 << 20
    steps: int = 8
    step_batch: int = 4096
    ladder_tables: int = 12
    ladder_batch: int = 2048
    ladder_steps: int = 8
    groups: int = 4
    slope: float = 1.0
    exchange: float = 0.6
    epochs: int = 3
    epoch_batch: int = 2048
    epoch_ranks: tuple[int, ...] = (4, 16, 32)


SCALES = {
    "smoke": Settings(
        rows=8_000,
        twin_rows=8_000,
        batches=(512, 2048),
        counted=3,
        table_rows=100_000,
        at_batch=512,
        ranks=(8, 16),
        rank=16,
        kinds=("ranked", "uniform"),
        repeats=1,
        slices=(1, 2, 4),
        memory_indices=4096,
        whole_indices=512,
        forward_share=1 / 1024,
        mixed=6,
        mixed_rows=2000,
        placed=24,
        placed_on=4,
        capacity=1 << 20,
        disk=4 << 20,
        steps=3,
        step_batch=256,
        ladder_tables=6,
        ladder_batch=128,
        ladder_steps=3,
        groups=2,
        epochs=1,
        epoch_batch=256,
        epoch_ranks=(4,),
    ),
    "quick": Settings(rows=300_000),
    "paper": Settings(
        twin_rows=2_000_000,
        counted=33,
        ranks=(8, 16, 32, 64, 128),
        repeats=9,
        threads=2,
        slices=(1, 2, 4, 8, 16, 32, 64),
        mixed_rows=1_000_000,
        capacity=64 << 20,
        disk=512 << 20,
        steps=50,
        step_batch=8192,
        ladder_tables=24,
        ladder_batch=8192,
        ladder_steps=30,
        epochs=10,
        epoch_batch=2048,
        epoch_ranks=(4, 8, 16, 32, 64, 128),
    ),
}


def settings(scale: str, **changes) -> Settings:
    """The settings of a scale with some fields changed; those that are None or empty are not.

    Raises:
        UserError: no scale is called so, or there is no rank.
    """
    if scale not in SCALES:
        raise UserError(f"ecorec: scale={scale}: it must be one of {', '.join(SCALES)}")
    if changes.get("world_size", 1) < 1:
        raise UserError(f"ecorec: world_size={changes['world_size']}: it must be at least 1")
    return replace(SCALES[scale], **{name: value for name, value in changes.items() if value not in (None, "", 0)})
