"""Where the steps of a rank go: computing, and waiting for look-up, communication and the rest; raw times beside it.

The figures are those of the article's main table. Of a rank's steps all count but the first, whose begin is not known
(`Trace.step_spans`). Every instant of them is computing or idle, and idle time is charged once (`nestlab.tracing.
exposed`): computing and the exposed parts sum to the steps' time, in integer nanoseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nestlab.tracing.exposed import Stretch, exposed_stretches
from nestlab.tracing.peers import waiting_ns
from nestlab.tracing.stages import COMMUNICATION, GROUPS, KEYS, group_of
from nestlab.tracing.summary import Interval, length, overlap, union
from nestlab.tracing.trace import COMPUTE, NS_PER_MS, Key, Step, Trace

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Breakdown:
    """The steps of one rank, in ns over all of them.

    Attributes:
        steps: how many.
        span: their time, end to end.
        compute: time in which the compute lane was at work.
        exposed: stage → idle time of the compute lane charged to it; with `compute` they sum to `span`.
        exposed_comm: group → the exposed communication, by what was under way: "rows" while a row exchange was, then
            "dense" while a dense reduce was, then "replicas". They sum to what `exposed` charges to these groups, but
            where two run at once the rows come first, and the dense part has what it adds. Charged to the one that
            ends last, as in `exposed`, a dense reduce that ends a moment after the last gradients, behind which it
            stood on the same link, would take all of their time, and no law of row exchanges could be seen.
        busy: group of stages → time in which one of them was under way, on whichever lane. "comm" is all of the
            communication: where two of its lanes are at work at once, the time counts once.
        action_time: stage → the durations of its actions, summed.
        exposed_waiting: the part of `exposed` in which a collective waited for a peer (`nestlab.tracing.peers`);
            0 in the trace of a single rank, which cannot tell.
        waiting: all such waiting, exposed or hidden.
    """

    rank: int
    steps: int
    span: int
    compute: int
    exposed: Mapping[str, int]
    exposed_comm: Mapping[str, int]
    busy: Mapping[str, int]
    action_time: Mapping[str, int]
    exposed_waiting: int
    waiting: int

    @property
    def idle(self) -> int:
        return self.span - self.compute

    def exposed_of(self, *groups: str) -> int:
        return sum(ns for stage, ns in self.exposed.items() if group_of(stage) in groups)

    @property
    def exposed_of_exchange(self) -> float:
        """Of the time of all row and gradient exchanges the share that was exposed, 0 where there is none.

        With a frozen window of N parts it is 1/N, where each exchange is shorter than the computation beside it.
        """
        total = sum(self.action_time.get(stage, 0) for stage in GROUPS["rows"])
        return self.exposed_comm["rows"] / total if total else 0.0


def breakdowns(trace: Trace, compute_lane: str = COMPUTE, batch: int | None = None) -> list[Breakdown]:
    """One of each rank that has a step: of all its steps but the first (unless there is no other), or of one batch's
    alone."""
    waited = waiting_ns(trace)
    found = []
    for rank in trace.ranks:
        steps = trace.step_spans(rank, compute_lane)
        chosen = (steps[1:] or steps) if batch is None else [step for step in steps if step.batch == batch]
        if chosen:
            found.append(_of_steps(trace.only(rank), chosen, compute_lane, waited))
    return found


def _of_steps(one: Trace, steps: list[Step], lane: str, waited: Mapping[Key, int]) -> Breakdown:
    window = steps[0].start_ns, steps[-1].end_ns
    stretches = [cut for stretch in exposed_stretches(one, lane) if (cut := _cut(stretch, window)) is not None]
    exposed: dict[str, int] = defaultdict(int)
    for stretch in stretches:
        exposed[stretch.stage] += stretch.duration_ns
    return Breakdown(
        rank=steps[0].rank,
        steps=len(steps),
        span=window[1] - window[0],
        compute=length(union(_inside(one, window, lane=lane))),
        exposed=dict(exposed),
        exposed_comm=_exposed_comm(one, stretches),
        busy=_busy(one, window),
        action_time=_action_time(one, window),
        exposed_waiting=sum(_waiting_in(stretch, waited) for stretch in stretches),
        waiting=sum(_first_part(event.start_ns, waited.get(event.key, 0), window) for event in one.events),
    )


def _cut(stretch: Stretch, window: Interval) -> Stretch | None:
    start, end = max(stretch.start_ns, window[0]), min(stretch.end_ns, window[1])
    return stretch._replace(start_ns=start, end_ns=end) if start < end else None


def _inside(
    trace: Trace, window: Interval, stages: Iterable[str] | None = None, lane: str | None = None
) -> list[Interval]:
    """The actions of these stages or this lane, cut to the window."""
    chosen = (e for e in trace.events if (stages is None or e.stage in stages) and (lane is None or e.lane == lane))
    cut = ((max(e.start_ns, window[0]), min(e.end_ns, window[1])) for e in chosen)
    return [(start, end) for start, end in cut if start < end]


def _busy(trace: Trace, window: Interval) -> dict[str, int]:
    groups = {group: stages for group, stages in GROUPS.items() if stages}
    groups["comm"] = tuple(stage for group in COMMUNICATION for stage in GROUPS[group])
    groups["keys"] = (KEYS,)
    return {group: length(union(_inside(trace, window, stages))) for group, stages in groups.items()}


def _exposed_comm(trace: Trace, stretches: Iterable[Stretch]) -> dict[str, int]:
    idle = [(s.start_ns, s.end_ns) for s in stretches if group_of(s.stage) in COMMUNICATION]
    found, before, known = {}, 0, []
    for group in COMMUNICATION:
        known += [(event.start_ns, event.end_ns) for event in trace.events if group_of(event.stage) == group]
        so_far = overlap(idle, union(known)) if idle else 0
        found[group], before = so_far - before, so_far
    return found


def _action_time(trace: Trace, window: Interval) -> dict[str, int]:
    times: dict[str, int] = defaultdict(int)
    for event in trace.events:
        times[event.stage] += max(0, min(event.end_ns, window[1]) - max(event.start_ns, window[0]))
    return dict(times)


def _waiting_in(stretch: Stretch, waited: Mapping[Key, int]) -> int:
    if stretch.cause is None:
        return 0
    return _first_part(stretch.cause.start_ns, waited.get(stretch.cause.key, 0), (stretch.start_ns, stretch.end_ns))


def _first_part(start_ns: int, duration_ns: int, window: Interval) -> int:
    """How much of the first `duration_ns` from `start_ns` on lies in the window."""
    return max(0, min(start_ns + duration_ns, window[1]) - max(start_ns, window[0]))


def step_table(trace: Trace, compute_lane: str = COMPUTE) -> pd.DataFrame:
    """The article's main table: a row a rank, then `mean` and `max` over the ranks (of each column by itself).

    Columns, times in ms a step:

    * `rank` (text), `steps`, `step_ms` (mean), `compute_ms`;
    * `lookup_ms`, `comm_ms`: raw time, in which some action of look-up or communication was under way. Look-up:
      routing of keys, all of PREPARE, COMMIT, EVICT, write-back and release. Communication: row and gradient
      exchange, dense reduce with clipping, averaging of replicas;
    * `exposed_lookup_ms`, `exposed_comm_ms`, their shares of the step `lookup_share` and `comm_share`; of these the
      parts `exposed_keys_ms` (routing, in look-up), `exposed_rows_ms`, `exposed_dense_ms` (what the dense reduce adds
      to the rows), `exposed_replicas_ms`;
    * `exposed_loader_ms`, `exposed_other_ms` (overhead and what stands nowhere); with look-up, communication and
      `compute_ms` they sum to the step;
    * `waiting_ms`: exposed time in which a collective waited for a peer, contained in the others;
    * `utilisation`: (step − exposed look-up − exposed communication) / step, as the article has it: time lost to
      anything else counts as used. `idle_share` is all that the compute lane stood still;
    * `overlap_efficiency`: of the raw communication the part that was not exposed; NaN where there is none;
    * `behind_slowest`: (slowest rank's compute − this one's) / slowest's; its mean is the straggler ratio.

    Raises:
        ValueError: no rank of the trace has a step.
    """
    import pandas as pd

    parts = breakdowns(trace, compute_lane)
    if not parts:
        raise ValueError(f"the trace has no action on the lane '{compute_lane}'")
    slowest = max(part.compute / part.steps for part in parts)
    figures = pd.DataFrame([_row(part, slowest) for part in parts])
    ends = pd.DataFrame([figures.mean(), figures.max()])
    names = [str(part.rank) for part in parts] + ["mean", "max"]
    table = pd.concat([figures, ends], ignore_index=True)
    table.insert(0, "rank", names)
    return table


def _row(part: Breakdown, slowest_ns: float) -> dict[str, float]:
    def ms(ns: int) -> float:
        return ns / NS_PER_MS / part.steps

    lookup, comm = part.exposed_of("lookup"), part.exposed_of(*COMMUNICATION)
    raw, span = part.busy["comm"], max(1, part.span)
    return {
        "steps": part.steps,
        "step_ms": ms(part.span),
        "compute_ms": ms(part.compute),
        "lookup_ms": ms(part.busy["lookup"]),
        "comm_ms": ms(raw),
        "exposed_lookup_ms": ms(lookup),
        "exposed_comm_ms": ms(comm),
        "exposed_keys_ms": ms(part.exposed.get(KEYS, 0)),
        **{f"exposed_{group}_ms": ms(ns) for group, ns in part.exposed_comm.items()},
        "exposed_loader_ms": ms(part.exposed_of("loader")),
        "exposed_other_ms": ms(part.exposed_of("overhead", "other")),
        "waiting_ms": ms(part.exposed_waiting),
        "lookup_share": lookup / span,
        "comm_share": comm / span,
        "idle_share": part.idle / span,
        "utilisation": (part.span - lookup - comm) / span,
        "overlap_efficiency": 1 - comm / raw if raw else float("nan"),
        "behind_slowest": 1 - part.compute / part.steps / slowest_ns if slowest_ns else 0.0,
    }
