"""Which data set a name opens, what is said where it is absent, and what `import datasets` means."""

import subprocess
import sys

import criteo_oracle as oracle
import pytest

import nestlab.data as data
from nestlab.errors import UserError


@pytest.mark.parametrize(("name", "twin"), [("criteo-1tb", "criteo-1tb-synth"), ("criteo-kaggle", "criteo-synth")])
def test_absent_real_data_is_one_line_with_the_remedy_and_the_own_twin(tmp_path, name, twin):
    with pytest.raises(UserError) as error:
        data.open_dataset(name, tmp_path / "nowhere", prepared=tmp_path)
    text = str(error.value)
    assert "\n" not in text
    for word in (name, "nowhere", "fetch", f"or use {twin}, "):
        assert word in text


def test_unknown_names_and_bad_numbers(tmp_path):
    with pytest.raises(UserError, match="choose one of criteo, criteo-1tb, criteo-kaggle, criteo-synth"):
        data.open_dataset("movielens", tmp_path)
    for bad in ({"rows": 0}, {"seed": -1}):
        with pytest.raises(UserError):
            data.open_dataset("criteo-synth", tmp_path, prepared=tmp_path, **bad)
    with pytest.raises(UserError, match="say which format"):
        data.open_dataset("criteo", tmp_path, file="x")
    with pytest.raises(UserError, match="no such file"):
        data.open_dataset("criteo-kaggle", tmp_path, file="x")
    with pytest.raises(UserError, match="block_bytes"):
        data.PrepareOptions(block_bytes=0)


def test_criteo_takes_what_is_there(tmp_path):
    def opened():
        return data.open_dataset("criteo", tmp_path, rows=5, prepared=tmp_path / "prepared").info

    assert (opened().id, opened().kind) == ("criteo-synth", "synthetic")
    oracle.write_file(tmp_path / "train.txt", oracle.made_rows(9))
    assert (opened().id, opened().kind, opened().rows) == ("criteo-kaggle", "real", 5)
    oracle.write_file(tmp_path / "day_3", oracle.made_rows(9))
    assert opened().id == "criteo-1tb"


def test_available_says_what_was_found_and_where(tmp_path):
    oracle.write_file(tmp_path / "criteo-kaggle" / "dac" / "train.txt", oracle.made_rows(2))
    found = {record.name: record for record in data.available(tmp_path)}
    assert [record.found for name, record in found.items() if name.startswith("criteo")] == [False, True, True, True]
    assert found["criteo-kaggle"].path.endswith("train.txt")
    assert str(tmp_path) in found["criteo-1tb"].path
    assert data.available(tmp_path / "nowhere")[1].found is False


def test_describe(tmp_path):
    oracle.write_file(tmp_path / "train.txt", oracle.made_rows(200))
    frames = data.commands.describe("criteo", tmp_path, prepared=tmp_path / "prepared")
    assert list(frames) == ["dataset", "dense", "categorical", "inputs", "rejected"]
    assert frames["dataset"].loc[0, "title"] == "Criteo Kaggle (real, 200 rows)"
    rows = oracle.made_rows(200)
    first = [r[1] for r in rows]
    dense = frames["dense"].set_index("column").loc["I1"]
    assert dense["missing"] == pytest.approx(first.count(None) / 200)
    assert dense["max"] == max(v for v in first if v is not None)
    categorical = frames["categorical"].set_index("column").loc["C1"]
    assert categorical["unique"] == len({r[14] for r in rows} - {None})


def test_a_column_that_is_always_missing_is_described(tmp_path):
    oracle.write_file(tmp_path / "train.txt", [[0] + [None] * 39] * 3)
    frames = data.commands.describe("criteo", tmp_path, prepared=tmp_path / "prepared")
    assert (frames["categorical"]["missing"] == 1).all()
    (batch,) = data.open_dataset("criteo", tmp_path, prepared=tmp_path / "prepared").batches("all", 8)
    assert (batch.ids.numel(), int(batch.lengths.sum()), float(batch.dense.sum())) == (0, 0, 0.0)


def test_datasets_is_the_hugging_face_package(project):
    assert not (project / "datasets" / "__init__.py").exists()
    program = "import datasets; print(datasets.__file__, datasets.Dataset.__module__)"
    ended = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=True)
    file, module = ended.stdout.split()
    assert "site-packages" in file
    assert module == "datasets.arrow_dataset"
