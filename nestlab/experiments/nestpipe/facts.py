"""What a trace shows of the mechanisms: the order of the stages, batches in flight, exchanges in a window, overlap."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from nestlab.experiments.nestpipe.links import ROWS
from nestlab.pipeline.builders import build
from nestlab.techniques import Techniques
from nestlab.tracing import COMPUTE, Event, Trace
from nestlab.tracing.summary import busy, length, overlap, union

# The five of the article, by the stage that opens each. Keys are routed from host memory, so that H2D may run beside.
FIVE = ("LOAD", "H2D", "ROUTE", "PREPARE", "FORWARD")
_CHAINS = (("LOAD", "ROUTE", "PREPARE", "FORWARD"), ("LOAD", "H2D", "FORWARD"))


def look_ahead(techniques: Techniques) -> dict[str, int]:
    """How many batches ahead of the computed one each of the five stages works, by the schedule, which is validated."""
    entries = build(techniques).entries
    return {stage: max(entry.ahead for entry in entries if entry.stage == stage) for stage in FIVE}


def in_flight(trace: Trace, rank: int = 0) -> int:
    """The most batches that were between their LOAD and their UPDATE at one moment."""
    begun = {e.batch: e.start_ns for e in trace.of_rank(rank) if e.stage == "LOAD"}
    ended = {e.batch: e.end_ns for e in trace.of_rank(rank) if e.stage == "UPDATE"}
    known = [batch for batch in begun if batch in ended]
    return max((sum(begun[b] <= at < ended[b] for b in known) for at in (begun[b] for b in known)), default=0)


def stages_in_order(trace: Trace) -> bool:
    """Whether every batch went through the five stages in their order, on every rank."""
    starts: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    for event in trace.events:
        if event.stage in FIVE:
            mine = starts[event.rank, event.batch]
            mine[event.stage] = min(event.start_ns, mine.get(event.stage, event.start_ns))
    whole = [mine for mine in starts.values() if len(mine) == len(FIVE)]
    chains = [[mine[stage] for stage in chain] for mine in whole for chain in _CHAINS]
    return bool(chains) and all(times == sorted(times) for times in chains)


def stage_five_in_order(trace: Trace) -> bool:
    """Whether rows came before the forward pass of their micro-batch, gradients left after its backward pass, and the
    update followed all of them and the dense reduce; in every batch of every rank."""
    seen = {event.key: event for event in trace.events}
    checked = 0
    for update in (event for event in trace.events if event.stage == "UPDATE"):
        parts = [e for e in trace.events if (e.rank, e.batch) == (update.rank, update.batch) and e.part >= 0]
        reduced = seen.get((update.rank, "DENSE_REDUCE", update.batch, -1))
        if reduced is None or {e.stage for e in parts} != {*ROWS, "FORWARD", "BACKWARD"}:
            continue  # cut off by the window
        chains = _by_part(parts).values()
        held = all(_follow(c["EMB_EXCHANGE"], c["FORWARD"], c["BACKWARD"], c["GRAD_EXCHANGE"], update) for c in chains)
        if not (held and _follow(reduced, update)):
            return False
        checked += 1
    return checked > 0


def exchanges_a_part(trace: Trace, parts: int) -> float:
    """Row and gradient exchanges of a batch over its micro-batches."""
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for event in trace.events:
        counts[event.rank, event.batch] += event.stage in ROWS
    whole = [
        n for key, n in counts.items() if any(e.stage == "UPDATE" and (e.rank, e.batch) == key for e in trace.events)
    ]
    return sum(whole) / len(whole) / parts if whole else float("nan")


def overlapped_share(trace: Trace) -> float:
    """Of the time of row and gradient exchanges the part in which the same rank computed."""
    total = shared = 0
    for rank in trace.ranks:
        exchange = union((e.start_ns, e.end_ns) for e in trace.of_rank(rank) if e.stage in ROWS)
        total += length(exchange)
        shared += overlap(exchange, busy(trace, rank, COMPUTE)) if exchange else 0
    return shared / total if total else float("nan")


def windows_that_overlap(trace: Trace) -> float:
    """Of all pairs of neighbouring micro-batches the share in which rows of the later one came, and gradients of the
    earlier one left, while the other of the two was computed."""
    pairs = held = 0
    parts: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in trace.events:
        if event.part >= 0:
            parts[event.rank, event.batch].append(event)
    for chains in map(_by_part, parts.values()):
        for i in range(len(chains) - 1):
            here, there = chains.get(i, {}), chains.get(i + 1, {})
            if {*ROWS, "FORWARD", "BACKWARD"} <= {*here} & {*there}:
                pairs += 1
                held += _meets(there["EMB_EXCHANGE"], here) and _meets(here["GRAD_EXCHANGE"], there)
    return held / pairs if pairs else float("nan")


def _meets(exchange: Event, computed: dict[str, Event]) -> bool:
    """Whether an exchange ran at some moment between begin and end of a micro-batch's computation."""
    return exchange.start_ns < computed["BACKWARD"].end_ns and exchange.end_ns > computed["FORWARD"].start_ns


def _by_part(events: list[Event]) -> dict[int, dict[str, Event]]:
    found: dict[int, dict[str, Event]] = defaultdict(dict)
    for event in events:
        found[event.part][event.stage] = event
    return found


def _follow(*events: Event) -> bool:
    return all(a.end_ns <= b.start_ns for a, b in pairwise(events))
