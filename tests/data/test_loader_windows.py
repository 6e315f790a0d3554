"""Shuffling within windows: every row once an epoch, near where it lay; the same for any ranks and any beginning."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.batch import Batch
from nestlab.benchmarks.data_loader import Scale, run_loader
from nestlab.data import window_shuffle
from nestlab.data.loader import Loader, Position
from nestlab.errors import UserError
from nestlab.training.recipe import SaveOptions, TrainOptions, assemble


def collate(rows: pa.Table) -> Batch:
    ids = torch.from_numpy(rows.column("row").to_numpy().copy())
    return Batch(
        torch.zeros(len(ids), 0), ("row",), ids, torch.ones(len(ids), dtype=torch.int64), torch.zeros(len(ids))
    )


def loader(rows: int, batch: int, first: int = 0, **options) -> Loader:
    chunks = pa.chunked_array([pa.array(part) for part in np.array_split(np.arange(rows + first), 3)])
    return Loader(pa.table({"row": chunks}), collate, (first, rows + first), batch, **{"shuffle": "window", **options})


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(window_shuffle, "WINDOW_ROWS", 12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 70), st.integers(1, 20), st.integers(0, 5), st.integers(1, 3), st.data())
def test_every_row_once_and_the_same_for_any_ranks_and_any_beginning(rows, batch, first, world, data):
    """Broken on purpose: an order that depends on how many of its rows a rank reads. It failed."""
    window_shuffle.WINDOW_ROWS = 12
    whole = [each.ids.tolist() for each in loader(rows, batch, first)]
    order = [row for each in whole for row in each]
    assert sorted(order) == list(range(first, first + rows))
    assert [len(each) for each in whole] == [min(batch, rows - at) for at in range(0, rows, batch)]
    span = max(1, 12 // batch) * batch
    for place, row in enumerate(order):
        assert (row - first) // span == place // span
    for rank in range(world):
        own = [each.ids.tolist() for each in loader(rows, batch, first).slice(rank, world)]
        assert own == [each[rank * len(each) // world : (rank + 1) * len(each) // world] for each in whole]
    begin = data.draw(st.integers(0, len(whole)))
    later = loader(rows, batch, first)
    later.begin_at(Position(0, begin))
    if begin < len(whole):
        assert [each.ids.tolist() for each in later] == whole[begin:]


def test_epochs_windows_and_seeds_differ():
    """Broken on purpose: the order drawn from (seed, epoch) alone. It failed."""
    one = loader(60, 6, seed=1)
    first, second = ([each.ids.tolist() for each in one] for _ in range(2))
    assert first != second and first != [each.ids.tolist() for each in loader(60, 6, seed=2)]
    orders = {tuple(np.concatenate(first[at : at + 2]) - 6 * at) for at in range(0, 10, 2)}
    assert len(orders) == 5


def test_its_state_is_an_epoch_and_a_batch():
    one, other = loader(40, 5), loader(40, 5)
    list(one)
    one.begin_at(Position(1, 3))
    other.load_state_dict(one.state_dict())
    assert (one.state_dict()["epoch"], one.state_dict()["batch"]) == (1, 3)
    assert [each.ids.tolist() for each in other] == [each.ids.tolist() for each in one]
    with pytest.raises(UserError, match="batch=9"):
        other.load_state_dict({"epoch": 0, "batch": 9})


@pytest.mark.parametrize("shuffle", [False, "full", "window"])
@pytest.mark.parametrize("taken", [0, 1, 3, 8])
def test_a_state_taken_in_the_middle_goes_on_behind_the_last_batch(shuffle, taken):
    """Also where the iteration was given up, and for another rank of another number of them. Broken on purpose: the
    state that of the next iteration; the batch counted when it is asked for again."""
    whole = [[each.ids.tolist() for each in epoch] for one in [loader(40, 5, shuffle=shuffle)] for epoch in (one, one)]
    one = loader(40, 5, shuffle=shuffle)
    batches = iter(one)
    assert [next(batches).ids.tolist() for _ in range(taken)] == whole[0][:taken]
    state = json.loads(json.dumps(one.state_dict()))
    assert (state["epoch"], state["batch"]) == (taken // 8, taken % 8)
    other, third = loader(40, 5, shuffle=shuffle), loader(40, 5, shuffle=shuffle).slice(1, 5)
    for each in (other, third):
        each.load_state_dict(state)
    left = whole[0][taken:] or whole[1]
    assert [each.ids.tolist() for each in other] == left
    assert [each.ids.tolist() for each in third] == [ids[1:2] for ids in left]
    assert [each.ids.tolist() for each in batches] == whole[0][taken:]  # the first one is not disturbed
    assert one.state_dict()["epoch"] == 1
    one.load_state_dict({"epoch": 0, "batch": 2})  # as an earlier version wrote it
    assert one.state_dict()["batch"] == 2
    assert [each.ids.tolist() for each in one] == whole[0][2:]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("batch_size", {"batch": 10}),
        ("shuffle", {"shuffle": "full"}),
        ("seed", {"seed": 1}),
        ("batches", {"limit": 3}),
        ("rows", {"first": 2}),
        ("data", {"data": "b"}),
    ],
)
def test_the_state_of_another_setting_is_refused(name, other):
    state = loader(**{"rows": 40, "batch": 5, "data": "a"}).state_dict()
    into = loader(**{"rows": 40, "batch": 5, "data": "a"} | other)
    with pytest.raises(UserError, match=rf"state: of {name}=.*, this loader has .*; load it into one of the same"):
        into.load_state_dict(state)
    with pytest.raises(UserError, match="state: not a loader's, it lacks batch and epoch"):
        into.load_state_dict({})


def test_an_unknown_shuffle_is_refused():
    with pytest.raises(UserError, match="shuffle=some: choose full or window, or False"):
        Loader(pa.table({"row": [1]}), collate, (0, 1), 1, shuffle="some")


def test_the_benchmark_says_what_was_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("NESTLAB_PREPARED", str(tmp_path))
    rows, summary = run_loader(Scale(rows=3000, batch=256, repeats=1, steps=2))
    assert [row["reading"] for row in rows] == ["in order", "window", "full", "torch DataLoader"]
    assert all(0 < row["p10"] <= row["samples_s"] <= row["p90"] for row in rows)
    assert set(summary) == {"loader_samples_s", "loader_vs_torch_dataloader", "loader_cpu_share"}


def test_a_training_reads_windows_where_it_is_asked_to(tmp_path, monkeypatch):
    """The order is a fact of a training: one that goes on with another order is refused."""
    monkeypatch.setenv("NESTLAB_PREPARED", str(tmp_path))
    options = TrainOptions("criteo-synth", str(tmp_path), rows=600, batch_size=64, device="cpu", evaluations=1)
    saves = SaveOptions(tmp_path / "saved", restart=True)
    with assemble(replace(options, shuffle="window", max_steps=2), saves=saves, report=lambda line: None) as recipe:
        assert recipe.train.shuffle == "window"
        recipe.fit()
    with pytest.raises(UserError, match="shuffle=window, and this run has shuffle=full"):
        assemble(options, saves=saves, report=lambda line: None)
    with pytest.raises(UserError, match="train: shuffle=some"):
        replace(options, shuffle="some")
