"""Answers come from the newest ok run that has one, and from nowhere else."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from nestlab import cli, results
from nestlab.errors import UserError
from nestlab.experiments import claims as register
from nestlab.experiments.claims import Answer

SPEED, TRUTH, TABLE, CLOSED = "NP-P-002", "NP-P-001", "NP-P-035", "NP-P-004"


def run(folder, *given, status="ok", scale="quick"):
    made = results.start("claims-test", {"n": len(given), "scale": scale}, results_dir=folder)
    made.table("claims", register.table(given))
    made.finish(status)
    return made.id


def shown(capsys, *argv):
    assert cli.main(["claims", *map(str, argv)]) == 0
    return capsys.readouterr()


def test_an_empty_store_leaves_everything_not_run(tmp_path):
    frame = register.claims_page_rows(tmp_path / "none")
    assert len(frame) == len(register.claims())
    assert set(frame["verdict"]) == {"not run", "not testable"}
    assert frame["run"].isna().all()


def test_answers_read_back_with_their_verdicts(tmp_path):
    steps = [5800.0, 4900.0, 2900.0, 1900.0, None]
    made = run(
        tmp_path,
        Answer(SPEED, np.float64(1.9), "simulated cluster", "a note"),
        Answer(TRUTH, np.bool_(True), "measured"),
        Answer(TABLE, np.array([float("nan") if s is None else s for s in steps]), "simulated cluster"),
    )
    frame = register.claims_page_rows(tmp_path).set_index("claim")
    assert list(frame.loc[[SPEED, TRUTH, TABLE], "verdict"]) == ["trend agrees", "agrees", "agrees"]
    assert set(frame.loc[[SPEED, TRUTH, TABLE], "run"]) == {made}
    assert tuple(frame.loc[SPEED, ["obtained", "how", "note"]]) == (1.9, "simulated cluster", "a note")
    assert register.answers(tmp_path)[TABLE].obtained == steps


def test_the_newest_ok_run_that_has_a_value_counts(tmp_path):
    run(tmp_path, Answer(SPEED, 2.0, "measured"), Answer(TRUTH, False, "measured"))
    second = run(tmp_path, Answer(SPEED, 3.0, "measured"))
    run(tmp_path, Answer(SPEED, None, "measured"))
    run(tmp_path, Answer(SPEED, 9.0, "measured"), status="failed")
    found = register.answers(tmp_path)
    assert (found[SPEED].obtained, found[SPEED].run) == (3.0, second)
    assert found[TRUTH].obtained is False


def test_a_run_at_smoke_answers_nothing(tmp_path):
    run(tmp_path, Answer(SPEED, 2.0, "measured"))
    run(tmp_path, Answer(SPEED, 0.1, "measured"), Answer(TRUTH, False, "measured"), scale="smoke")
    assert {id: answer.obtained for id, answer in register.answers(tmp_path).items()} == {SPEED: 2.0}


def test_the_last_row_counts_where_a_run_answers_twice(tmp_path):
    run(tmp_path, Answer(SPEED, 2.0, "measured"), Answer(SPEED, 3.0, "measured"))
    assert register.answers(tmp_path)[SPEED].obtained == 3.0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer("NP-P-999", 1.0, "measured"), "no claim"),
        (Answer(CLOSED, 1.0, "measured"), "not testable"),
        (Answer(SPEED, 1.0, "guessed"), "how: 'guessed'"),
        (Answer(SPEED, [1.0, 2.0], "measured"), SPEED),
        (Answer(TABLE, 1.0, "measured"), "5 values are wanted"),
        (Answer(TRUTH, "yes", "measured"), "true or false"),
    ],
)
def test_an_answer_that_could_not_be_read_is_not_written(answer, reason):
    with pytest.raises(UserError, match=reason):
        register.table([answer])


def test_a_table_made_otherwise_costs_its_own_rows_only(tmp_path, capsys):
    good = run(tmp_path, Answer(TRUTH, True, "measured"))
    rows = [("NP-P-999", "1"), (SPEED, "nonsense"), (SPEED, '"fast"'), ("NP-P-003", "93.5")]
    for frame in (
        pd.DataFrame(rows, columns=["claim_id", "obtained"]).assign(how="measured", note=None),
        pd.DataFrame(),
    ):
        with results.start("claims-test", {}, results_dir=tmp_path) as made:
            made.table("claims", frame)
    found = register.answers(tmp_path)
    assert found[TRUTH].run == good and found["NP-P-003"].obtained == 93.5 and SPEED not in found
    assert shown(capsys, "--results", tmp_path).err.count("ignored: run ") == 4


def test_numbers_in_a_plain_column_are_answers_too(tmp_path):
    frame = pd.DataFrame({"claim_id": [SPEED], "obtained": [3.1], "how": ["measured"], "note": [""]})
    with results.start("claims-test", {}, results_dir=tmp_path) as made:
        made.table("claims", frame)
    assert register.answers(tmp_path)[SPEED].obtained == 3.1


def test_the_results_page_shows_every_claim_and_what_was_obtained(tmp_path):
    made = run(tmp_path, Answer(SPEED, 1.9, "simulated cluster"))
    page = results.write_index(tmp_path).read_text()
    assert all(f"<td>{claim.id}" in page for claim in register.claims())
    assert f"<td>1.9</td><td>simulated cluster</td><td>trend agrees</td><td>{made}</td>" in page


def test_the_command_prints_the_register(tmp_path, capsys):
    made = run(tmp_path, Answer(SPEED, 3.0, "simulated cluster"))
    printed = shown(capsys, "nestpipe-paper", "--results", tmp_path).out
    line = next(line for line in printed.splitlines() if line.startswith(SPEED))
    assert all(part in line for part in ("3.06 ×", "simulated cluster", "agrees", made))
    rows = json.loads(shown(capsys, "nestpipe-paper", "--open", "--json", "--results", tmp_path).out)
    ids = {row["claim"] for row in rows}
    assert SPEED not in ids and TRUTH in ids and CLOSED not in ids
    assert {"published", "obtained", "how", "verdict", "run", "reason", "error"} <= rows[0].keys()


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    for argv, reason in [
        (["nobody"], "no source 'nobody'"),
        (["jd", "ecorec"], "one source at a time"),
        (["run"], "takes one claim's id"),
        (["run", "NP-P-999"], "no claim 'NP-P-999'"),
        (["run", CLOSED], "'not testable': A setting"),
        (["run", "NP-P-031"], "no command answers claim NP-P-031 yet"),
    ]:
        assert cli.main(["claims", *argv, "--results", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert reason in error and error.count("\n") == 1


def test_run_hands_the_claims_command_to_the_command_line(tmp_path, monkeypatch):
    from nestlab.experiments.claims import command

    monkeypatch.chdir(tmp_path)
    claim = register.claim(SPEED)
    notebook = tmp_path / claim.command.split()[2]
    notebook.parent.mkdir()
    notebook.touch()
    assert command.argv(claim, "here") == ["run", str(notebook), "--results", "here"]


def test_a_command_that_is_not_there_yet_is_refused():
    import dataclasses

    from nestlab.experiments.claims import command

    claim = dataclasses.replace(register.claim(SPEED), command="nestlab run notebooks/99_nothing.ipynb")
    with pytest.raises(UserError, match=r"it will be notebooks/99_nothing\.ipynb, which is not there"):
        command.argv(claim, "results")
    claim = dataclasses.replace(claim, command="nestlab bench nothing")
    with pytest.raises(UserError, match="it will be nestlab bench nothing, which is not there"):
        command.argv(claim, "results")
    claim = dataclasses.replace(claim, command="nestlab bench index")
    assert command.argv(claim, "results") == ["bench", "index"]


@pytest.mark.parametrize(
    "line",
    [
        {"claim_id": ["a", "list"]},
        {"how": ["measured"]},
        {"obtained": "9" * 400},
        {"obtained": "[" * 100_000},
        {"obtained": "Infinity"},
        {"obtained": b"1.5 and more"},
    ],
)
def test_no_line_of_a_table_can_stop_the_register(line, tmp_path):
    """Whatever a table holds, the other answers stand, and no value that is no number becomes one."""
    run(tmp_path, Answer(SPEED, 2.0, "measured"))
    broken = results.start("claims-test", {"n": 9}, results_dir=tmp_path)
    made = {"claim_id": SPEED, "obtained": "2.5", "how": "measured", "note": ""} | line
    broken.table("claims", pd.DataFrame([made]))
    broken.finish()
    assert register.answers(tmp_path)[SPEED].obtained == 2.0
    assert "Published claims" in results.write_index(tmp_path).read_text()
