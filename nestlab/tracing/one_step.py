"""One step of a trace as text: what ran on which lane and when, and what kept the compute lane idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from nestlab.tracing.breakdown import Breakdown
from nestlab.tracing.exposed import OVERHEAD, Stretch, exposed_stretches
from nestlab.tracing.stages import COMMUNICATION
from nestlab.tracing.trace import COMPUTE, NS_PER_MS, WHOLE, Event, Step, Trace

_HEADER = ("lane", "stage", "batch", "part", "start", "end", "dur", "exposed", "compute idle", "bytes")
_LEFT = ("lane", "stage", "compute idle")  # words; the other columns are numbers


@dataclass(frozen=True)
class OneStep:
    """A step's span, what ran in it, and the compute lane's idle time in it.

    Attributes:
        step: from the end of the batch before to the end of its own last compute action.
        chosen: why this one, in words.
        events: what ran in the span, whichever batch it is for; times are whole, even where they reach beyond it.
        stretches: the compute lane's idle time, cut to the span.
    """

    step: Step
    chosen: str
    events: tuple[Event, ...]
    stretches: tuple[Stretch, ...]
    compute_lane: str

    @property
    def duration_ns(self) -> int:
        return self.step.end_ns - self.step.start_ns

    def idle_ns(self) -> dict[str, int]:
        """Idle time of the compute lane by the stage it is charged to, the longest first."""
        charged: dict[str, int] = defaultdict(int)
        for stretch in self.stretches:
            charged[stretch.stage] += stretch.duration_ns
        return dict(sorted(charged.items(), key=lambda item: -item[1]))


def find_step(trace: Trace, batch: int | None = None, rank: int | None = None, lane: str = COMPUTE) -> OneStep:
    """The step of a batch; without one, the step of median duration (never the first, whose begin is not known).

    Raises:
        LookupError: the trace has no such rank or batch, or no step at all; the message says what there is.
    """
    if not trace.ranks:
        raise LookupError("the trace has no event")
    rank = trace.ranks[0] if rank is None else rank
    if rank not in trace.ranks:
        raise LookupError(f"no rank {rank}: the trace has {', '.join(map(str, trace.ranks))}")
    steps = trace.step_spans(rank, lane)
    if not steps:
        raise LookupError(f"rank {rank} has no event on the lane '{lane}'")
    if batch is None:
        step, chosen = _median(steps)
    else:
        found = [step for step in steps if step.batch == batch]
        if not found:
            raise LookupError(f"no step {batch}: the trace has steps {steps[0].batch} to {steps[-1].batch}")
        step, chosen = found[0], "as asked"
    return _in_span(trace, step, chosen, lane)


def _median(steps: list[Step]) -> tuple[Step, str]:
    whole = steps[1:] or steps
    by_duration = sorted(whole, key=lambda step: (step.end_ns - step.start_ns, step.batch))
    number = f"of {len(whole)} steps" if len(whole) > 1 else "the only one"
    return by_duration[(len(whole) - 1) // 2], f"the median {number}"


def _in_span(trace: Trace, step: Step, chosen: str, lane: str) -> OneStep:
    one = trace.only(step.rank)
    begin, end = step.start_ns, step.end_ns
    events = [e for e in one.events if e.start_ns < end and (e.end_ns > begin or e.start_ns >= begin)]
    stretches = [
        s._replace(start_ns=max(s.start_ns, begin), end_ns=min(s.end_ns, end))
        for s in exposed_stretches(one, lane)
        if s.start_ns < end and s.end_ns > begin
    ]
    return OneStep(step, chosen, tuple(events), tuple(stretches), lane)


def as_text(one: OneStep, meta: dict, ranks: Sequence[Breakdown] = ()) -> str:
    """The step as lines of about 100 columns: a head, a row an action, the sum, and the same step of other ranks.

    `ranks`: of a merged trace, the step's `breakdowns`, one a rank.
    """
    head = [
        f"step {one.step.batch}, rank {one.step.rank}: {_ms(one.duration_ns)} ms ({one.chosen})",
        f"schedule {meta.get('schedule') or 'not named'} · {meta.get('dataset') or 'data set not named'}"
        f" · {meta.get('how') or 'how obtained: not stated'}",
        "times in ms since the step began; 'compute idle' is when the compute lane stood still for the action",
    ]
    others = ["", *_ranks(ranks, meta)] if len(ranks) > 1 else []
    return "\n".join([*head, "", *_table(one), "", *_sum(one), *others])


def _table(one: OneStep) -> list[str]:
    return _aligned([_HEADER, *(_row(one, event) for event in one.events)])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of the rows, the first of which names the columns."""
    header = rows[0]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for cell, width, name in zip(row, widths, header, strict=True)
        ).rstrip()
        for row in rows
    ]


def _ranks(ranks: Sequence[Breakdown], meta: dict) -> list[str]:
    """The step on every rank, in ms; how well the clocks agree, where somebody measured it."""
    header = ("rank", "step", "compute", "look-up", "comm", "loader", "other", "for peers")
    rows = [(str(each.rank), *map(_ms, _times(each))) for each in ranks]
    errors = [clock.get("error_ns", 0) for clock in meta.get("clocks", {}).values()]
    known = f"; clocks agree to ± {max(errors) / 1000:.0f} µs" if errors else ""
    title = f"the step on every rank, in ms: compute, and idle for … ('for peers' is contained in the others){known}"
    return [title, *_aligned([header, *rows])]


def _times(part: Breakdown) -> tuple[int, ...]:
    idle = ("lookup",), COMMUNICATION, ("loader",), ("overhead", "other")
    return part.span, part.compute, *(part.exposed_of(*groups) for groups in idle), part.exposed_waiting


def _row(one: OneStep, event: Event) -> tuple[str, ...]:
    charged = [s for s in one.stretches if s.cause is not None and s.cause.key == event.key]
    start = one.step.start_ns
    return (
        event.lane,
        event.stage,
        str(event.batch),
        "" if event.part == WHOLE else str(event.part),
        _ms(event.start_ns - start),
        _ms(event.end_ns - start),
        _ms(event.duration_ns),
        _ms(sum(s.duration_ns for s in charged)) if charged else "",
        _whens(charged, start),
        f"{event.nbytes:,}" if event.nbytes else "",
    )


def _whens(charged: list[Stretch], start_ns: int) -> str:
    """The first stretch of idle time and what waited; the number of further ones."""
    if not charged:
        return ""
    first = charged[0]
    waiting = f" → {first.waiting.stage}" if first.waiting else ""
    more = f" +{len(charged) - 1}" if len(charged) > 1 else ""
    return f"{_ms(first.start_ns - start_ns)}–{_ms(first.end_ns - start_ns)}{waiting}{more}"


def _sum(one: OneStep) -> list[str]:
    total, idle = one.duration_ns, one.idle_ns()
    waited = sum(idle.values())
    rows = [("step", total, ""), (f"busy ({one.compute_lane})", total - waited, ""), ("idle", waited, "")]
    rows += [(f"  {stage}", ns, _WHY if stage == OVERHEAD else "") for stage, ns in idle.items()]
    return [f"{name:<20}{_ms(ns):>10} ms {ns / max(1, total):>7.1%}{why}".rstrip() for name, ns, why in rows]


_WHY = "  no action explains it: queueing, launch, the recorder"


def _ms(ns: int) -> str:
    return f"{ns / NS_PER_MS:.3f}"
