"""KuaiRand's synthetic twin: the files' exact form, the oddities it copies, and a signal that can be learnt."""

import json

import kuairand_oracle as oracle
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

import nestlab.data as data
from nestlab.data import kuairand_synth
from nestlab.data.kuairand_synth import Twin
from nestlab.data.planted import expected_auc
from nestlab.errors import UserError

ROWS = 30_000


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return tmp_path_factory.mktemp("twin")


@pytest.fixture(scope="module")
def twin(prepared):
    return data.open_dataset("kuairand-synth", rows=ROWS, prepared=prepared)


@pytest.fixture(scope="module")
def raw(twin, prepared):
    (folder,) = prepared.glob(f"raw-kuairand-synth-*-rows{ROWS}-seed0")
    return folder


@pytest.fixture(scope="module")
def truth(raw):
    return json.loads((raw / "truth.json").read_text())


def test_titles_say_synthetic(twin):
    assert twin.info.title == "kuairand-synth (SYNTHETIC, 30,000 rows)"
    assert (twin.info.kind, twin.info.id, twin.info.rows) == ("synthetic", "kuairand-synth", ROWS)
    assert twin.info.counts["rows_rejected"] == 0
    assert twin.manifest["rejected_in_tables"] == {}


def test_the_files_have_the_real_ones_form(raw):
    for name in (oracle.EARLY, oracle.LATE, oracle.RANDOM):
        lines = (raw / name).read_text().split("\n")
        assert (lines[0], lines.pop()) == (oracle.LOG, "")
        rows = oracle.read_log(raw / name)
        assert len(rows) == len(lines) - 1 > 0
        assert sorted(lines[1:]) == sorted(oracle.line(row) for row in rows)
        users = [int(line.split(",")[0]) for line in lines[1:]]
        assert users == sorted(users)
        assert {row["is_rand"] for row in rows} == {int(name == oracle.RANDOM)}
    for name, header in (("user_features_pure.csv", oracle.USERS), ("video_features_basic_pure.csv", oracle.VIDEOS)):
        assert (raw / name).read_text().split("\n")[0] == header
        assert len({len(row) for row in oracle.read_table(raw / name)}) == 1


@pytest.mark.data
def test_the_real_and_the_made_tables_write_their_fields_alike(real_data, raw):
    """Column by column: whole numbers without a point, floats with ".0", words, nothing where it is missing."""

    def kind(text):
        if not text or text.endswith(".0"):
            return "float" if text else "nothing"
        return "int" if text.lstrip("-").isdigit() else "word"

    def kinds(path):
        rows = oracle.read_table(path)
        return {name: {kind(row[name]) for row in rows} for name in rows[0]}

    for name in ("user_features_pure.csv", "video_features_basic_pure.csv"):
        real, made = kinds(real_data / "KuaiRand-Pure" / "data" / name), kinds(raw / name)
        assert list(real) == list(made)
        assert {c: k for c, k in made.items() if not k <= real[c]} == {}


