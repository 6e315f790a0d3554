"""Two real ranks: their traces on one clock, and the emulated-link benchmark at a size that takes seconds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nestlab.benchmarks import pipeline_link
from nestlab.benchmarks.link_setting import Scale
from nestlab.tracing import clock_offset, step_table
from nestlab.tracing.peers import contradiction_ns

pytestmark = pytest.mark.dist
SMALL = Scale(tables=2, rows=300, dim=16, batch_size=96, layers=2, width=8, parts=(1, 4), reported=4, steps=3, rounds=1)


def measured(transport):
    return pipeline_link.measure(transport, SMALL)


def traced(transport):
    links = pipeline_link.Links(network=1.0, host=1.0)
    trace, _ = pipeline_link._train(transport, SMALL, pipeline_link.Variant(True, True, 4), links)
    return None if trace is None else (trace.ranks, contradiction_ns(trace), trace.meta["clocks"], step_table(trace))


def digests(transport):
    one = pipeline_link.Variant(False, False, 1)
    every = (SMALL, SMALL, replace(SMALL, steps=SMALL.steps + 1), replace(SMALL, seed=SMALL.seed + 1))
    return [pipeline_link._train(transport, scale, one, pipeline_link.Links())[1] for scale in every]


def test_the_digest_tells_trainings_apart(ranks):
    (same, again, longer, other), second = ranks.run(digests)
    assert same == again == second[0] and len({same, longer, other}) == 3


def test_ranks_agree_on_the_time_of_day(ranks):
    first, second = ranks.run(clock_offset)
    assert first == (0, 0) and abs(second[0]) <= second[1] < 50_000_000  # one machine, one clock


def test_a_merged_trace_contradicts_no_collective(ranks):
    (found, contradiction, clocks, table), nothing = ranks.run(traced)
    assert nothing is None and found == (0, 1)
    assert contradiction <= 2 * clocks["1"]["error_ns"]
    assert table["rank"].tolist() == ["0", "1", "mean", "max"] and (table.exposed_rows_ms > 0).all()
    parts = ["compute_ms", "exposed_lookup_ms", "exposed_comm_ms", "exposed_loader_ms", "exposed_other_ms"]
    assert table[parts].sum(axis=1)[:3].tolist() == pytest.approx(table.step_ms[:3].tolist())


def test_the_benchmark_trains_every_variant_to_the_same_bits(ranks):
    found, nothing = ranks.run(measured)
    assert nothing is None and json.loads(json.dumps(found)) == found
    variants = [(row["variant"], row["N"]) for row in found["rows"]]
    assert variants == [("plain", 1), ("DBP", 1), ("plain", 4), ("FWP", 4), ("DBP + FWP", 4)]
    assert found["summary"]["bit_equal"] is True
    assert len({row["digest"] for row in found["rows"] if row["N"] == 4}) == 1
    assert [row["exposed_times_n"] for row in found["rows"] if row["variant"] == "plain"] == [1.0, 4.0]
    assert {"exposed_comm_vs_limit", "exposed_lookup_share", "speedup_vs_plain"} <= set(found["summary"])
