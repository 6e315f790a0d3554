"""Trainings of EcoRec's notebook: the whole step, the pipeline's ladder, quality over epochs; their time left aside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from nestlab.embedding.tensor_train.schemes import ELRec
from nestlab.errors import UserError
from nestlab.experiments.ecorec import end_to_end, epochs, ladder, ladder_model, ladder_ranks, settings

TINY = {
    "rows": 1200,
    "twin_rows": 1200,
    "dim": 8,
    "rank": 4,
    "repeats": 2,
    "steps": 2,
    "step_batch": 64,
    "ladder_tables": 5,
    "ladder_batch": 24,
    "mixed_rows": 500,
    "epochs": 2,
    "epoch_batch": 120,
    "epoch_ranks": (2,),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTLAB_PREPARED", str(tmp_path_factory.mktemp("prepared")))
        root = str(tmp_path_factory.mktemp("data"))
        yield replace(settings.settings("smoke"), data_root=root, **TINY)


@pytest.fixture(scope="module")
def step(tiny) -> pd.DataFrame:
    return end_to_end.run(tiny)


@pytest.fixture(scope="module")
def trained(tiny) -> pd.DataFrame:
    return epochs.run(tiny)


def test_three_schemes_learn_the_same_in_a_whole_step(step, tiny):
    """Operations are those of the schemes' formulas, which other tests count: here their order is what is asked."""
    assert list(step["kind"].unique()) == list(end_to_end.NAMES) and len(step) == 4 * tiny.repeats
    assert step["data"].str.contains("SYNTHETIC").all() and (step["how"] == "measured").all()
    by_kind = step.groupby("kind").first()
    assert by_kind["operations"]["ecorec"] <= by_kind["operations"]["el_rec"] <= by_kind["operations"]["tt_rec"]
    assert by_kind["operations"]["row"] == by_kind["trains"]["row"] == by_kind["intermediate_bytes"]["row"] == 0
    trains = step[step["kind"] != "row"]
    assert (trains["trains"] > 0).all() and (trains["intermediate_bytes"] > 0).all() and trains["same"].all()
    assert trains["difference"].max() < end_to_end.TOLERANCE and trains["loss"].max() - trains["loss"].min() < 1e-5
    assert step["tables_share"].between(0, 1, inclusive="neither").all()
    assert (step["tables_ms"] < step["step_ms"] * 1.5).all() and (step["update_ms"] > 0).all()
    assert (step["peak_bytes"] == step["tables_bytes"] + step["intermediate_bytes"] + step["rest_bytes"]).all()


def test_a_scheme_that_learns_something_else_is_found(tiny, monkeypatch):
    """EL-Rec's gradients are made twice as large."""
    honest = ELRec.backward
    monkeypatch.setattr(
        ELRec, "backward", lambda self, s, c, p, grad, into, w: honest(self, s, c, p, 2 * grad, into, w)
    )
    with pytest.raises(RuntimeError, match="EL-Rec and EcoRec differ"):
        end_to_end.run(replace(tiny, repeats=1))


def test_shown_end_to_end(step):
    shown = end_to_end.digest(step)
    assert len(shown) == 4 and shown["peak, of ordinary tables', %"].iloc[0] == 100
    assert isinstance(end_to_end.plot(step, "title"), Figure)
    assert "times as fast as EL-Rec's" in end_to_end.says(step)


