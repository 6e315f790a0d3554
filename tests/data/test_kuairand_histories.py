"""Histories: against a slow oracle, on random logs with ties, and on a real user."""

import kuairand_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kuairand_log import ids_of

import nestlab.data as data
from nestlab.data import histories
from nestlab.data.kuairand_format import ACTIONS
from nestlab.errors import UserError


def made_histories(batch):
    """[[(video, action, gap)] of each sample]"""
    columns = [ids_of(batch, name) for name in ("hist_video_id", "hist_action", "hist_gap_ms")]
    return [list(zip(*runs, strict=True)) for runs in zip(*columns, strict=True)]


@pytest.mark.core
@given(st.lists(st.integers(-3, 3), max_size=40), st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_the_last_events_of_every_row(users, limit):
    at = histories.places(np.array(users, np.int64))
    run = histories.last(at.place, at.seen, limit)
    order = np.empty(len(users), np.int64)
    order[at.place] = np.arange(len(users))  # event → row
    got = np.split(order[run.index], np.cumsum(run.lengths)[:-1]) if users else []
    for i, user in enumerate(users):
        earlier = [j for j in range(i) if users[j] == user]
        assert at.seen[i] == len(earlier)
        assert got[i].tolist() == earlier[-limit:]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=25),
    st.sampled_from([1, 2, 30]),
    st.integers(1, 7),
)
@settings(max_examples=15, deadline=None)
def test_prepared_histories_of_random_logs_with_ties(tmp_path_factory, rows, limit, size):
    root = tmp_path_factory.mktemp("log")
    made = [oracle.event(u, v, oracle.NOON + t, is_click=i % 2) for i, (u, v, t) in enumerate(rows)]
    path = oracle.write_log(root, made)
    dataset = data.open_dataset("kuairand-pure", root, prepared=root / "prepared")
    got = [h for batch in dataset.batches("all", size, history=limit) for h in made_histories(batch)]
    assert got == oracle.histories(oracle.read_log(path), limit)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    rows = oracle.made_rows(500, users=5)
    path = oracle.write_log(root, rows)
    return data.open_dataset("kuairand-pure", root, prepared=root / "prepared"), oracle.read_log(path)


@pytest.mark.core
def test_shuffled_batches_bring_every_sample_its_own_history(made):
    dataset, rows = made
    expected = oracle.histories(rows, 20)
    order = np.random.default_rng([3, 0]).permutation(400)
    batches = list(dataset.batches("train", 64, shuffle=True, seed=3, history=20))
    got = [h for batch in batches for h in made_histories(batch)]
    assert got == [expected[i] for i in order]
    labels = [label for batch in batches for label in batch.labels.tolist()]
    assert labels == [rows[i]["is_click"] for i in order]


def test_held_out_samples_see_all_earlier_events_training_and_held_out_and_none_later(made):
    dataset, rows = made
    (batch,) = dataset.batches("heldout", 200, history=1000)
    got = made_histories(batch)
    assert got == oracle.histories(rows, 1000)[400:]
    border = rows[400]["time_ms"]
    assert any(len(h) > 50 for h in got)
    assert all(gap > 0 for h in got for _, _, gap in h)
    seen = [rows[400 + i]["time_ms"] - gap for i, h in enumerate(got) for _, _, gap in h]
    assert min(seen) < border <= max(seen)


def test_features_of_a_batch_with_and_without_history(made):
    dataset, _ = made
    without, beside = (next(iter(dataset.batches("all", 8, history=h))) for h in (0, 3))
    assert without.features == dataset.features
    assert beside.features == (*dataset.features, *dataset.sequence_features)
    assert max(len(run) for run in ids_of(beside, "hist_action")) <= 3
    assert (beside.dense == without.dense).all()
    n = len(without.ids)
    assert (beside.ids[:n] == without.ids).all()


def test_only_the_sequences_asked_for(made):
    dataset, rows = made
    (batch,) = dataset.batches("all", 500, history=4, sequences=["hist_gap_ms", "hist_video_id"])
    assert batch.features == (*dataset.features, "hist_gap_ms", "hist_video_id")
    expected = oracle.histories(rows, 4)
    assert ids_of(batch, "hist_gap_ms") == [[gap for _, _, gap in h] for h in expected]
    assert ids_of(batch, "hist_video_id") == [[video for video, _, _ in h] for h in expected]
    with pytest.raises(UserError, match="hist_mood"):
        dataset.batches("all", 5, history=4, sequences=["hist_mood"])


def test_all_actions_as_one_label_and_gaps_as_values(made):
    dataset, rows = made
    (batch,) = dataset.batches("all", 500, label="actions", history=2)
    assert batch.values == ("hist_gap_ms",)
    assert batch.labels.tolist() == [sum(row[name] * bit for name, bit in ACTIONS.items()) for row in rows]
    assert len(set(batch.labels.tolist())) > 2
    (without,) = dataset.batches("all", 500, label="is_like")
    assert without.values == () and without.labels.tolist() == [row["is_like"] for row in rows]


def test_micro_batches_keep_histories(made):
    dataset, _ = made
    batch = next(iter(dataset.batches("heldout", 50, history=4)))
    parts = [h for part in batch.micro_batches(3) for h in made_histories(part)]
    assert parts == made_histories(batch)


def test_chunks_of_the_order_do_not_show(made, tmp_path, monkeypatch):
    dataset, rows = made
    monkeypatch.setattr("nestlab.data.kuairand_merge.PIECE", 37)
    oracle.write_log(tmp_path, oracle.made_rows(500, users=5))
    options = data.KuaiRandOptions(block_bytes=3000)
    chunked = data.open_dataset("kuairand-pure", tmp_path, prepared=tmp_path / "prepared", options=options)
    assert chunked.table.equals(dataset.table)
    (batch,) = chunked.batches("all", 500, history=9)
    assert made_histories(batch) == oracle.histories(rows, 9)
