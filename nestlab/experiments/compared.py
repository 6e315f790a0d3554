"""What is compared with the plain loop: each technique alone or nested, exact ones first."""

from __future__ import annotations

from nestlab.experiments.nestpipe.cases import BOTH, DBP, DEPTH, NESTPIPE, Case, fwp, groups_of
from nestlab.techniques import Techniques

PLAIN, STALE, TWO_D, INT8, TT = "plain", "stale", "2D-SP", "int8", "TT items"
REFERENCE = Case(PLAIN, Techniques())


def exact(parts: int) -> list[Case]:
    """The techniques that only move work; the first one keeps every sum, the others cut a batch in `parts`."""
    return [
        Case("DBP", DBP),
        Case("FWP", fwp(parts)),
        Case(BOTH, fwp(parts, on=DBP)),
        Case(NESTPIPE, fwp(parts, "greedy", DBP)),
    ]


def inexact(world_size: int, tt_rank: int) -> list[Case]:
    """The techniques that are declared to change what is learnt; those between ranks where there are several."""
    found = [Case(STALE, Techniques(staleness=1, pipeline_depth=DEPTH))]
    if world_size > 1:
        found.append(Case(TWO_D, Techniques(replica_groups=groups_of(world_size))))
        found.append(Case(INT8, Techniques(quantise="int8")))
    return [*found, Case(TT, Techniques(table_kind="tt", tt_rank=tt_rank))]


def reordered(case: Case) -> bool:
    """Whether its sums stand in another order than the plain loop's."""
    return case.flags.micro_batches > 1


def in_float64(parts: int) -> list[Case]:
    """What is trained in float64 too: exact, in another order of sums. FWP alone adds those that it adds under DBP."""
    return [case for case in exact(parts) if reordered(case) and case.flags.pipeline_depth > 1]
