"""Traces as Chrome trace event JSON: opens in Perfetto, and is read back as an equal trace.

A rank is a process, a lane a thread; where a batch has micro-batches an action's name ends in the number of its own
(`FORWARD 3`), and its args then name the stage. One more thread carries `ProfilerStep#n` ranges, by which
HolisticTraceAnalysis and torch.profiler's viewers find the steps. Arrows follow the edges that cross lanes. Times in
the file are µs since the trace's origin with three decimals: exact to the nanosecond for traces of up to 26 days
(2^51 ns).
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nestlab.files import write_atomic
from nestlab.tracing.exposed import exposed_stretches
from nestlab.tracing.trace import COMPUTE, WHOLE, Event, Key, Sample, Trace

FORMAT = 1
NS_PER_US = 1000
STEP_CATEGORY = "user_annotation"  # torch.profiler's word for a range that is not an action
SAMPLE_CATEGORY = "sample"  # counters that the trace holds; the others are derived from its events
Json = dict[str, Any]


def write_chrome_trace(trace: Trace, path: str | Path, compute_lane: str = COMPUTE) -> Path:
    """Writes the trace, compressed if the name ends in .gz; a file of that name is replaced when all is written.

    Args of every action: `batch`, `part` (−1: the whole batch), `bytes`, and `exposed`: the µs of compute idle time
    charged to it.
    """
    path = Path(path)
    return write_atomic(path, encode(trace, compute_lane, path.name.endswith(".gz")))


def encode(trace: Trace, compute_lane: str = COMPUTE, compressed: bool = True) -> bytes:
    """The file as bytes."""
    data = json.dumps(chrome_json(trace, compute_lane), allow_nan=False, separators=(",", ":")).encode()
    # No time inside: equal traces are equal files.
    return gzip.compress(data, compresslevel=6, mtime=0) if compressed else data


def chrome_json(trace: Trace, compute_lane: str = COMPUTE) -> Json:
    """The whole file as one JSON object."""
    places = {event.key: place for place, event in enumerate(trace.events)}
    ranks = trace.ranks
    return {
        "displayTimeUnit": "ms",
        "distributedInfo": {"rank": ranks[0] if ranks else 0, "world_size": max(1, len(ranks))},
        "nestlab": {
            "format": FORMAT,
            "origin_ns": trace.origin_ns,
            "lanes": list(trace.lanes),
            "edges": [[places[source], places[target]] for source, target in trace.edges],
            "meta": trace.meta,
        },
        "traceEvents": [
            *_names(trace),
            *_steps(trace, compute_lane),
            *_actions(trace, compute_lane),
            *_arrows(trace),
            *_bytes_moving(trace),
            *_samples(trace),
        ],
    }


def read_chrome_trace(path: str | Path) -> Trace:
    """The trace that `write_chrome_trace` wrote, equal in every field.

    Raises:
        ValueError: the file is not one of ours, or of a later form.
    """
    path = Path(path)
    return decode(path.read_bytes(), path.name, path.name.endswith(".gz"))


def decode(data: bytes, name: str = "this", compressed: bool = True) -> Trace:
    """The trace of `encode`'s bytes; `name` is what an error calls them."""
    content = json.loads(gzip.decompress(data) if compressed else data)
    own = content.get("nestlab", {}) if isinstance(content, dict) else {}
    if own.get("format") != FORMAT:
        raise ValueError(f"{name} is no NestLab trace of format {FORMAT} (found {own.get('format')})")
    actions = [e for e in content["traceEvents"] if e["ph"] == "X" and e["cat"] != STEP_CATEGORY]
    events = tuple(_event(action, own["lanes"], own["origin_ns"]) for action in actions)
    edges = tuple((events[source].key, events[target].key) for source, target in own["edges"])
    counted = [e for e in content["traceEvents"] if e["ph"] == "C" and e.get("cat") == SAMPLE_CATEGORY]
    counters = tuple(_sample(reading, own["origin_ns"]) for reading in counted)
    return Trace(events, edges, tuple(own["lanes"]), own["meta"], counters)


def _event(action: Json, lanes: list[str], origin_ns: int) -> Event:
    start = origin_ns + round(action["ts"] * NS_PER_US)
    end = start + round(action["dur"] * NS_PER_US)
    args = action["args"]
    lane, stage = lanes[action["tid"] - 1], args.get("stage", action["name"])
    return Event(action["pid"], lane, stage, args["batch"], args["part"], start, end, args["bytes"])


