"""Traces in the dress of torch.profiler on a GPU, which HolisticTraceAnalysis reads (0.5).

A file of its own, because what HTA needs would mislead anybody who looks at it: a "kernel" and its "launch" for every
action, whatever it was, and names by which HTA sorts kernels. In it

* a lane is a stream (1, 2, …, in the trace's order), an action a kernel on it;
* the compute lane's actions keep their names, and count as computation. Exchanges and reductions are named
  `ncclDevKernel_…`, and count as communication. All else (loading, copies, look-ups) is named `Memcpy …`, and counts
  as memory;
* the launch of an action is the moment when the last action it needed had ended. HTA's "host wait" of a stream is
  then the time in which its next action was not ready, and "kernel wait" or "other" the time in which it was ready
  and had not begun;
* times are whole µs: HTA rounds begins up and ends down, and actions shorter than 1 µs would end before they begin;
* one rank a file, and the rank in a line of its own, by which HTA finds it in a folder.

HTA leaves out the last step. One trace, two analyses: HTA knows neither edges nor exposed time.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from nestlab.files import write_atomic
from nestlab.tracing.chrome import NS_PER_US, STEP_CATEGORY, Json
from nestlab.tracing.trace import COMPUTE, Event, Key, Trace

_REDUCE, _EXCHANGE = "ncclDevKernel_AllReduce", "ncclDevKernel_AllToAll"
_LAUNCH_THREAD, _STEP_THREAD = 1, 2
_FIRST_CORRELATION = 1 << 20  # HTA keeps row numbers in the smallest integer type that holds these


def write_hta(trace: Trace, path: str | Path, compute_lane: str = COMPUTE) -> list[Path]:
    """Writes a file a rank, compressed if the name ends in .gz; with several ranks, `name.json` is `name_rank0.json` …

    Raises:
        ValueError: the name ends in neither .json nor .json.gz, which are all that HTA opens.
    """
    path = Path(path)
    ending = next((end for end in (".json.gz", ".json") if path.name.endswith(end)), None)
    if ending is None:
        raise ValueError(f"{path.name}: HolisticTraceAnalysis opens .json and .json.gz only")
    stem = path.name.removesuffix(ending)
    names = {rank: f"{stem}_rank{rank}{ending}" if len(trace.ranks) > 1 else path.name for rank in trace.ranks}
    return [_write(hta_json(trace, rank, compute_lane), path.with_name(name)) for rank, name in names.items()]


def hta_json(trace: Trace, rank: int, compute_lane: str = COMPUTE) -> Json:
    """The file of one rank as a JSON object."""
    one = trace.only(rank)
    return {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": len(trace.ranks), "backend": "nccl"},
        "displayTimeUnit": "ms",
        "traceEvents": [*_steps(one, rank, trace.origin_ns, compute_lane), *_pairs(one, trace.origin_ns, compute_lane)],
    }


def kernel_name(event: Event, compute_lane: str = COMPUTE) -> str:
    """A name that HTA sorts as computation, communication or memory."""
    if event.lane == compute_lane:
        return event.stage
    if "REDUCE" in event.stage or event.stage in ("CLIP", "SYNC"):
        return f"{_REDUCE}_{event.stage}"
    if "EXCHANGE" in event.stage:
        return f"{_EXCHANGE}_{event.stage}"
    return f"Memcpy HtoD ({event.stage})"


def _steps(trace: Trace, rank: int, origin: int, lane: str) -> Iterator[Json]:
    for step in trace.step_spans(rank, lane):
        times = _times(step.start_ns, step.end_ns, origin)
        at = {"ph": "X", "pid": rank, "tid": _STEP_THREAD, "cat": STEP_CATEGORY}
        yield {**at, "name": f"ProfilerStep#{step.batch}", **times, "args": {}}


def _pairs(trace: Trace, origin: int, lane: str) -> Iterator[Json]:
    """For every action a launch on a thread of the host and a kernel on a stream, tied by `correlation`."""
    ready = _ready_times(trace)
    for number, event in enumerate(trace.events, start=_FIRST_CORRELATION):
        stream = trace.lanes.index(event.lane) + 1
        launched = min(ready.get(event.key, event.start_ns), event.start_ns)
        host = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": event.rank, "tid": _LAUNCH_THREAD}
        yield {**host, **_times(launched, launched, origin), "args": {"correlation": number}}
        kernel = {"ph": "X", "cat": "kernel", "name": kernel_name(event, lane), "pid": event.rank, "tid": stream}
        args = {"device": event.rank, "stream": stream, "correlation": number, "batch": event.batch}
        yield {**kernel, **_times(event.start_ns, event.end_ns, origin), "args": args}


def _ready_times(trace: Trace) -> dict[Key, int]:
    """When the last known predecessor of an action ended."""
    ends = {event.key: event.end_ns for event in trace.events}
    ready: dict[Key, int] = defaultdict(int)
    for source, target in trace.edges:
        ready[target] = max(ready[target], ends[source])
    return ready


def _times(start_ns: int, end_ns: int, origin_ns: int) -> Json:
    """Both ends rounded down: order is kept, and no action ends before it begins."""
    start = (start_ns - origin_ns) // NS_PER_US
    return {"ts": start, "dur": (end_ns - origin_ns) // NS_PER_US - start}


def _write(content: Json, path: Path) -> Path:
    # HTA looks for `"rank": 0` with a blank, line by line, so the file is neither compact nor one line.
    data = json.dumps(content, indent=0, allow_nan=False).encode()
    return write_atomic(path, gzip.compress(data, mtime=0) if path.name.endswith(".gz") else data)
