"""The article's table from traces of one and of several ranks: made steps by hand, and sums that must come out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_traces import META, pipelined_trace, plain_trace, rank_trace, schedules

from nestlab.tracing import Event, Trace, breakdowns, merge, step_table
from nestlab.tracing.diff import diff
from nestlab.tracing.one_step import as_text, find_step
from nestlab.tracing.peers import contradiction_ns, waiting_ns
from nestlab.tracing.stages import COMMUNICATION, GROUPS


@pytest.fixture
def both() -> Trace:
    return merge([rank_trace(0), rank_trace(1, slow_clock_ns=10**9)])


def test_a_made_step_by_hand(both):
    first, second = breakdowns(both)
    assert (first.steps, first.span, first.compute, first.idle) == (1, 150, 78, 72)
    assert first.exposed == {"ROUTE": 10, "PREPARE": 20, "EMB_EXCHANGE": 20, "GRAD_EXCHANGE": 20, "overhead": 2}
    assert second.exposed == {"ROUTE": 10, "PREPARE": 26, "EMB_EXCHANGE": 14, "GRAD_EXCHANGE": 22, "overhead": 2}
    # Two EMB and two GRAD of 20 each; the dense reduce runs beside the last and adds nothing to the time in use.
    assert first.busy["comm"] == first.busy["rows"] == 80 and first.busy["dense"] == 15
    assert first.busy["lookup"] == 30 and first.busy["keys"] == 10  # what of ROUTE lies in the step
    assert first.exposed_of_exchange == 40 / 80  # the law: 1/N
    assert first.exposed_of("lookup") == 30 and first.exposed_of("rows", "dense") == 40


@pytest.mark.parametrize(
    ("dense", "update", "rows", "added"),
    [
        ((220, 235), 242, 40, 0),  # inside the last gradient exchange
        ((219, 241), 242, 40, 1),  # a moment longer: by stage it takes the whole wait, and adds 1
        ((221, 260), 262, 40, 20),  # much longer: what lies beyond is its own
    ],
)
def test_rows_come_first_where_the_dense_reduce_runs_beside_them(dense, update, rows, added):
    """The dense reduce is charged what it adds, whether it ends before the rows or after them."""
    trace = rank_trace(0)
    times = {"DENSE_REDUCE": dense, "UPDATE": (update, update + 8)}
    moved = [
        e._replace(start_ns=times[e.stage][0], end_ns=times[e.stage][1]) if e.batch and e.stage in times else e
        for e in trace.events
    ]
    part = breakdowns(replace(trace, events=tuple(moved)))[0]
    assert part.exposed_comm == {"rows": rows, "dense": added, "replicas": 0}
    assert part.exposed_of(*COMMUNICATION) == rows + added and part.compute + sum(part.exposed.values()) == part.span
    assert part.exposed.get("DENSE_REDUCE", 0) == (0 if dense[1] < 240 else dense[1] - max(dense[0], 220))


def test_waiting_is_told_apart_where_it_can_be(both):
    """Broken on purpose: without the bound by durations the dense reduces, which take 15 each, would have waited 5."""
    waited = waiting_ns(both)
    assert waited[0, "EMB_EXCHANGE", 1, 0] == 6  # it took 20, and 14 on the rank that came 6 later
    assert waited[1, "GRAD_EXCHANGE", 1, 1] == 2
    assert waited[0, "DENSE_REDUCE", 1, -1] == waited[1, "DENSE_REDUCE", 1, -1] == 0  # each 15: nobody waited
    assert sum(waited.values()) == 8
    first, second = breakdowns(both)
    assert (first.exposed_waiting, second.exposed_waiting) == (first.waiting, second.waiting) == (6, 2)
    assert [part.exposed_waiting for part in breakdowns(both.only(0))] == [0]  # alone it cannot be told


def test_waiting_that_is_hidden_is_not_exposed():
    def of(rank: int, exchange: tuple[int, int]) -> Trace:
        work = [("FORWARD", 0, 0, 10), ("FORWARD", 1, 10, 30), ("UPDATE", 1, 40, 50)]
        events = [Event(rank, "compute", stage, batch, -1, start, end) for stage, batch, start, end in work]
        events.append(Event(rank, "comm", "GRAD_EXCHANGE", 1, 0, *exchange))
        edge = ((rank, "GRAD_EXCHANGE", 1, 0), (rank, "UPDATE", 1, -1))
        return Trace(tuple(events), (edge,), ("comm", "compute"), META)

    first, _ = breakdowns(merge([of(0, (12, 40)), of(1, (34, 40))]))
    assert (first.waiting, first.exposed_waiting, first.exposed["GRAD_EXCHANGE"]) == (22, 4, 10)


def test_replica_groups_exchange_among_themselves():
    def of(rank: int, start: int) -> Trace:
        events = [Event(rank, "comm", stage, 0, -1, start, 100) for stage in ("EMB_EXCHANGE", "SYNC", "ROUTE")]
        return Trace(tuple(events), (), ("comm",), META | {"replicas": 2})

    waited = waiting_ns(merge([of(0, 10), of(1, 20), of(2, 40), of(3, 80)]))
    assert [waited[rank, "EMB_EXCHANGE", 0, -1] for rank in range(4)] == [10, 0, 40, 0]
    assert [waited[rank, "SYNC", 0, -1] for rank in range(4)] == [30, 60, 0, 0]
    assert [waited[rank, "ROUTE", 0, -1] for rank in range(4)] == [70, 60, 40, 0]


def test_the_table(both):
    table = step_table(both)
    assert table["rank"].tolist() == ["0", "1", "mean", "max"]
    first, _, mean, most = (row for _, row in table.iterrows())
    assert first.step_ms == 150e-6 and first.lookup_ms == 30e-6 and first.comm_ms == 80e-6
    assert first.exposed_lookup_ms == 30e-6 and first.exposed_comm_ms == pytest.approx(40e-6)
    assert first.utilisation == pytest.approx((150 - 30 - 40) / 150) and first.idle_share == pytest.approx(72 / 150)
    assert first.overlap_efficiency == pytest.approx(0.5) and first.waiting_ms == 6e-6
    assert mean.compute_ms == pytest.approx(77e-6) and most.exposed_lookup_ms == 36e-6
    assert mean.behind_slowest == pytest.approx((78 - 77) / 78)  # (max − mean) / max
    parts = ["compute_ms", "exposed_lookup_ms", "exposed_comm_ms", "exposed_loader_ms", "exposed_other_ms"]
    assert table[parts].sum(axis=1)[:3].tolist() == pytest.approx(table.step_ms[:3].tolist())
    groups = ["exposed_rows_ms", "exposed_dense_ms", "exposed_replicas_ms"]
    assert table[groups].sum(axis=1)[:3].tolist() == pytest.approx(table.exposed_comm_ms[:3].tolist())


def test_a_step_without_communication_has_no_overlap_efficiency():
    trace = Trace((Event(0, "compute", "FORWARD", 0, -1, 0, 10),), (), ("compute",), META)
    assert math.isnan(step_table(trace).overlap_efficiency[0]) and step_table(trace).utilisation[0] == 1.0
    with pytest.raises(ValueError, match="no action on the lane 'compute'"):
        step_table(Trace((), (), ("compute",), META))


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_a_frozen_window_exposes_one_part_of_n(parts):
    part = breakdowns(pipelined_trace(8, parts))[0]
    assert part.exposed_of_exchange * parts == pytest.approx(1.0, abs=0.02)
    assert part.exposed_of("lookup", "loader") == 0
    plain = breakdowns(plain_trace(4, gap_us=0))[0]
    assert plain.exposed_of_exchange == 1.0


@settings(max_examples=200, deadline=None)
@given(schedules(rank=0), schedules(consistent=False, rank=1))
def test_computing_and_exposed_parts_sum_to_the_steps(first, second):
    trace = merge([first, second])
    for part in breakdowns(trace):
        assert part.compute + sum(part.exposed.values()) == part.span
        assert sum(part.exposed_of(group) for group in GROUPS) == part.idle
        assert 0 <= part.exposed_waiting <= min(part.waiting, part.idle)
        assert (
            sum(part.exposed_comm.values()) == part.exposed_of(*COMMUNICATION) and min(part.exposed_comm.values()) >= 0
        )
        assert part.exposed_of(*COMMUNICATION) <= part.busy["comm"] and part.exposed_of("lookup") <= part.busy["lookup"]
        steps = trace.step_spans(part.rank)
        each = [
            one for step in steps[1:] or steps for one in breakdowns(trace, batch=step.batch) if one.rank == part.rank
        ]
        assert sum(one.compute for one in each) == part.compute and sum(one.idle for one in each) == part.idle


@settings(max_examples=50, deadline=None)
@given(st.integers(-(10**12), 10**12))
def test_clocks_do_not_matter_to_a_rank_alone(shift):
    trace = pipelined_trace(4)
    moved = replace(
        trace, events=tuple(e._replace(start_ns=e.start_ns + shift, end_ns=e.end_ns + shift) for e in trace.events)
    )
    assert breakdowns(moved) == breakdowns(trace)


def test_clocks_that_cannot_be_right_are_found(both):
    assert contradiction_ns(both) == 0
    late = replace(rank_trace(1), meta=META)  # 30 late: rank 0 left the dense reduce at 235, before 225 + 30
    late = replace(late, events=tuple(e._replace(start_ns=e.start_ns + 30, end_ns=e.end_ns + 30) for e in late.events))
    assert contradiction_ns(merge([replace(rank_trace(0), meta=META), late])) == 20


def test_the_text_shows_the_step_on_every_rank(both):
    text = as_text(find_step(both, 1, rank=0), both.meta, breakdowns(both, batch=1))
    assert "clocks agree to ± 3 µs" in text
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("the step on every rank"))
    assert lines[at + 1].split()[:3] == ["rank", "step", "compute"] and len(lines) == at + 4
    assert as_text(find_step(both.only(0), 1), META, breakdowns(both.only(0), batch=1)).count("every rank") == 0


def test_diff_of_one_rank_with_two(both):
    result = diff(both, both.only(1))
    assert result["ranks"] == {"a": 2, "b": 1} and "the numbers of ranks differ: 2 | 1" in result["warnings"]
