"""Traces made on a virtual clock: list order on every lane, edges obeyed, a duration for each stage."""

from __future__ import annotations

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