@pytest.mark.dist
def test_every_rung_of_the_ladder_has_the_bits_that_it_claims(ranks, tiny):
    """Broken on purpose: with a learning rate of its own the last rung is refused by `checked`."""
    rungs = ladder.rungs(tiny)
    found, other = ranks.run(ladder_ranks.climb, tiny, rungs)
    measured = ladder.checked(found)
    frame = measured.frame
    assert not other.traces and len(frame) == len(rungs) * tiny.repeats
    first = frame.groupby("case", sort=False).first()
    assert first["bit_equal"].to_dict() == {rung.name: rung.name != ladder.BATCH_WISE for rung in rungs}
    assert 0 < first.loc[ladder.BATCH_WISE, "difference"] < ladder.TOLERANCE
    same = first.drop(index=ladder.BATCH_WISE)
    assert same["operations"].nunique() == 1 and same["sent_bytes"].nunique() == 1
    assert first.loc[ladder.BATCH_WISE, "operations"] > same["operations"].iloc[0]
    assert same["sent_bytes"].iloc[0] == 2 * 5 * tiny.ladder_batch * tiny.dim * 4  # rows there, gradients back
    parts = frame[["tables_ms", "dense_ms", "exposed_rows_ms", "exposed_ids_ms", "rest_ms"]].sum(axis=1)
    np.testing.assert_allclose(parts, frame["step_ms"], rtol=1e-6)
    assert set(measured.traces) == set(first.index)
    _shown(measured)


def _shown(measured: ladder.Measured) -> None:
    frame = measured.frame
    assert len(ladder.digest(frame)) == 6 and isinstance(ladder.plot(frame, "title"), Figure)
    assert "times the operations" in ladder.says(frame)
    answered = {each["claim_id"]: each["obtained"] for each in ladder.answers(frame)}
    assert len(answered["ER-P-046"]) == 4 and answered["ER-P-022"] is True
    for case in (ladder.BATCH_WISE, ladder.TABLE_WISE):
        assert isinstance(ladder.timeline(measured.traces[case], case), Figure)


def test_a_rung_with_other_weights_is_refused():
    row = {"case": ladder.IN_ORDER, "difference": 0.0, "bit_equal": True}
    for case, far in ((ladder.SLOPED, 1e-9), (ladder.BATCH_WISE, 1e-3)):
        wrong = {"case": case, "difference": far, "bit_equal": False}
        with pytest.raises(RuntimeError, match=case.replace("+", r"\+")):
            ladder.checked(ladder_ranks.Climbed([row, wrong]))


def test_tables_are_listed_in_no_order_of_cost_and_spread_evenly(tiny):
    for count in (6, 12, 24):
        chosen = replace(tiny, ladder_tables=count)
        listed = ladder_model.table_ranks(chosen)
        assert listed != sorted(listed) and listed[0::2] == listed[1::2] and len(set(listed)) == 4
    one, again = (ladder_model.batch(tiny, 1, 3) for _ in range(2))
    assert one.ids.equal(again.ids) and not one.ids.equal(ladder_model.batch(tiny, 0, 3).ids)


def test_more_groups_than_tables_are_refused(tiny):
    with pytest.raises(UserError, match="groups=6 of the 5 tables"):
        ladder.measure(replace(tiny, groups=6))


def test_quality_over_epochs(trained, tiny):
    """The same samples under every kind of table: the twin's signal is found by all, and cores weigh less than rows."""
    assert list(trained["tt_rank"]) == [0, 0, 2, 2] and list(trained["epoch"]) == [1, 2, 1, 2]
    assert trained["step"].tolist() == [8, 16, 8, 16] and trained["data"].str.contains("SYNTHETIC").all()
    assert trained["log_loss"].between(0.3, 0.8).all()
    assert (trained["auc_low"] < trained["auc"]).all() and (trained["auc"] < trained["auc_high"]).all()
    best = epochs.best_of(trained)
    assert best["compression"][0] == 1 < best["compression"][2] and best["last_epoch"].tolist() == [2, 2]
    assert best["log_loss"].tolist() == trained.groupby("tt_rank")["log_loss"].min().tolist()
    assert (trained["peak_bytes"] > trained["tables_bytes"]).all()
    assert (trained["tables_bytes"] > trained["weight_bytes"]).all()


def test_shown_over_epochs(trained):
    assert len(epochs.digest(trained)) == 2 and isinstance(epochs.plot(trained, "title"), Figure)
    assert "rank 2" in epochs.says(trained)
