"""A trace as one HTML file: a timeline to move about in, and the tables that go with it.

The file asks for nothing outside itself (a policy in its head forbids it), uses no storage and no frame, and so works
from disk and inside the sandboxed frame in which JupyterLab shows HTML files. Where scripts are not allowed, title and
tables are still there.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from nestlab import plotting
from nestlab.files import write_atomic
from nestlab.tracing import memory
from nestlab.tracing.exposed import OVERHEAD, Stretch, exposed_ns, exposed_stretches
from nestlab.tracing.page_script import SCRIPT
from nestlab.tracing.page_style import STYLE
from nestlab.tracing.plot import ABBREVIATIONS
from nestlab.tracing.trace import COMPUTE, NS_PER_MS, Key, Trace

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; base-uri 'none'"
_KIND_COLOURS = {
    kind: plotting.PALETTE[name] for kind, name in zip(memory.ON_DEVICE, ("grey", "sky", "purple", "blue"), strict=True)
}


def write_html(trace: Trace, path: str | Path, name: str = "", compute_lane: str = COMPUTE) -> Path:
    """Writes the page; a file of that name is replaced when all is written. `name` is the run's, for the title."""
    return write_atomic(path, page(trace, name, compute_lane).encode())


def page(trace: Trace, name: str = "", compute_lane: str = COMPUTE) -> str:
    """The whole file as text."""
    schedule = str(trace.meta.get("schedule") or "not named")
    source = [name, trace.meta.get("dataset") or "data set not named", trace.meta.get("how") or "how: not stated"]
    title = f"Timeline of schedule {schedule}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(" · ".join([title, *filter(None, [name])]))}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="source">{escape(" · ".join(str(part) for part in source if part))}</p>
<noscript><p class="notice">The timeline is drawn by a script, and scripts are off here. In JupyterLab press
“Trust HTML” above this page. The tables below need none.</p></noscript>
{_CONTROLS}
<div class="tables">
{_exposed_table(trace, compute_lane)}
{_memory_table(trace)}
</div>
<script type="application/json" id="trace">{embedded(data(trace, compute_lane))}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


_CONTROLS = """<div id="timeline" hidden>
<div class="bar" role="toolbar" aria-label="view">
<button data-do="previous" title="one step back">◀ step</button>
<button data-do="next" title="one step on">step ▶</button>
<button data-do="out" aria-label="zoom out" title="zoom out (-)">−</button>
<button data-do="in" aria-label="zoom in" title="zoom in (+)">+</button>
<button data-do="all" title="the whole trace (0)">whole</button>
<span id="where"></span>
</div>
<div class="stage">
<canvas id="canvas" tabindex="0" role="img" aria-describedby="help" aria-label="Timeline: a row a lane, a bar an action"
></canvas>
<div id="tip" role="presentation" hidden></div>
</div>
<p id="detail" aria-live="polite"></p>
<p class="help" id="help">Wheel or pinch: zoom · drag: move · click: what it waited for (solid) and what waited for it
(dashed). Keys on the timeline: ← → move, + − zoom, 0 whole, n p next and previous action of the lane, ↑ ↓ lane,
Esc: none. Odd batches are hatched; low bars are idle time of the compute lane, in the colour of what it waited for.</p>
</div>"""


def embedded(content: Any) -> str:
    """JSON that may stand inside a script element: no character of it can end the element or begin a comment."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data(trace: Trace, compute_lane: str = COMPUTE) -> dict[str, Any]:
    """What the script draws. Rows of numbers, times in ns since the trace's origin."""
    stretches = exposed_stretches(trace, compute_lane)
    places = {event.key: place for place, event in enumerate(trace.events)}
    stages = list(dict.fromkeys(event.stage for event in trace.events))
    colours = [plotting.lane_colour(lane) for lane in trace.lanes]
    return {
        "lanes": [[name, c, plotting.text_colour(c)] for name, c in zip(trace.lanes, colours, strict=True)],
        "stages": stages,
        "short": [ABBREVIATIONS.get(stage, stage) for stage in stages],
        "compute": trace.lanes.index(compute_lane) if compute_lane in trace.lanes else -1,
        "events": _events(trace, stages, stretches),
        "edges": [[places[source], places[target]] for source, target in trace.edges],
        "gaps": [_gap(trace, stretch, places) for stretch in stretches],
        "steps": [
            [step.rank, step.batch, step.start_ns - trace.origin_ns, step.end_ns - trace.origin_ns]
            for rank in trace.ranks
            for step in trace.step_spans(rank, compute_lane)
        ],
        "memory": _memory(trace),
    }


