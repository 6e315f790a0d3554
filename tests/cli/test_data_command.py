"""`nestlab data` from the outside: twins of both kinds, options of one kind only."""

from __future__ import annotations

from pathlib import Path

import pytest

from nestlab import cli


@pytest.fixture(autouse=True)
def _prepared(tmp_path, monkeypatch):
    monkeypatch.setenv("NESTLAB_PREPARED", str(tmp_path / "prepared"))


@pytest.mark.parametrize("kind", ["criteo", "kuairand"])
def test_a_twin_is_written_prepared_and_described_as_synthetic(kind, tmp_path, capsys):
    assert cli.main(["data", "synth", kind, "--rows", "500", "--out", str(tmp_path / "raw")]) == 0
    assert cli.main(["data", "prepare", f"{kind}-synth", "--root", str(tmp_path / "raw")]) == 0
    describe = ["data", "describe", f"{kind}-synth", "--root", str(tmp_path / "raw"), "--figure"]
    assert cli.main([*describe, str(tmp_path / "misses.svg")]) == 0
    assert capsys.readouterr().out.count("SYNTHETIC") >= 2
    figure = (tmp_path / "misses.svg").read_text()
    assert f"<!-- {kind}-synth (SYNTHETIC" in figure.replace("KuaiRand", "kuairand").replace("Criteo", "criteo")
    for name, told in (("misses.jpg", "ends in .png or .svg"), ("no/misses.png", "a folder that is there")):
        assert cli.main([*describe, str(tmp_path / name)]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["criteo-synth", "kuairand-synth"])
def test_a_twin_s_full_name_is_a_kind_too(kind, tmp_path, capsys):
    assert cli.main(["data", "synth", kind, "--rows", "20", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("truth.json")


def test_rejects_are_told_by_reason_and_place(tmp_path, capsys):
    assert cli.main(["data", "synth", "kuairand", "--rows", "200", "--out", str(tmp_path)]) == 0
    folder = tmp_path / "KuaiRand-Pure" / "data"
    prepare = ["data", "prepare", "kuairand-pure", "--root", str(tmp_path)]
    assert cli.main(prepare) == 0
    assert "rejected" not in capsys.readouterr().out.replace("rows_rejected", "")
    for name in ("log_standard_4_22_to_5_08_pure.csv", "user_features_pure.csv"):
        with open(folder / name, "a") as file:
            file.write("1,2\n")
    assert cli.main(prepare) == 0
    *_, log, table, place = capsys.readouterr().out.splitlines()
    assert (log, table) == ("rejected, not 19 fields: 1", "rejected in feature tables, not 31 fields: 1")
    assert Path(place.removeprefix("rejected lines: ")).read_bytes().count(b"\n") == 2


def test_options_of_kuairand_are_refused_elsewhere(capsys):
    assert cli.main(["data", "prepare", "criteo-synth", "--duplicates", "drop"]) == 2
    assert "--duplicates is an option of KuaiRand" in capsys.readouterr().err


@pytest.mark.data
def test_copies_can_be_dropped(real_data, capsys):
    assert cli.main(["data", "prepare", "kuairand-pure", "--root", str(real_data), "--duplicates", "drop"]) == 0
    lines = dict(line.split(": ") for line in capsys.readouterr().out.splitlines() if ": " in line)
    counts = {name: int(value.replace(",", "")) for name, value in lines.items() if value.replace(",", "").isdigit()}
    assert counts["rows_in"] == 229_329
    assert counts["rows_out"] == 229_329 - 5_470  # 10 copies in the first file, 5,460 in the second
