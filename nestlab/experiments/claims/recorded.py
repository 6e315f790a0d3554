"""What runs have answered: a run writes a table `claims`, and the register reads the newest run that is ok."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestlab.errors import UserError
from nestlab.experiments.claims import loader
from nestlab.experiments.claims.form import TESTABLE
from nestlab.experiments.claims.judge import NOT_RUN, NOT_TESTABLE, verdict

if TYPE_CHECKING:
    import pandas

TABLE = "claims"
COLUMNS = ("claim_id", "obtained", "how", "note")


@dataclass(frozen=True)
class Answer:
    """A value obtained for a claim, how it was obtained, and by which run (empty until it is read back)."""

    claim_id: str
    obtained: Any
    how: str
    note: str = ""
    run: str = ""


def table(answers: Iterable[Answer]) -> pandas.DataFrame:
    """The frame for `run.table("claims", …)`; `obtained` is JSON text, since a column has one type and values many.

    Raises:
        UserError: no claim has that id, it cannot be tested, or the value has not the form of the published one.
    """
    import pandas

    return pandas.DataFrame([_line(answer) for answer in answers], columns=list(COLUMNS))


def answers(results_dir: str | Path = "results") -> dict[str, Answer]:
    """For each claim id the answer of the newest ok run that has one."""
    return read(results_dir)[0]


def read(results_dir: str | Path = "results") -> tuple[dict[str, Answer], list[str]]:
    """The answers, and a line for each row that could not be used: an old run may know claims that are no more.

    Runs at scale smoke do not count.
    """
    from nestlab import results

    found: dict[str, Answer] = {}
    ignored: list[str] = []
    runs = results.list_runs(results_dir)
    for row in runs[runs["status"] == "ok"].iloc[::-1].to_dict("records"):
        if (Path(row["path"]) / "tables" / f"{TABLE}.parquet").is_file() and not _is_smoke(row):
            for answer in _of_run(row, ignored):
                found.setdefault(answer.claim_id, answer)
    return found, ignored


def _is_smoke(row: dict[str, Any]) -> bool:
    """A run at smoke shows that a notebook works; it is too small to answer anything."""
    params = row.get("params")
    return isinstance(params, dict) and params.get("scale") == "smoke"


def _line(answer: Answer) -> dict[str, str]:
    claim = loader.claim(answer.claim_id)
    obtained = _simple(answer.obtained)
    fault = _fault(answer.claim_id, obtained, answer.how)
    if fault is not None:
        raise UserError(f"the answer to {claim.id} cannot be recorded: {fault}")
    return {"claim_id": claim.id, "obtained": json.dumps(obtained), "how": answer.how, "note": answer.note}


def _of_run(row: dict[str, Any], ignored: list[str]) -> list[Answer]:
    """A run's answers, the last one first where a claim is answered twice."""
    import pandas

    try:
        frame = pandas.read_parquet(Path(row["path"]) / "tables" / f"{TABLE}.parquet")
        lines = frame[[*COLUMNS]].to_dict("records")
    except (OSError, ValueError, KeyError) as error:
        ignored.append(f"run {row['run_id']}: its table '{TABLE}' cannot be read: {error}")
        return []
    found = []
    for line in reversed(lines):
        try:
            told = line["obtained"]
            obtained = _simple(json.loads(told) if isinstance(told, str | bytes) else told)
            fault = _fault(line["claim_id"], obtained, line["how"])
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            fault = f"it cannot be read: {error}"
        if fault is not None:
            ignored.append(f"run {row['run_id']}: {line['claim_id']}: {fault}")
        elif obtained is not None:  # a run that came to no value does not hide one that did
            note = line["note"] if isinstance(line["note"], str) else ""
            found.append(Answer(line["claim_id"], obtained, line["how"], note, row["run_id"]))
    return found


def _fault(claim_id: Any, obtained: Any, how: Any) -> str | None:
    """Why an answer cannot be used."""
    claim = loader.by_id().get(claim_id) if isinstance(claim_id, str) else None
    if claim is None:
        return "no such claim"
    if not isinstance(how, str) or how not in TESTABLE:
        return f"how: '{how}' is not one of {', '.join(TESTABLE)}"
    try:
        reached = verdict(claim, obtained)
    except (ValueError, TypeError) as error:
        return str(error)
    if reached == NOT_TESTABLE:
        return f"its answer is '{claim.answer}': {claim.reason}"
    return "nothing was obtained" if reached == NOT_RUN and obtained is not None else None


def _simple(value: Any) -> Any:
    """Plain Python values out of numpy's; a value that is not a number is none."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_simple(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
