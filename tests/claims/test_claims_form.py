"""A claim is refused with the name of the field that is wrong, and a file with the names of file and claim."""

from __future__ import annotations

import pytest
import yaml
from made_claims import entry, made

from nestlab.errors import UserError
from nestlab.experiments.claims import loader
from nestlab.experiments.claims.form import FormError

LIST = {"value": [1, 2], "labels": ["a", "b"]}

WRONG = [
    ("id", {"id": "NP-12"}),
    ("id", {"id": 7}),
    ("id", {"id": ...}),
    ("sentence", {"sentence": " "}),
    ("sentence", {"sentence": "快三倍"}),
    ("kind", {"kind": "figure"}),
    ("answer", {"answer": "guessed"}),
    ("reason", {"reason": ""}),
    ("reason", {"reason": ...}),
    ("second_source", {"second_source": None}),
    ("second_source", {"second_source": "nestpipe-paper"}),
    ("value", {"value": "2"}),
    ("value", {"value": True}),
    ("value", {"value": float("nan")}),
    ("value", {"value": [1], "labels": ["a"]}),
    ("value", {"value": [None, None], "labels": ["a", "b"]}),
    ("labels", {"value": [1, 2]}),
    ("labels", {"labels": ["a"]}),
    ("unit", {"unit": None}),
    ("unit", {"value": None, "tolerance": {"kind": "boolean", "expect": "true"}}),
    ("command", {"command": "rm -r results"}),
    ("command", {"command": "nestlab run somewhere/else.ipynb"}),
    ("command", {"answer": "not testable", "tolerance": None, "command": "nestlab bench tt"}),
    ("command", {"command": ...}),
    ("error", {"error": True}),
    ("claim", {"verdict": "agrees"}),
    ("tolerance", {"tolerance": None}),
    ("tolerance", {"answer": "out of scope"}),
    ("tolerance", {"tolerance": 0.1}),
    ("tolerance", {"tolerance": {"kind": "relative", "number": 0.1, "by": 1}}),
    ("tolerance.kind", {"tolerance": {"number": 0.1}}),
    ("tolerance.kind", {"tolerance": {"kind": "about", "number": 0.1}}),
    ("tolerance.kind", {"value": None, "unit": None}),
    ("tolerance.number", {"tolerance": {"kind": "relative"}}),
    ("tolerance.number", {"tolerance": {"kind": "relative", "number": -0.1}}),
    ("tolerance.number", {"tolerance": {"kind": "relative", "number": "10 %"}}),
    ("tolerance.number", {"tolerance": {"kind": "boolean", "expect": "true", "number": 1}}),
    ("tolerance.expect", {"tolerance": {"kind": "direction", "number": 1}}),
    ("tolerance.expect", {"tolerance": {"kind": "boolean"}}),
    ("tolerance.expect", {"tolerance": {"kind": "relative", "number": 1, "expect": "above"}}),
    ("tolerance.trend", {"tolerance": {"kind": "relative", "number": 0.1, "trend": "up"}}),
    ("tolerance.trend", LIST | {"tolerance": {"kind": "relative", "number": 0.1, "trend": "magnitude"}}),
    ("tolerance.neutral", {"tolerance": {"kind": "relative", "number": 0.1, "trend": "side"}}),
    ("tolerance", {"tolerance": {"kind": "relative", "number": 0.1, "trend": "ranking"}}),
]


@pytest.mark.parametrize(("field", "changes"), WRONG)
def test_the_field_that_is_wrong_is_named(field, changes):
    with pytest.raises(FormError) as caught:
        made(**changes)
    assert caught.value.field == field


def test_an_articles_claim_has_its_key_words():
    with pytest.raises(FormError, match="keywords_zh"):
        loader.claim_from("nestpipe-article", "NestPipe", entry())
    loader.claim_from("nestpipe-article", "NestPipe", entry(keywords_zh="加速"))


def text(*entries, system="NestPipe", **more):
    return yaml.safe_dump({"system": system, "title": "made", "claims": list(entries)} | more, allow_unicode=True)


def refusal(content: str, name: str = "nestpipe-paper.yaml") -> str:
    with pytest.raises(UserError) as caught:
        loader.parse(name, content)
    return str(caught.value)


def test_a_file_reads():
    found = loader.parse("nestpipe-paper.yaml", text(entry(), entry(id="NP-P-901", **LIST, tolerance=None) | OUT))
    assert [claim.id for claim in found] == ["NP-P-900", "NP-P-901"]
    assert (found[1].value, found[1].labels) == ((1, 2), ("a", "b"))


OUT = {"answer": "out of scope"}


def test_refusals_name_file_claim_and_field():
    assert refusal(text(entry(kind="x"))).startswith("nestpipe-paper.yaml: NP-P-900: kind: ")
    assert refusal(text(entry(), entry())) == "nestpipe-paper.yaml: NP-P-900: id: is there twice"
    assert "begin with NP-P-" in refusal(text(entry(id="FS-P-001")))
    assert "second_source: 'hearsay'" in refusal(text(entry(second_source="hearsay")))
    assert refusal(text(entry(), {"kind": "x"})).startswith("nestpipe-paper.yaml: claim 2: id: ")
    assert refusal(text("a sentence")).startswith("nestpipe-paper.yaml: claim 1: claim: ")
    assert "system: 'Other'" in refusal(text(system="Other"))
    assert "fields of a file" in refusal(text(verdicts=[]))
    assert "no source is called so" in refusal(text(), "hearsay.yaml")
    assert "not YAML" in refusal("claims: [")
