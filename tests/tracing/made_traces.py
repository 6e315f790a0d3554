"""Traces made on a virtual clock: list order on every lane, edges obeyed, a duration for each stage."""

from __future__ import annotations

from hypothesis import strategies as st

from nestlab.tracing import Event, Recorder, Trace

LANES = ("load", "copy", "route", "fetch", "comm", "compute")
META = {"how": "simulated cluster", "dataset": "made of nothing (synthetic)", "schedule": "plain"}
US = 1_000
PLAIN = [  # stage, lane, duration in µs: very unequal, as real ones are
    ("LOAD", "load", 900),
    ("H2D", "copy", 60),
    ("ROUTE", "route", 700),
    ("PREPARE", "fetch", 1_500),
    ("EMB_EXCHANGE", "comm", 2_200),
    ("FORWARD", "compute", 5_000),
    ("BACKWARD", "compute", 7_000),
    ("GRAD_EXCHANGE", "comm", 2_600),
    ("DENSE_REDUCE", "comm", 400),
    ("UPDATE", "compute", 800),
    ("RELEASE", "fetch", 10),
]


def plain_trace(batches: int = 6, rank: int = 0, gap_us: int = 20, scale: float = 1.0) -> Trace:
    """Everything in order, one action after the other, with a gap between them."""
    names = [stage for stage, _, _ in PLAIN]
    recorder, now = Recorder(rank=rank, batches=None), 10**12

    def predecessors(stage: str, batch: int, part: int) -> list[tuple[str, int, int]]:
        place = names.index(stage)
        return [(names[place - 1], batch if place else batch - 1, -1)]

    for batch in range(batches):
        for stage, lane, duration in PLAIN:
            end = now + round(duration * US * scale)
            recorder.record(lane, stage, batch, -1, now, end, 1 << 20 if lane in ("comm", "copy") else 0)
            now = end + gap_us * US
    return recorder.trace(predecessors, LANES, META)


def pipelined_trace(batches: int = 8, parts: int = 4, depth: int = 4, rank: int = 0) -> Trace:
    """Lanes that run side by side: `depth` batches in flight, `parts` micro-batches, one update a batch."""
    entries = {stage: (lane, duration * US) for stage, lane, duration in PLAIN}
    by_part = ("EMB_EXCHANGE", "FORWARD", "BACKWARD", "GRAD_EXCHANGE")

    def predecessors(stage: str, batch: int, part: int) -> list[tuple[str, int, int]]:
        last = parts - 1
        return {
            "LOAD": [("UPDATE", batch - depth, -1)],
            "H2D": [("LOAD", batch, -1)],
            "ROUTE": [("LOAD", batch, -1), ("UPDATE", batch - depth + 1, -1)],
            "PREPARE": [("ROUTE", batch, -1), ("RELEASE", batch - 2, -1), ("UPDATE", batch - 2, -1)],
            "EMB_EXCHANGE": [("PREPARE", batch, -1), ("UPDATE", batch - 1, -1)],
            "FORWARD": [("EMB_EXCHANGE", batch, part), ("H2D", batch, -1), ("UPDATE", batch - 1, -1)],
            "BACKWARD": [("FORWARD", batch, part)],
            "GRAD_EXCHANGE": [("BACKWARD", batch, part)],
            "DENSE_REDUCE": [("BACKWARD", batch, last)],
            "UPDATE": [("DENSE_REDUCE", batch, -1), *(("GRAD_EXCHANGE", batch, i) for i in range(parts))],
            "RELEASE": [("UPDATE", batch, -1)],
        }[stage]

    recorder = Recorder(rank=rank, batches=None)
    ends: dict[tuple[str, int, int], int] = {}
    free = dict.fromkeys(LANES, 10**12)
    for stage, batch, part in _list_order(batches, parts, by_part):
        lane, duration = entries[stage]
        duration = duration // parts if stage in by_part else duration
        start = max([free[lane], *(ends.get(name, 0) + 5 * US for name in predecessors(stage, batch, part))])
        free[lane] = ends[stage, batch, part] = start + duration
        recorder.record(lane, stage, batch, part, start, start + duration, 4096 if lane == "comm" else 0)
    return recorder.trace(predecessors, LANES, META | {"schedule": f"dbp, fwp({parts})"})