def _events(trace: Trace, stages: list[str], stretches: Iterable[Stretch]) -> list[list[int]]:
    """rank, lane, stage, batch, part, start, duration, bytes, exposed."""
    exposed: dict[Key, int] = defaultdict(int)
    for stretch in stretches:
        if stretch.cause:
            exposed[stretch.cause.key] += stretch.duration_ns
    lane_of = {lane: place for place, lane in enumerate(trace.lanes)}
    stage_of = {stage: place for place, stage in enumerate(stages)}
    rows = []
    for e in trace.events:
        what = (e.rank, lane_of[e.lane], stage_of[e.stage], e.batch, e.part)
        rows.append([*what, e.start_ns - trace.origin_ns, e.duration_ns, e.nbytes, exposed[e.key]])
    return rows


def _gap(trace: Trace, stretch: Stretch, places: dict[Key, int]) -> list[int]:
    """rank, start, duration, the action that it is charged to (−1: overhead), the action that waited (−1: none)."""
    cause = places[stretch.cause.key] if stretch.cause else -1
    waiting = places[stretch.waiting.key] if stretch.waiting else -1
    return [stretch.rank, stretch.start_ns - trace.origin_ns, stretch.duration_ns, cause, waiting]


def _memory(trace: Trace) -> dict[str, Any]:
    """Bytes that lie on the device. Tables stand in the table only: beside gigabytes the rest would be a line."""
    chosen = [sample for sample in trace.counters if sample.name == memory.COUNTER]
    samples = [
        [s.rank, s.time_ns - trace.origin_ns, *(dict(s.values).get(kind, 0) for kind in memory.ON_DEVICE)]
        for s in chosen
    ]
    return {"kinds": [[kind, _KIND_COLOURS[kind]] for kind in memory.ON_DEVICE], "samples": samples}


def _exposed_table(trace: Trace, compute_lane: str) -> str:
    """Idle time of the compute lane by the stage it waited for, a step, mean over ranks."""
    steady = trace.steady(compute_lane)
    steps = max(1, sum(len(steady.step_spans(rank, compute_lane)) for rank in steady.ranks))
    span = max(1, sum(end - start for start, end in (steady.span(rank) for rank in steady.ranks)))
    charged: dict[str, int] = defaultdict(int)
    for (_, stage), ns in exposed_ns(steady, compute_lane).items():
        charged[stage] += ns
    lanes = {event.stage: event.lane for event in steady.events}
    rows = []
    for stage, ns in sorted(charged.items(), key=lambda item: -item[1]):
        colour = plotting.lane_colour(lanes[stage]) if stage != OVERHEAD else plotting.IDLE
        cells = [_swatch(colour) + escape(stage), f"{ns / NS_PER_MS / steps:.3f}", f"{ns / span:.1%}"]
        rows.append(cells)
    rows.append(["all", f"{sum(charged.values()) / NS_PER_MS / steps:.3f}", f"{sum(charged.values()) / span:.1%}"])
    caption = "What the compute lane waited for"
    return _table(caption, [f"stage ({steps} steps)", "ms a step", "of the time"], rows)


def _memory_table(trace: Trace) -> str:
    if not any(sample.name == memory.COUNTER for sample in trace.counters):
        return ""
    rows = [
        [_swatch(_KIND_COLOURS.get(kind, plotting.PAPER)) + escape(kind), f"{peak / 2**20:,.2f}"]
        for kind, peak in memory.peaks(trace).items()
    ]
    return _table("Peak memory of the traced steps", ["kind", "MiB"], rows)


def _swatch(colour: str) -> str:
    return f'<i style="background:{escape(colour)}"></i>'


def _table(caption: str, header: list[str], rows: list[list[str]]) -> str:
    """Cells are HTML already."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows
    )
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
