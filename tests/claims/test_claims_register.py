"""The register itself: complete, marked where a source is wrong, and answered in a stated way."""

from __future__ import annotations

import re

import pytest

from nestlab import techniques
from nestlab.errors import UserError
from nestlab.experiments import claims as register
from nestlab.experiments.claims import loader

# What the sources get wrong or contradict themselves in.
ERRORS = {
    "NP-P-020": "the proof of freshness rests on a write-back that is never described",
    "NP-A-002": "UniEmb's look-up share against the paper's milliseconds",
    "NP-A-004": "UniEmb's shares add up to more than the whole",
    "NP-A-005": "raw and exposed communication of the combination told as an effect of 2D-SP",
    "NP-A-006": "a rule for micro-batches that its own example contradicts",
    "NP-A-016": "a copy by key where buffers differ in slots",
    "FS-P-006": "the snake's positions off by one",
    "FS-P-007": "the snake called first-fit decreasing",
    "FS-P-040": "two shares of collisions for one figure",
    "FS-A-001": "priority by frequency",
    "FS-A-002": "a small kernel instead of none",
    "FS-A-003": "the copy engine",
    "FS-A-004": "offline profiles",
    "RS-A-005": "six stages against five",
    "RS-C-020": "five stages against six",
    "RS-A-006": "activity, in truth a clock sweep",
    "RS-A-007": "LFU and LRU, in truth counts and ages",
    "RS-C-010": "the second momentum's offset",
    "ER-A-003": "sorting by frequency instead of by index",
    "RL-P-015": "two statements of TT-Rec's compression",
    "RL-P-022": "a learning rate written into the kernel",
    "RL-P-023": "a floating-point split of the index",
    "RL-P-024": "a buffer sized by the wrong cores",
    "RL-P-034": "heads counted twice",
}
# What stands alone, or is left open.
SUSPECTS = (
    *("NP-P-018", "NP-P-027", "NP-P-031", "NP-P-034", "NP-P-037", "NP-P-044"),
    *("NP-A-007", "NP-A-008", "NP-A-009", "NP-A-010", "NP-A-011", "NP-A-012", "NP-A-013", "NP-A-014", "NP-A-015"),
    *("FS-P-001", "FS-P-009", "FS-P-042", "FS-A-005", "FS-A-006", "FS-A-007"),
    *("JD-A-008", "JD-A-022", "JD-A-023", "RS-C-026", "ER-P-002", "ER-P-013", "ER-P-050"),
)
FIVE = ("NestPipe", "FreeScale", "JD", "RecSDK", "EcoRec")


def test_at_least_120_claims_over_five_systems():
    frame = register.load()
    five = frame[frame["system"].isin(FIVE)]
    assert len(five) >= 120 and set(five["system"]) == set(FIVE)
    assert set(frame["source"]) == set(register.SOURCES)
    assert frame["id"].is_unique


def test_every_claim_says_how_it_is_answered():
    for claim in register.claims():
        assert claim.answer and claim.reason and (claim.tolerance is not None) == claim.testable, claim.id


def test_every_error_of_a_source_is_marked_with_the_reading_chosen():
    marked = {claim.id: claim.error for claim in register.claims() if claim.error}
    assert marked.keys() == ERRORS.keys()
    without_verdict = {"RS-C-010", "RS-C-020", "RL-P-022"}  # their code, which we do not carry
    for claim_id, error in marked.items():
        assert "Reading" in error, claim_id
        assert register.claim(claim_id).testable or claim_id in without_verdict, claim_id
    assert {claim.id for claim in register.claims() if claim.suspect} >= set(SUSPECTS)


def test_a_source_is_chosen_by_the_beginning_of_its_name():
    assert set(register.load("nestpipe")["source"]) == {"nestpipe-paper", "nestpipe-article"}
    assert set(register.load("jd-article")["source"]) == {"jd-article"}
    for unknown in ("nobody", ""):
        with pytest.raises(UserError, match=r"no source .* there is nestpipe-paper"):
            loader.chosen(unknown)
    with pytest.raises(UserError, match="no claim 'NP-P-999'"):
        register.claim("NP-P-999")


def test_published_values_read_as_text():
    assert register.published(register.claim("NP-P-002")) == "3.06 ×"
    assert register.published(register.claim("NP-P-019")) == "≤ 2 ms"
    assert register.published(register.claim("NP-P-001")) == ""
    assert "NestPipe + 2D-SP –" in register.published(register.claim("NP-P-035"))


def test_presets_and_policies_named_in_reasons_exist():
    flags = {row["flag"] for row in techniques.table()}
    named = set(re.findall(r"\b[a-z]+_[a-z_]+\b", " ".join(claim.reason for claim in register.claims())))
    assert {"hot_order", "hot_replicate"} <= named  # values of a flag
    values = {"hot_order", "hot_replicate", "copy_engine", "local_interleave"}
    assert named - values <= flags, named - values - flags


def test_nothing_points_to_a_place_on_one_machine():
    for claim in register.claims():
        for text in (claim.sentence, claim.reason, claim.where, claim.error, claim.suspect):
            assert not re.search(r"https?://|(^|\s)/\w", text or ""), claim.id