def _list_order(batches: int, parts: int, by_part: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """Step s holds the look-up of batch s + 1, the copy of s + 2 and the load of s + 3."""
    order = []
    for step in range(-3, batches):
        order += [("LOAD", step + 3, -1), ("H2D", step + 2, -1), ("ROUTE", step + 2, -1), ("PREPARE", step + 1, -1)]
        order.append(("EMB_EXCHANGE", step, 0))
        for part in range(parts):
            if part + 1 < parts:
                order.append(("EMB_EXCHANGE", step, part + 1))
            order += [(stage, step, part) for stage in by_part[1:]]
        order += [(stage, step, -1) for stage in ("DENSE_REDUCE", "UPDATE", "RELEASE")]
    return [name for name in order if 0 <= name[1] < batches]


def trace_of(*events: tuple, edges: tuple = (), lanes: tuple[str, ...] = LANES) -> Trace:
    """A trace of (lane, stage, start, end), all of batch 0 and rank 0; edges by stage."""
    made = tuple(Event(0, lane, stage, 0, -1, start, end) for lane, stage, start, end in events)
    pairs = tuple(((0, source, 0, -1), (0, target, 0, -1)) for source, target in edges)
    return Trace(made, pairs, lanes, META)


# A step of two micro-batches on two ranks, in ns. Rank 1 comes 6 later to the first exchange, 2 sooner to the last.
_BATCH_1 = {
    0: {
        ("ROUTE", "route", -1): (90, 110),
        ("PREPARE", "fetch", -1): (110, 130),
        ("EMB_EXCHANGE", "comm", 0): (130, 150),
        ("EMB_EXCHANGE", "comm", 1): (150, 170),
        ("FORWARD", "compute", 0): (150, 170),
        ("BACKWARD", "compute", 0): (170, 190),
        ("GRAD_EXCHANGE", "comm", 0): (190, 210),
        ("FORWARD", "compute", 1): (190, 205),
        ("BACKWARD", "compute", 1): (205, 220),
        ("GRAD_EXCHANGE", "comm", 1): (220, 240),
        ("DENSE_REDUCE", "reduce", -1): (220, 235),
        ("UPDATE", "compute", -1): (242, 250),
    }
}
_BATCH_1[1] = _BATCH_1[0] | {
    ("PREPARE", "fetch", -1): (110, 136),
    ("EMB_EXCHANGE", "comm", 0): (136, 150),
    ("BACKWARD", "compute", 1): (205, 218),
    ("GRAD_EXCHANGE", "comm", 1): (218, 240),
    ("DENSE_REDUCE", "reduce", -1): (225, 240),
}
_EDGES = [
    (("ROUTE", -1), ("PREPARE", -1)),
    (("PREPARE", -1), ("EMB_EXCHANGE", 0)),
    *(
        ((a, part), (b, part))
        for part in (0, 1)
        for a, b in (("EMB_EXCHANGE", "FORWARD"), ("FORWARD", "BACKWARD"), ("BACKWARD", "GRAD_EXCHANGE"))
    ),
    *(((a, part), ("UPDATE", -1)) for a, part in (("GRAD_EXCHANGE", 0), ("GRAD_EXCHANGE", 1), ("DENSE_REDUCE", -1))),
    (("BACKWARD", 1), ("DENSE_REDUCE", -1)),
]


def rank_trace(rank: int, slow_clock_ns: int = 0) -> Trace:
    """Batch 0's update and all of batch 1, of rank 0 or 1, on a clock that is `slow_clock_ns` behind rank 0's."""
    rows = {("UPDATE", "compute", -1, 0): (0, 100)}
    rows |= {(*what, 1): when for what, when in _BATCH_1[rank].items()}
    events = tuple(
        Event(rank, lane, stage, batch, part, start - slow_clock_ns, end - slow_clock_ns)
        for (stage, lane, part, batch), (start, end) in rows.items()
    )
    edges = tuple(((rank, a, 1, i), (rank, b, 1, j)) for (a, i), (b, j) in _EDGES)
    clocks = {str(rank): {"offset_ns": slow_clock_ns, "error_ns": 3_000 * rank}}
    return Trace(events, edges, (*LANES, "reduce"), META | {"clocks": clocks})


@st.composite
def schedules(draw: st.DrawFn, consistent: bool = True, rank: int = 0) -> Trace:
    """Actions on lanes in list order with random edges; if `consistent`, no action begins before its predecessors end.

    Otherwise begins are arbitrary, as clocks of several devices may make them.
    """
    lanes = ("a", "b", "compute")
    names = ("LOAD", "ROUTE", "EMB_EXCHANGE", "DENSE_REDUCE", "S4")
    count = draw(st.integers(1, 12))
    events: list[Event] = []
    edges = []
    for number in range(count):
        sources = sorted(draw(st.sets(st.integers(0, number - 1), max_size=3))) if number else []
        lane = draw(st.sampled_from(lanes))
        ready = max([e.end_ns for e in events if e.lane == lane] + [events[s].end_ns for s in sources] + [0])
        start = ready + draw(st.integers(0, 4)) if consistent else draw(st.integers(0, 40))
        name, end = names[number % 5], start + draw(st.integers(0, 7))
        events.append(Event(rank, lane, name, number // 3, number % 3, start, end))
        edges += [(events[s].key, events[number].key) for s in sources]
    return Trace(tuple(draw(st.permutations(events))), tuple(edges), lanes, META)
