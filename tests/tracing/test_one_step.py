"""A step as text, two traces compared, and what HolisticTraceAnalysis asks for."""

from __future__ import annotations

import gzip
import json
import re

import pytest
from made_traces import META, pipelined_trace, plain_trace, trace_of

from nestlab.tracing import merge
from nestlab.tracing.diff import diff
from nestlab.tracing.hta import hta_json, write_hta
from nestlab.tracing.one_step import as_text, find_step

pytestmark = pytest.mark.core


@pytest.mark.parametrize("trace", [plain_trace(5), pipelined_trace(6)], ids=["plain", "pipelined"])
def test_busy_and_idle_sum_to_the_step(trace):
    for step in trace.step_spans(0):
        one = find_step(trace, step.batch)
        inside = [(max(e.start_ns, step.start_ns), min(e.end_ns, step.end_ns)) for e in one.events]
        work = sum(b - a for (a, b), e in zip(inside, one.events, strict=True) if e.lane == "compute")
        assert work + sum(one.idle_ns().values()) == one.duration_ns


def test_the_text_says_what_was_made():
    text = as_text(find_step(plain_trace(5), 2), META)
    lines = text.splitlines()
    # A step of the made trace: 21,160 µs of work and 10 gaps of 20 µs, less RELEASE's own gap at its end.
    assert lines[0] == "step 2, rank 0: 21.390 ms (as asked)"
    exchange = next(line for line in lines if "EMB_EXCHANGE" in line and line.startswith("comm"))
    assert exchange.split()[:8] == ["comm", "EMB_EXCHANGE", "2", "3.290", "5.490", "2.200", "2.200", "3.290–5.490"]
    assert "→ FORWARD" in exchange and exchange.endswith("1,048,576")
    assert re.search(r"busy \(compute\) +12\.800 ms", text)
    assert max(map(len, lines)) <= 120


def test_without_a_number_it_is_the_median_step_and_says_so():
    slow_first = trace_of(("compute", "FORWARD", 0, 100))
    assert "the median the only one" in as_text(find_step(slow_first), {})
    one = find_step(plain_trace(6))
    assert one.chosen == "the median of 5 steps" and one.step.batch != 0


def test_a_step_or_rank_that_is_not_there_is_named():
    with pytest.raises(LookupError, match="no step 9: the trace has steps 0 to 2"):
        find_step(plain_trace(3), 9)
    with pytest.raises(LookupError, match="no rank 4: the trace has 0"):
        find_step(plain_trace(3), rank=4)


def test_diff_of_a_trace_with_a_slower_one():
    result = diff(plain_trace(8), plain_trace(8, scale=2.0))
    assert result["warnings"] == []
    found = {(row["stage"], row["measure"]): row for row in result["stages"]}
    assert found["FORWARD", "time_ms"]["a"] == pytest.approx(5.0)
    assert found["FORWARD", "time_ms"]["ratio"] == pytest.approx(2.0)
    assert found["EMB_EXCHANGE", "exposed_ms"]["difference"] == pytest.approx(2.2)
    assert found["EMB_EXCHANGE", "bytes"]["a"] == found["EMB_EXCHANGE", "bytes"]["b"] == 1 << 20
    assert found["FORWARD", "bytes"]["ratio"] is None
    assert result["steps"]["a"]["p10_ms"] == pytest.approx(result["steps"]["a"]["median_ms"])
    json.dumps(result, allow_nan=False)


def test_diff_warns_of_what_cannot_be_compared():
    warnings = diff(plain_trace(3), pipelined_trace(4))["warnings"]
    assert warnings == ["the schedules differ: plain | dbp, fwp(4)"]


@pytest.fixture
def hta_events():
    return hta_json(merge([pipelined_trace(6, rank=0), plain_trace(6, rank=1)]), 0)["traceEvents"]


def test_hta_finds_steps_and_pairs(hta_events):
    steps = [e["name"] for e in hta_events if e["cat"] == "user_annotation"]
    assert steps == [f"ProfilerStep#{n}" for n in range(6)]
    launches = {e["args"]["correlation"]: e for e in hta_events if e["cat"] == "cuda_runtime"}
    kernels = {e["args"]["correlation"]: e for e in hta_events if e["cat"] == "kernel"}
    assert len(kernels) == len(pipelined_trace(6).events) and set(launches) == set(kernels)
    assert min(kernels) > len(hta_events)  # HTA keeps row numbers in the integer type of the correlations
    assert {e["args"]["stream"] for e in kernels.values()} == {1, 2, 3, 4, 5, 6}
    assert all(e["name"] == "cudaLaunchKernel" for e in launches.values())
    assert all(launches[n]["ts"] <= kernels[n]["ts"] for n in kernels)
    for event in hta_events:
        assert event["ph"] == "X" and isinstance(event["ts"], int) and event["dur"] >= 0


def test_hta_sorts_names_as_they_are_meant(hta_events):
    names = {e["name"] for e in hta_events if e["cat"] == "kernel"}
    communication = {name for name in names if re.match(r"^nccl.*Kernel", name)}
    memory = {name for name in names if re.match(r"(^Memcpy)|(^Memset)|(^dma)", name)}
    assert {name.split("_", 2)[2] for name in communication} == {"EMB_EXCHANGE", "GRAD_EXCHANGE", "DENSE_REDUCE"}
    assert names - communication - memory == {"FORWARD", "BACKWARD", "UPDATE"}


def test_hta_files_are_one_a_rank_and_say_which(tmp_path):
    written = write_hta(merge([plain_trace(2, rank=0), plain_trace(2, rank=3)]), tmp_path / "t.json.gz")
    assert [path.name for path in written] == ["t_rank0.json.gz", "t_rank3.json.gz"]
    for path, rank in zip(written, (0, 3), strict=True):
        text = gzip.decompress(path.read_bytes()).decode()
        assert json.loads(text)["distributedInfo"]["rank"] == rank
        assert re.search(r'"rank":\s+(\d+)', text)[1] == str(rank)  # HTA's own pattern
    with pytest.raises(ValueError, match=r"\.json and \.json\.gz only"):
        write_hta(plain_trace(2), tmp_path / "t.txt")


def test_hta_itself(tmp_path):
    analysis = pytest.importorskip("hta.trace_analysis")
    trace = pipelined_trace(6)
    write_hta(trace, tmp_path / "t.json.gz")
    found = analysis.TraceAnalysis(trace_dir=str(tmp_path))
    times = found.get_temporal_breakdown(visualize=False)
    assert times["compute_time(us)"].tolist() == [5 * 12_800]  # HTA leaves out the last step
    idle, _ = found.get_idle_time_breakdown(visualize=False)
    assert set(idle["stream"]) == {1, 2, 3, 4, 5, 6}
    overlap = found.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0]
    assert 0 < overlap < 100
