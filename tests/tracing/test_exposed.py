"""Exposed time: hand-made cases, and random schedules against a reference that looks at every nanosecond."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from made_traces import LANES, pipelined_trace, plain_trace, schedules, trace_of

from nestlab.tracing import OVERHEAD, Event, Trace, exposed_ns, exposed_stretches, exposed_time, lane_times, merge
from nestlab.tracing.summary import busy, length

pytestmark = pytest.mark.core


def charged(trace: Trace) -> dict[str, int]:
    """Stage → ns, without those that were hidden."""
    return {stage: ns for (_, stage), ns in exposed_ns(trace).items() if ns}


def test_a_wait_is_charged_to_what_runs_and_a_gap_to_overhead():
    trace = trace_of(
        ("comm", "EMB_EXCHANGE", 0, 10),
        ("compute", "FORWARD", 13, 20),
        edges=[("EMB_EXCHANGE", "FORWARD")],
    )
    assert charged(trace) == {"EMB_EXCHANGE": 10, OVERHEAD: 3}


def test_a_chain_is_walked_back():
    trace = trace_of(
        ("load", "LOAD", 0, 4),
        ("route", "ROUTE", 5, 9),
        ("comm", "EMB_EXCHANGE", 9, 12),
        ("compute", "FORWARD", 12, 20),
        edges=[("LOAD", "ROUTE"), ("ROUTE", "EMB_EXCHANGE"), ("EMB_EXCHANGE", "FORWARD"), ("LOAD", "FORWARD")],
    )
    assert charged(trace) == {"LOAD": 4, "ROUTE": 4, "EMB_EXCHANGE": 3, OVERHEAD: 1}


@pytest.mark.parametrize(
    ("dense_end", "expected"),
    [
        (28, {"GRAD_EXCHANGE": 20}),  # the exchange ends last: it alone is charged
        (35, {"DENSE_REDUCE": 24, "GRAD_EXCHANGE": 1}),  # the reduce ends last: it takes the exchange's time with it
        (30, {"GRAD_EXCHANGE": 20}),  # a tie: the one that began first
    ],
)
def test_dense_reduce_beside_the_last_gradient_exchange(dense_end, expected):
    trace = trace_of(
        ("compute", "BACKWARD", 0, 10),
        ("comm", "GRAD_EXCHANGE", 10, 30),
        ("dense", "DENSE_REDUCE", 11, dense_end),
        ("compute", "UPDATE", max(30, dense_end), 40),
        edges=[
            ("BACKWARD", "GRAD_EXCHANGE"),
            ("BACKWARD", "DENSE_REDUCE"),
            ("GRAD_EXCHANGE", "UPDATE"),
            ("DENSE_REDUCE", "UPDATE"),
        ],
        lanes=(*LANES, "dense"),
    )
    assert charged(trace) == expected


def test_an_action_stuck_behind_another_on_its_lane_waits_for_that_one():
    """DENSE_REDUCE ends last and waits for no data while GRAD_EXCHANGE runs: it waits for its lane."""
    trace = trace_of(
        ("compute", "BACKWARD", 0, 10),
        ("comm", "GRAD_EXCHANGE", 10, 30),
        ("comm", "DENSE_REDUCE", 30, 34),
        ("compute", "UPDATE", 34, 40),
        edges=[("BACKWARD", "GRAD_EXCHANGE"), ("BACKWARD", "DENSE_REDUCE"), ("DENSE_REDUCE", "UPDATE")],
    )
    assert charged(trace) == {"GRAD_EXCHANGE": 20, "DENSE_REDUCE": 4}


def test_a_running_action_off_the_critical_chain_is_not_charged():
    trace = trace_of(
        ("load", "LOAD", 0, 20),
        ("comm", "EMB_EXCHANGE", 5, 10),
        ("compute", "FORWARD", 10, 20),
        edges=[("EMB_EXCHANGE", "FORWARD")],
    )
    assert charged(trace) == {"EMB_EXCHANGE": 5, OVERHEAD: 5}


def test_after_the_last_compute_action_what_runs_then_is_charged():
    trace = trace_of(
        ("compute", "UPDATE", 0, 10),
        ("fetch", "RELEASE", 12, 20),
        ("load", "LOAD", 5, 14),
    )
    assert charged(trace) == {"LOAD": 2, "RELEASE": 8}
    assert exposed_stretches(trace)[-1].waiting is None


def test_clocks_that_contradict_the_edges_end_the_walk_instead_of_hanging_it():
    trace = trace_of(
        ("comm", "EMB_EXCHANGE", 5, 12),
        ("comm", "GRAD_EXCHANGE", 12, 20),
        ("compute", "FORWARD", 25, 30),
        edges=[("GRAD_EXCHANGE", "EMB_EXCHANGE"), ("EMB_EXCHANGE", "FORWARD")],
    )
    assert sum(charged(trace).values()) == 20
    assert charged(trace) == reference(trace)


def test_ranks_are_analysed_apart():
    both = merge([plain_trace(3, rank=0), pipelined_trace(3, rank=1)])
    alone = exposed_ns(plain_trace(3, rank=0)) | exposed_ns(pipelined_trace(3, rank=1))
    assert exposed_ns(both) == alone


def test_plain_exposes_everything_else_and_a_frozen_window_one_part_of_n():
    plain = charged(plain_trace(4, gap_us=0))
    assert plain["EMB_EXCHANGE"] == 4 * 2_200_000 and plain["GRAD_EXCHANGE"] == 4 * 2_600_000
    for parts in (1, 2, 4, 8):
        piped = charged(pipelined_trace(6, parts))
        assert piped["EMB_EXCHANGE"] + piped["GRAD_EXCHANGE"] == pytest.approx(6 * 4_800_000 / parts, rel=0.01)


def test_frames_have_the_promised_columns_and_shares():
    trace = plain_trace(2)
    exposed, lanes = exposed_time(trace), lane_times(trace)
    assert list(exposed.columns) == ["rank", "stage", "exposed_ms", "share_of_span"]
    assert list(lanes.columns) == ["rank", "lane", "busy_ms", "idle_ms", "share"]
    compute = lanes[lanes.lane == "compute"].iloc[0]
    assert exposed.exposed_ms.sum() == pytest.approx(compute.idle_ms)
    assert exposed.share_of_span.sum() + compute.share == pytest.approx(1.0)


# --- random schedules -------------------------------------------------------------------------------------------------


def reference(trace: Trace) -> dict[str, int]:
    """The rule, word for word, for one nanosecond after the other. Shares no code with the library's."""
    events = list(trace.events)
    first, last = min(e.start_ns for e in events), max(e.end_ns for e in events)
    result: dict[str, int] = {}
    for now in range(first, last):
        running = [e for e in events if e.start_ns <= now < e.end_ns]
        if any(e.lane == "compute" for e in running):
            continue
        coming = [e for e in events if e.lane == "compute" and e.start_ns > now]
        if coming:
            at = min(coming, key=lambda e: (e.start_ns, e.end_ns))
            stage = _walk(trace, at, now)
            running_before = [e for e in running if e in _before(trace, at)]
            if stage == OVERHEAD and running_before:
                stage = min(running_before, key=lambda e: _order(trace, e)).stage
        else:
            stage = min(running, key=lambda e: _order(trace, e)).stage if running else OVERHEAD
        result[stage] = result.get(stage, 0) + 1
    return result