def _sample(reading: Json, origin_ns: int) -> Sample:
    time_ns = origin_ns + round(reading["ts"] * NS_PER_US)
    return Sample(reading["pid"], reading["name"], time_ns, tuple(reading["args"].items()))


def _place(trace: Trace, event: Event) -> Json:
    """Process and thread of an event. Threads count from 1: viewers take thread 0 for the idle one."""
    return {"pid": event.rank, "tid": trace.lanes.index(event.lane) + 1}


def _us(trace: Trace, time_ns: int) -> float:
    return (time_ns - trace.origin_ns) / NS_PER_US


def _names(trace: Trace) -> Iterator[Json]:
    lanes = [*enumerate(trace.lanes, start=1), (len(trace.lanes) + 1, "steps")]
    for rank in trace.ranks:
        at = {"ph": "M", "pid": rank}
        yield {**at, "name": "process_name", "args": {"name": f"rank {rank}"}}
        yield {**at, "name": "process_sort_index", "args": {"sort_index": rank}}
        for tid, lane in lanes:
            yield {**at, "tid": tid, "name": "thread_name", "args": {"name": lane}}
            yield {**at, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _steps(trace: Trace, compute_lane: str) -> Iterator[Json]:
    for rank in trace.ranks:
        for step in trace.step_spans(rank, compute_lane):
            times = {"ts": _us(trace, step.start_ns), "dur": (step.end_ns - step.start_ns) / NS_PER_US}
            at = {"ph": "X", "pid": rank, "tid": len(trace.lanes) + 1, "cat": STEP_CATEGORY}
            yield {**at, "name": f"ProfilerStep#{step.batch}", **times, "args": {"batch": step.batch}}


def _actions(trace: Trace, compute_lane: str) -> Iterator[Json]:
    exposed: dict[Key, int] = defaultdict(int)
    for stretch in exposed_stretches(trace, compute_lane):
        if stretch.cause:
            exposed[stretch.cause.key] += stretch.duration_ns
    divided = {event.stage for event in trace.events if event.part > 0}  # only asked whether a stage is in it
    for event in trace.events:
        numbered = event.stage in divided and event.part != WHOLE
        yield {
            "ph": "X",
            **_place(trace, event),
            "name": f"{event.stage} {event.part}" if numbered else event.stage,
            "cat": event.lane,
            "ts": _us(trace, event.start_ns),
            "dur": event.duration_ns / NS_PER_US,
            "args": {
                "batch": event.batch,
                "part": event.part,
                "bytes": event.nbytes,
                "exposed": exposed[event.key] / NS_PER_US,
                **({"stage": event.stage} if numbered else {}),
            },
        }


def _arrows(trace: Trace) -> Iterator[Json]:
    """Start and finish of an arrow for every edge between two lanes."""
    events = {event.key: event for event in trace.events}
    for number, (source_key, target_key) in enumerate(trace.edges):
        source, target = events[source_key], events[target_key]
        if (source.rank, source.lane) == (target.rank, target.lane):
            continue
        # Viewers tie an arrow to the action that is open at its time: the source's last nanosecond, not its end.
        leaves = max(source.start_ns, source.end_ns - 1)
        common = {"name": "edge", "cat": "edge", "id": number}
        yield {"ph": "s", **common, **_place(trace, source), "ts": _us(trace, leaves)}
        yield {"ph": "f", "bp": "e", **common, **_place(trace, target), "ts": _us(trace, target.start_ns)}


def _samples(trace: Trace) -> Iterator[Json]:
    """What the trace's counters read; a viewer draws one stacked track a name."""
    for sample in trace.counters:
        at = {"ph": "C", "cat": SAMPLE_CATEGORY, "pid": sample.rank, "tid": 0, "name": sample.name}
        yield {**at, "ts": _us(trace, sample.time_ns), "args": dict(sample.values)}


def _bytes_moving(trace: Trace) -> Iterator[Json]:
    """Bytes of the actions at work, a series a lane: shows when a link or a bus is in use, and with how much."""
    for rank in trace.ranks:
        moving = [event for event in trace.events if event.rank == rank and event.nbytes]
        now = {lane: 0 for lane in trace.lanes if any(event.lane == lane for event in moving)}
        changes = [(e.start_ns, e.lane, e.nbytes) for e in moving] + [(e.end_ns, e.lane, -e.nbytes) for e in moving]
        for time_ns, lane, change in sorted(changes):
            now[lane] += change
            at = {"ph": "C", "pid": rank, "tid": 0, "name": "bytes in flight"}
            yield {**at, "ts": _us(trace, time_ns), "args": dict(now)}
