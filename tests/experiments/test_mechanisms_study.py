"""The virtual clock, the drift without an edge, and the run that the notebook of mechanisms leaves."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nestlab import results
from nestlab.errors import UserError
from nestlab.experiments.mechanisms import clock, drift, study
from nestlab.experiments.mechanisms.lanes import side_by_side
from nestlab.pipeline import Stage, build
from nestlab.techniques import Techniques

SCHEDULES = {name: build(Techniques.parse(flags)) for name, flags in study.LADDER.items()}
EXCHANGE = clock.MS[Stage.EMB_EXCHANGE] + clock.MS[Stage.GRAD_EXCHANGE]


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_virtual_clock_breaks_no_edge_and_no_lane(name):
    trace = clock.virtual(SCHEDULES[name], 6)
    events = {event.key: event for event in trace.events}
    assert len(events) == 6 * len(SCHEDULES[name].entries)
    assert all(events[source].end_ns <= events[target].start_ns for source, target in trace.edges)
    for lane in trace.lanes:
        own = [event for event in trace.events if event.lane == lane]  # in the order of the list
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(own))


def test_step_times_are_those_of_the_chains():
    """plain is the sum of all stages; each row's parts are its step; FWP shows 1/N of the exchange, DBP no look-up."""
    frame = clock.step_times(SCHEDULES).set_index("schedule")
    assert frame["ms a step"]["plain"] == pytest.approx(sum(clock.MS.values()))
    waits = frame[
        ["waits for look-up", "waits for rows", "waits for dense reduce", "waits for samples (LOAD, H2D)"]
    ].sum(axis=1)
    assert (waits + frame["computing"]).tolist() == pytest.approx(frame["ms a step"].tolist())
    assert frame["computing"].tolist() == pytest.approx([10.7] * 4)
    assert frame["waits for rows"]["plain"] == pytest.approx(EXCHANGE)
    # The last gradient exchange runs beside DENSE_REDUCE, which has only what it adds.
    assert frame["waits for rows"][["FWP(4)", "DBP + FWP(4)"]].tolist() == pytest.approx([EXCHANGE / 4] * 2)
    adds = clock.MS[Stage.DENSE_REDUCE] - clock.MS[Stage.GRAD_EXCHANGE] / 4
    assert frame["waits for dense reduce"].tolist() == pytest.approx([clock.MS[Stage.DENSE_REDUCE], 0, adds, adds])
    loading = clock.MS[Stage.LOAD] + clock.MS[Stage.H2D]
    assert frame["waits for samples (LOAD, H2D)"].tolist() == pytest.approx([loading, 0, loading, 0])
    assert frame["waits for look-up"]["DBP"] == pytest.approx(clock.MS[Stage.COMMIT])
    assert frame["ms a step"].idxmin() == "DBP + FWP(4)" and frame["ms a step"].idxmax() == "plain"


def test_lanes_are_drawn_bar_by_bar():
    traces = {name: clock.virtual(schedule, 3) for name, schedule in SCHEDULES.items()}
    figure = side_by_side(traces, "title")
    for axes, trace in zip(figure.axes, traces.values(), strict=True):
        assert len(axes.patches) == len(trace.events)


def test_a_missing_edge_drifts_and_none_does_not():
    frame = drift.drift(steps=16, seeds=(0, 1), seed=3)
    reached = frame.groupby("missing")["drift"].max()
    assert reached["nothing"] == 0.0 and (frame["step"].max(), frame["order"].nunique()) == (15, 2)
    assert set(reached.index) == {"nothing", *drift.EDGES} and (reached.drop("nothing") > 1e-4).all()
    digest = drift.digest(frame).set_index("what happens")
    assert digest.loc["nothing", "first step with another loss"] == "never: bit-equal"


@pytest.mark.parametrize("text", drift.EDGES.values())
def test_the_validator_complains_of_the_edge_that_is_missing(text):
    schedule = build(Techniques.parse(drift.FLAGS))
    assert drift.complaint(schedule) == "safe"
    source, _, target = (part.partition("(")[0] for part in text.partition(" → "))
    first = drift.complaint(drift.taken_away(schedule, text)).splitlines()[0]
    assert first.startswith(f"required edge missing: {source}(") and f"→ {target}(" in first


def test_a_run_keeps_what_it_shows(tmp_path):
    shown = study.mechanisms(scale="smoke", results_dir=str(tmp_path))
    shown.batches()
    shown.film("")
    shown.wrong_reads("device_tier=dual_buffer,pipeline_depth=2", "WRITEBACK(t-2) → PREPARE(t)", "WRITEBACK")
    shown.step_times()
    run = results.load(shown.finish())
    assert run.manifest["status"] == "ok" and run.manifest["dataset"]["kind"] == "synthetic"
    assert set(run.tables) == {"batches", "wrong_reads", "step_times"}
    assert [path.stem for path in (run.path / "figures").iterdir()] == ["film plain"]
    assert run.manifest["summary"]["wrong_reads_without_an_edge"] == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scale": "huge"}, "scale=huge: it must be one of smoke, quick, paper"),
        ({"dataset": "criteo"}, "dataset=criteo: it explains on three batches of its own"),
        ({"world_size": 2}, "world_size=2: it explains on one rank"),
    ],
)
def test_what_it_does_not_do_is_refused(tmp_path, options, says):
    with pytest.raises(UserError, match=says):
        study.mechanisms(results_dir=str(tmp_path), **options)
    assert not list(tmp_path.iterdir())