def _order(trace: Trace, event: Event) -> tuple:
    return -event.end_ns, event.start_ns, trace.lanes.index(event.lane), event.key


def _before(trace: Trace, at: Event) -> list[Event]:
    before = [e for e in trace.events if (e.key, at.key) in trace.edges]
    lane = sorted((e for e in trace.events if e.lane == at.lane), key=lambda e: (e.start_ns, e.end_ns))
    return before + lane[: lane.index(at)][-1:]


def _walk(trace: Trace, at: Event, now: int) -> str:
    met = [at]
    while True:
        unfinished = [e for e in _before(trace, at) if e.end_ns > now]
        if not unfinished:
            return OVERHEAD
        at = min(unfinished, key=lambda e: _order(trace, e))
        if at.start_ns <= now:
            return at.stage
        if at in met:
            return OVERHEAD
        met.append(at)


def check(trace: Trace) -> None:
    assert charged(trace) == reference(trace)
    begin, end = trace.span(0)
    idle = end - begin - length(busy(trace, 0, "compute"))
    stretches = exposed_stretches(trace)
    assert sum(stretch.duration_ns for stretch in stretches) == idle == sum(exposed_ns(trace).values())
    assert all(s.start_ns < s.end_ns for s in stretches)
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(stretches))


@settings(max_examples=300, deadline=None)
@given(schedules())
def test_random_schedules_agree_with_the_instant_by_instant_rule(trace):
    check(trace)


@settings(max_examples=300, deadline=None)
@given(schedules(consistent=False))
def test_so_do_times_that_contradict_the_edges(trace):
    check(trace)
