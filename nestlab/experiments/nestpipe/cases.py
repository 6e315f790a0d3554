"""The rows of the ablation: which techniques are on, and what each row is compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nestlab.pipeline.builders import build
from nestlab.pipeline.schedule import Schedule
from nestlab.pipeline.shape import Shape
from nestlab.techniques import Techniques

DEPTH = 5  # batches in flight, as in the article
BASE = Techniques(device_tier="dual_buffer")
DBP = replace(BASE, pipeline_depth=DEPTH)

NONE, BOTH, NESTPIPE = "none", "DBP + FWP", "DBP + FWP + greedy"


@dataclass(frozen=True)
class Case:
    """One way to train.

    Attributes:
        name: in tables.
        flags: the techniques.
        in_order: its micro-batches one after the other, nothing overlaps: what it is compared with, bit by bit.
    """

    name: str
    flags: Techniques
    in_order: bool = False

    @property
    def overlaps(self) -> bool:
        return not self.in_order and (self.flags.pipeline_depth > 1 or self.flags.micro_batches > 1)

    @property
    def exact(self) -> bool:
        return self.flags.exactness().startswith("exact")

    @property
    def schedule(self) -> Schedule | None:
        """Where it does not follow from the flags."""
        if not self.in_order:
            return None
        return build(replace(Shape.of(self.flags), depth=1, in_order=True))

    def serial(self) -> Case:
        """The same micro-batches without any overlap, look-ahead or device tier."""
        flags = Techniques(micro_batches=self.flags.micro_batches, clustering=self.flags.clustering)
        return Case(f"{self.name}, in order", flags, in_order=True)


def fwp(parts: int, clustering: str = "none", on: Techniques = BASE) -> Techniques:
    """With N = 1 there is no window, and nothing to cluster."""
    return replace(on, micro_batches=parts, clustering=clustering if parts > 1 else "none")


def ablation(parts: int, world_size: int) -> list[Case]:
    """Each row adds one technique to the one before or stands for itself; the plain loop first."""
    full = fwp(parts, "greedy", DBP)
    found = [
        Case(NONE, BASE),
        Case("DBP", DBP),
        Case("FWP", fwp(parts)),
        Case(BOTH, fwp(parts, on=DBP)),
        Case("DBP + FWP + kmeans", fwp(parts, "kmeans", DBP)),
        Case(NESTPIPE, full),
        Case(f"{NESTPIPE} + int8", replace(full, quantise="int8")),
    ]
    if world_size > 1:
        found.append(Case(f"{NESTPIPE} + 2D", replace(full, replica_groups=groups_of(world_size))))
    return [*found, Case("stale", Techniques(staleness=1, pipeline_depth=DEPTH))]


def groups_of(world_size: int) -> int:
    """Replica groups of 2D sparse parallelism: the fewest that divide the ranks."""
    return next(n for n in range(2, world_size + 1) if world_size % n == 0)


# The plain loop without a device tier: what results are compared with.
REFERENCE = Case("plain", Techniques())
