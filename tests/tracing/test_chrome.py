"""Chrome trace JSON: equal after reading back, valid for the viewers, written as a whole or not at all."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_traces import LANES, META, pipelined_trace, plain_trace

from nestlab.tracing import Event, Sample, Trace, merge, read_chrome_trace, write_chrome_trace
from nestlab.tracing.chrome import chrome_json

pytestmark = pytest.mark.core


@pytest.fixture
def two_ranks() -> Trace:
    return merge([pipelined_trace(4, rank=0), plain_trace(4, rank=1)])


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_round_trip(tmp_path, two_ranks, name):
    path = write_chrome_trace(two_ranks, tmp_path / name)
    assert read_chrome_trace(path) == two_ranks
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert [entry.name for entry in tmp_path.iterdir()] == [name]  # no temporary file is left


def test_equal_traces_are_equal_files(tmp_path, two_ranks):
    files = [write_chrome_trace(two_ranks, tmp_path / name) for name in ("a.json.gz", "b.json.gz")]
    assert files[0].read_bytes() == files[1].read_bytes()


times = st.integers(0, 2**51 - 2**41)  # a run of 26 days


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(times, st.integers(0, 2**40), st.integers(0, 2**40)), max_size=6))
def test_times_are_exact_to_the_nanosecond(tmp_path_factory, rows):
    origin = 10**15  # twelve days after the machine started
    events = tuple(
        Event(0, "comm", "EMB_EXCHANGE", n, n, origin + s, origin + s + d, b) for n, (s, d, b) in enumerate(rows)
    )
    trace = Trace(events, (), LANES, META | {"tuple": (1, 2)})
    path = write_chrome_trace(trace, tmp_path_factory.mktemp("exact") / "t.json")
    assert read_chrome_trace(path) == trace


def test_what_the_viewers_ask_for(two_ranks):
    content = json.loads(json.dumps(chrome_json(two_ranks), allow_nan=False))
    events = content["traceEvents"]
    assert content["displayTimeUnit"] == "ms" and content["distributedInfo"]["rank"] == 0
    assert content["nestlab"]["meta"]["how"] == META["how"]
    by_kind = {kind: [e for e in events if e["ph"] == kind] for kind in "MXsfC"}
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in by_kind["M"] if e["name"] == "thread_name"}
    assert {named[0, tid] for tid in range(1, len(LANES) + 1)} == set(LANES)
    assert {e["args"]["name"] for e in by_kind["M"] if e["name"] == "process_name"} == {"rank 0", "rank 1"}
    assert all(e["ts"] >= 0 for e in events if e["ph"] != "M")
    steps = [e for e in by_kind["X"] if e["name"].startswith("ProfilerStep#")]
    assert {e["name"] for e in steps} == {f"ProfilerStep#{n}" for n in range(4)} and len(steps) == 8
    actions = [e for e in by_kind["X"] if e not in steps]
    assert set(actions[0]["args"]) == {"batch", "part", "bytes", "exposed"}
    assert all(value >= 0 for e in by_kind["C"] for value in e["args"].values())
    for rank in (0, 1):
        assert not any([e for e in by_kind["C"] if e["pid"] == rank][-1]["args"].values())  # all has arrived


def test_counters_come_back_and_are_one_track_a_name(tmp_path, two_ranks):
    start = two_ranks.origin_ns
    samples = tuple(
        Sample(rank, "memory", start + 7 * n, (("tables", n), ("exchange", 3 * n))) for rank in (0, 1) for n in range(4)
    )
    trace = replace(two_ranks, counters=samples)
    assert read_chrome_trace(write_chrome_trace(trace, tmp_path / "t.json.gz")) == trace
    tracks = [e for e in chrome_json(trace)["traceEvents"] if e["ph"] == "C" and e["name"] == "memory"]
    assert [e["args"] for e in tracks[:2]] == [{"tables": 0, "exchange": 0}, {"tables": 1, "exchange": 3}]
    assert trace.only(1).counters == samples[4:]
    assert [s.time_ns for s in trace.between(start + 7, start + 21).counters] == [start + 7, start + 14] * 2
    assert merge([trace.only(0), trace.only(1)]).counters == samples


def test_arrows_leave_inside_their_source_and_cross_lanes(two_ranks):
    events = chrome_json(two_ranks)["traceEvents"]
    actions = [e for e in events if e["ph"] == "X" and e["cat"] != "user_annotation"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts and set(starts) == set(ends)
    for number, leaves in starts.items():
        arrives = ends[number]
        assert (leaves["pid"], leaves["tid"]) != (arrives["pid"], arrives["tid"])
        same_lane = [e for e in actions if (e["pid"], e["tid"]) == (leaves["pid"], leaves["tid"])]
        assert any(e["ts"] <= leaves["ts"] < e["ts"] + e["dur"] for e in same_lane)
        assert any(e["ts"] == arrives["ts"] for e in actions if e["tid"] == arrives["tid"])


def test_exposed_of_the_actions_sums_to_the_idle_time_that_something_explains():
    trace = plain_trace(2, gap_us=0)
    actions = [e for e in chrome_json(trace)["traceEvents"] if e["ph"] == "X" and e["cat"] != "user_annotation"]
    begin, end = trace.span(0)
    work = sum(e.duration_ns for e in trace.events if e.lane == "compute")
    assert sum(e["args"]["exposed"] for e in actions) * 1000 == pytest.approx(end - begin - work)


def test_an_interrupted_write_leaves_the_old_file(tmp_path, two_ranks, monkeypatch):
    path = write_chrome_trace(plain_trace(1), tmp_path / "trace.json")
    before = path.read_bytes()

    def fails(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError, match="disk full"):
        write_chrome_trace(two_ranks, path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_a_strange_file_is_refused(tmp_path):
    path = tmp_path / "other.json"
    for content in ("[]", '{"traceEvents": []}', '{"nestlab": {"format": 99}}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"other\.json is no NestLab trace"):
            read_chrome_trace(path)


def test_an_empty_trace_is_a_file_too(tmp_path):
    empty = Trace((), (), LANES, META)
    assert read_chrome_trace(write_chrome_trace(empty, tmp_path / "e.json")) == empty
