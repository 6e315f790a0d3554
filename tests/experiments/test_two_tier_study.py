"""The study as a whole: its parts, its claims, and the run that it leaves."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from nestlab import results
from nestlab.errors import NotAvailableYet, UserError
from nestlab.experiments import claims as register
from nestlab.experiments.answering import combine
from nestlab.experiments.tables import Shown
from nestlab.experiments.two_tier import claims
from nestlab.experiments.two_tier.setups import place_of_tier
from nestlab.experiments.two_tier.study import PARTS, Study, two_tier


@pytest.fixture
def small(tmp_path):
    made = two_tier(dataset="kuairand-synth", data_root=str(tmp_path), scale="smoke", results_dir=str(tmp_path / "r"))
    yield made
    made.run.finish("killed")


def answer(claim_id: str, obtained, note: str = "") -> dict:
    return {"claim_id": claim_id, "obtained": obtained, "how": "measured", "note": note}


def test_two_parts_that_try_one_claim_must_both_hold():
    (held,) = combine([answer("RS-C-009", True, "a"), answer("RS-C-009", True, "b")])
    assert held.obtained is True and held.note == "a; b"
    (failed,) = combine([answer("RS-C-009", True), answer("RS-C-009", False)])
    assert failed.obtained is False
    with pytest.raises(ValueError, match="NP-A-008 is answered twice"):
        combine([answer("NP-A-008", 92.0), answer("NP-A-008", 90.0)])


def test_what_is_left_open_has_a_reason():
    expected = claims.ANSWERING.expected()
    assert set(claims.OPEN) <= set(expected) and "NP-A-008" in expected and "RL-P-049" not in expected
    frame = claims.ANSWERING.still_open(combine(answer(i, True) for i in expected if i.startswith("RS-C")))
    assert set(frame["claim"]) == {i for i in expected if not i.startswith("RS-C")}
    opened = claims.ANSWERING.still_open([]).set_index("claim")["reason"]
    assert opened["RS-C-021"] == claims.OPEN["RS-C-021"]


def test_a_verdict_stands_beside_each_answer():
    frame = claims.ANSWERING.beside(combine([answer("RS-A-006", False), answer("RS-A-005", 6)]))
    assert list(frame["claim"]) == ["RS-A-005", "RS-A-006"] and list(frame["verdict"]) == ["agrees", "differs"]
    assert frame.loc[0, "published"] == "6 stages"


def test_a_part_is_measured_once_and_kept(small, monkeypatch):
    measured = []
    real = small.module("checks").measure
    monkeypatch.setattr(small.module("checks"), "measure", lambda s: measured.append(s) or real(s))
    table = small.table("checks")
    assert small.frame("checks") is small.frame("checks") and len(measured) == 1
    assert len(small.beside("checks")) == len(table)
    figure = small.figure("skew")
    assert "SYNTHETIC" in figure.get_axes()[0].get_title(loc="left")
    frame = small.claims()
    small.frames["peaks"] = pd.DataFrame({"how": ["measured, emulated link", "computed"]})
    run = results.load(small.finish())
    assert run.manifest["how"] == "measured, emulated link"
    assert run.manifest["status"] == "ok" and {"checks", "skew", "claims", "seconds"} <= set(run.tables)
    assert run.manifest["summary"]["claims_agrees"] == (frame["verdict"] == "agrees").sum()
    kept = run.table("claims").set_index("claim_id")["obtained"]
    assert json.loads(kept["RS-A-006"]) is False and (run.path / "figures" / "skew.png").is_file()
    assert register.answers(run.path.parent.parent) == {}  # a run at smoke answers nothing


def test_bytes_a_row_come_from_every_part_that_tells(small):
    told = pd.DataFrame({"tier": ["a", "a", "b"], "device_bytes_a_row": [1.0, 1.0, 2.0], "host_bytes_a_row": 3.0})
    small.frames |= {"equality": told, "skew": pd.DataFrame({"skew": [1.0]})}
    found = small.bytes_a_row()
    assert found["tier"].tolist() == ["a", "b"]
    assert set(found["device_tier_in"]) == {place_of_tier(small.settings.device)}
    assert place_of_tier("cpu") == "plain memory (no accelerator)" and place_of_tier("cuda:0") == "memory of cuda:0"


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"scale": "huge"}, UserError, "scale=huge: it must be one of smoke, quick, paper"),
        ({"world_size": 2}, NotAvailableYet, "world_size=2 is not available yet"),
        ({"dataset": "nothing"}, UserError, "nothing"),
    ],
)
def test_what_makes_no_sense_leaves_no_run(tmp_path, given, error, says):
    with pytest.raises(error, match=says):
        two_tier(**{"data_root": str(tmp_path), "results_dir": str(tmp_path / "r"), **given})
    assert not (tmp_path / "r").exists()


def test_an_unknown_part_is_refused(small):
    with pytest.raises(UserError, match="no part 'hit_rate'; there are activity, hit_rates"):
        small.frame("hit_rate")


def test_every_part_is_in_the_notebook_and_the_other_way_round(project):
    book = json.loads((project / "notebooks" / "30_two_tier_cache.ipynb").read_text(encoding="utf-8"))
    source = "\n".join("".join(cell["source"]) for cell in book["cells"])
    for part, (heading, _, _, digest) in PARTS.items():
        assert (f'study.figure("{part}")' in source) == bool(heading) and f'("{part}")' in source
        module = Study.module(part)
        assert callable(module.measure) and (not heading or callable(module.plot))
        assert digest == "digest" or callable(getattr(module, digest))


def test_a_notebook_shows_texts_in_full_and_numbers_short():
    text = "a sentence that is longer than the fifty characters which pandas shows of a text"
    html = Shown({"what": [text], "bytes": [1187584.4], "rate": [0.123456], "none": [float("nan")]})._repr_html_()
    assert text in html and "1,187,584" in html and "0.1235" in html and "nan" not in html.lower()