def test_oddities_are_copied(twin):
    frames = twin.describe(ROWS)
    time, plays = frames["time"].loc[0], frames["plays"].loc[0]
    assert time["hourmin_ahead"] == pytest.approx(0.175, abs=0.01)
    assert time["date_differs"] == pytest.approx(0.010, abs=0.004)
    assert time["same_ms_as_user_s_last"] == pytest.approx(0.033, abs=0.008)
    assert time["peak_hour"] == 22
    assert plays["zero_play"] == pytest.approx(0.12, abs=0.02)
    assert 0.005 < plays["zero_duration"] < 0.08
    assert plays["play_beyond_duration"] == pytest.approx(0.13, abs=0.03)
    assert twin.info.counts["rows_duplicate"] / ROWS == pytest.approx(0.02, abs=0.004)
    columns = frames["categorical"].set_index("column")
    assert columns.loc["is_live_streamer", "missing"] == pytest.approx(0.774, abs=0.05)
    assert columns.loc["video_id", "top_share"] > 5 / columns.loc["video_id", "unique"]  # skewed
    tabs = frames["tabs"].set_index("tab")
    assert tabs.loc[1, "share"] == pytest.approx(0.748, abs=0.02)
    assert tabs.loc[0, "click_rate"] < 0.15 < 0.45 < tabs.loc[1, "click_rate"] < tabs.loc[4, "click_rate"]
    labels = frames["labels"].set_index("label")
    assert labels.loc["is_click", "rate"] == pytest.approx(0.44, abs=0.02)
    assert labels.loc["long_view", "given_click"] == pytest.approx(0.70, abs=0.02)
    lengths = np.unique(twin.table.column("user_id").to_numpy(), return_counts=True)[1]
    assert lengths.max() > 4 * np.median(lengths)
    random = data.open_dataset(
        "kuairand-synth", rows=ROWS, prepared=twin.prepared.folder.parent, options=data.KuaiRandOptions(logs="random")
    )
    assert random.describe(ROWS)["dataset"].loc[0, "click_rate"] < 0.30


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    one, again, other = (
        data.commands.synth("kuairand", tmp_path / name, rows=2_000, seed=seed)
        for name, seed in (("a", 4), ("b", 4), ("c", 5))
    )
    assert [path.name for path in one] == [*kuairand_synth.FILES, "truth.json"]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in again]
    assert all(a.read_bytes() != b.read_bytes() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("rows", [1, 2, 777])
def test_any_size(rows, tmp_path):
    dataset = data.open_dataset("kuairand-synth", rows=rows, prepared=tmp_path)
    assert dataset.info.rows == rows
    assert sum(batch.size for batch in dataset.batches("all", 100, history=5)) == rows


def test_blocks_are_whole_users_and_together_the_log(monkeypatch):
    monkeypatch.setattr(kuairand_synth, "BLOCK", 1000)
    made = Twin(5_000, seed=1)
    blocks = list(made.blocks(made.logs[0]))
    assert len(blocks) > 3
    users = [set(columns["user_id"].tolist()) for columns, _ in blocks]
    assert sum(len(u) for u in users) == len(set.union(*users))
    assert sum(len(p) for _, p in blocks) == 5_000
    again = list(made.blocks(made.logs[0]))[2][0]
    assert all((again[name] == blocks[2][0][name]).all() for name in again)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_recorded_bayes_auc_is_that_of_the_clicks(seed):
    made = Twin(40_000, seed)
    columns, p = next(made.blocks(made.logs[0]))
    assert expected_auc(p, np.ones(len(p))) == pytest.approx(0.76, abs=0.012)
    assert roc_auc_score(columns["is_click"], p) == pytest.approx(expected_auc(p, np.ones(len(p))), abs=0.012)


def test_the_signal_can_be_learnt(twin, truth):
    """By a linear model, on later rows than it was fitted on; pairs are left to better models."""
    names = ["tab", "user_id", "video_id", "onehot_feat1", "user_active_degree", "author_id"]
    columns = twin.joiner.columns(twin.table)
    ids = np.stack([columns[name].fill_null(-1).to_numpy() for name in names], axis=1)
    first_tag = np.array([tags[0] if tags else -1 for tags in columns["tag"].to_pylist()])
    x = OneHotEncoder(min_frequency=3).fit_transform(np.column_stack([ids, first_tag])).tocsr()
    y = twin.table.column("is_click").to_numpy()
    border = twin.rows("heldout")[0]
    model = LogisticRegression(C=0.2, tol=1e-2, max_iter=100).fit(x[:border], y[:border])
    auc = roc_auc_score(y[border:], model.predict_proba(x[border:])[:, 1])
    assert 0.66 < auc < truth["bayes_auc"]


def test_the_twin_s_files_never_pass_for_real_and_replace_only_their_own(tmp_path, prepared):
    data.commands.synth("kuairand-synth", tmp_path, rows=300)
    data.commands.synth("kuairand", tmp_path, rows=200)
    dataset = data.open_dataset("kuairand", tmp_path, prepared=prepared)
    assert (dataset.info.id, dataset.info.kind, dataset.info.rows) == ("kuairand-pure", "synthetic", 200)
    assert "SYNTHETIC" in dataset.info.title
    mine = oracle.write_log(tmp_path / "mine", [oracle.event()])
    with pytest.raises(UserError, match="was not written by this command"):
        data.commands.synth("kuairand", tmp_path / "mine", rows=10)
    assert mine.read_text().count("\n") == 2
    for bad in ({"rows": 0}, {"rows": 5, "seed": -1}):
        with pytest.raises(UserError):
            data.commands.synth("kuairand", tmp_path / "none", **bad)
    with pytest.raises(UserError, match="is made, not read"):
        data.open_dataset("kuairand-synth", file=mine, prepared=prepared)


def test_a_real_log_in_the_twin_s_place_is_never_replaced_and_a_mixture_is_not_titled_real(tmp_path, prepared):
    paths = data.commands.synth("kuairand", tmp_path, rows=200)
    mine = oracle.write_log(tmp_path, [oracle.event()])
    with pytest.raises(UserError, match=f"{oracle.LATE}: is there and was not written by this command"):
        data.commands.synth("kuairand", tmp_path, rows=100)
    assert mine.read_text().count("\n") == 2
    assert data.open_dataset("kuairand", tmp_path, prepared=prepared).info.kind == "synthetic"
    for path in paths[:-1]:
        if path.name not in (oracle.LATE, oracle.RANDOM):
            path.unlink()
    assert data.open_dataset("kuairand", tmp_path, prepared=prepared).info.title.startswith("KuaiRand-Pure (real, 1 of")
