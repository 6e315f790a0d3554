"""The page: one file, nothing from outside, data that cannot break out of it, and a script that runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from made_traces import pipelined_trace, plain_trace

from nestlab.tracing import Sample, Trace, exposed_ns, merge
from nestlab.tracing.html import embedded, page, write_html
from nestlab.tracing.memory import COUNTER, KINDS

pytestmark = pytest.mark.core

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def content(html: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="trace">(.*?)</script>', html, re.S)[1])


def with_memory(trace: Trace) -> Trace:
    ends = sorted(event.end_ns for event in trace.events)
    samples = (
        Sample(0, COUNTER, end, tuple((kind, i + k) for k, kind in enumerate(KINDS))) for i, end in enumerate(ends)
    )
    return replace(trace, counters=tuple(samples))


def test_one_file_that_asks_for_nothing(tmp_path):
    path = write_html(pipelined_trace(64), tmp_path / "t.html", "train 2026")
    html = path.read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.html"]
    assert path.stat().st_size < 2_000_000
    assert not re.search(r"https?:|src=|@import|url\(|fetch\(|XMLHttp|localStorage|sessionStorage|cookie", html)
    assert "default-src 'none'" in html and "made of nothing (synthetic) · simulated cluster" in html


def test_every_action_edge_and_idle_moment_is_in_the_page():
    trace = with_memory(merge([pipelined_trace(4, rank=0), plain_trace(4, rank=1)]))
    data = content(page(trace))
    assert len(data["events"]) == len(trace.events) and len(data["edges"]) == len(trace.edges)
    assert sum(gap[2] for gap in data["gaps"]) == sum(exposed_ns(trace).values())
    assert {lane for lane, *_ in data["lanes"]} == set(trace.lanes)
    assert len(data["memory"]["samples"]) == len(trace.counters)


def test_names_cannot_break_out():
    evil = "</script><script>alert(1)</script><!-- & \u2028 é"
    trace = plain_trace(2)
    renamed = replace(trace, events=tuple(e._replace(stage=e.stage + evil) for e in trace.events), edges=())
    renamed = replace(renamed, meta={"dataset": evil, "schedule": evil, "how": "measured"})
    html = page(renamed, evil)
    assert html.count("<script") == 2 and "<script>alert" not in html and "<!--" not in html
    assert content(html)["stages"][0] == "LOAD" + evil
    assert json.loads(embedded({"a": evil})) == {"a": evil}


def test_an_empty_trace_is_a_page_too():
    assert "Timeline of schedule" in page(Trace((), (), ("compute",), {}))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_script_runs_in_a_browser(tmp_path):
    """Keys, wheel and pointer in a real browser; any error would be in the title."""
    drive = """<script>
    const say = text => { document.body.dataset.said = text; };
    window.onerror = message => say('error: ' + message);
    setTimeout(() => { try {
      const c = document.getElementById('canvas'), box = c.getBoundingClientRect();
      const key = key => c.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
      ['0', '+', '-', 'ArrowLeft', 'ArrowRight', 'n', 'n', 'ArrowDown', 'ArrowUp', 'p', 'Escape', 'n'].forEach(key);
      const at = {clientX: box.left + 300, clientY: box.top + 50, pointerId: 1, bubbles: true, cancelable: true};
      c.dispatchEvent(new PointerEvent('pointermove', at));
      c.dispatchEvent(new WheelEvent('wheel', {...at, deltaY: -200}));
      document.querySelectorAll('button').forEach(button => button.click());
      say('done: ' + document.getElementById('detail').textContent);
    } catch (error) { say('error: ' + error); } }, 200);
    </script></body>"""
    path = tmp_path / "t.html"
    path.write_text(page(with_memory(plain_trace(6))).replace("</body>", drive))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [CHROMIUM, *options, "--virtual-time-budget=3000", "--dump-dom", path.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    said = re.search(r'data-said="([^"]*)"', dom)
    assert said and said[1].startswith("done: "), said and said[1]
    assert "batch" in said[1] and "waited for" in said[1]
