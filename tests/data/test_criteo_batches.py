"""Prepared rows → batches: against an independent collation, in every split, order and size."""

import hashlib
import subprocess
import sys
import textwrap

import criteo_oracle as oracle
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nestlab.data as data
from nestlab.data.gathering import gather
from nestlab.data.loader import dense_log1p, jagged_columns
from nestlab.errors import UserError

ROWS = oracle.made_rows(503)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batches")
    oracle.write_file(folder / "criteo-kaggle" / "train.txt", ROWS)
    return folder, folder / "prepared"


@pytest.fixture(scope="module")
def dataset(places):
    # A small block makes many row groups, so that batches cross their borders.
    root, prepared = places
    return data.open_dataset("criteo-kaggle", root, prepared=prepared, options=data.PrepareOptions(block_bytes=9000))


def check(batch, rows):
    dense, ids, lengths, labels = oracle.batch(rows)
    assert batch.features == tuple(oracle.NAMES[14:])
    assert batch.ids.tolist() == ids
    assert batch.lengths.tolist() == lengths
    assert batch.labels.tolist() == labels
    assert (batch.dense.dtype, batch.labels.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(batch.dense, torch.tensor(dense, dtype=torch.float64).float(), rtol=3e-7, atol=0)


def order_of(loader):
    """The content of an epoch, in order."""
    return [(b.dense.numpy().tobytes(), b.ids.numpy().tobytes(), b.labels.numpy().tobytes()) for b in loader]


@pytest.mark.core
@pytest.mark.parametrize("size", [1, 7, 100, 402, 1000])
@pytest.mark.parametrize(("split", "rows"), [("train", ROWS[:402]), ("heldout", ROWS[402:]), ("all", ROWS)])
def test_batches_against_the_oracle(dataset, split, rows, size):
    loader = dataset.batches(split, size)
    batches = list(loader)
    assert len(batches) == len(loader) == -(-len(rows) // size)
    for i in range(0, len(batches), 1 + len(batches) // 12):
        check(batches[i], rows[i * size : (i + 1) * size])
    check(batches[-1], rows[(len(batches) - 1) * size :])


def test_drop_last_and_limit(dataset):
    assert [b.size for b in dataset.batches("train", 100)] == [100, 100, 100, 100, 2]
    assert [b.size for b in dataset.batches("train", 100, drop_last=True)] == [100] * 4
    assert [b.size for b in dataset.batches("train", 100, limit=2)] == [100] * 2
    assert len(dataset.batches("train", 100, limit=9)) == 5
    assert list(dataset.batches("train", 1000, drop_last=True)) == []


def test_one_sample(places, tmp_path):
    oracle.write_file(tmp_path / "criteo-kaggle" / "train.txt", ROWS[:1])
    dataset = data.open_dataset("criteo-kaggle", tmp_path, prepared=tmp_path / "prepared")
    (batch,) = dataset.batches("all", 4, shuffle=True)
    check(batch, ROWS[:1])
    assert list(dataset.batches("train", 4)) == []
    assert [b.size for b in dataset.batches("heldout", 4)] == [1]


@pytest.mark.core
def test_a_shuffled_epoch_holds_every_row_once_in_the_generator_s_order(dataset):
    loader = dataset.batches("train", 64, shuffle=True, seed=3)
    for epoch in (0, 1):
        order = np.random.default_rng([3, epoch]).permutation(402)
        assert sorted(order) == list(range(402))
        for i, batch in enumerate(loader):
            check(batch, [ROWS[r] for r in order[i * 64 : (i + 1) * 64]])


def test_epochs_differ_repeat_by_seed_and_resume(dataset):
    def loader(seed=0):
        return dataset.batches("train", 50, shuffle=True, seed=seed)

    one, other = loader(), loader()
    epochs = [order_of(one), order_of(one)]
    assert epochs[0] != epochs[1]
    assert epochs == [order_of(other), order_of(other)]
    assert order_of(loader(seed=1)) != epochs[0]
    resumed = loader()
    resumed.set_epoch(1)
    assert order_of(resumed) == epochs[1]
    assert resumed.epoch == 2
    plain = dataset.batches("train", 50)
    assert order_of(plain) == order_of(plain)


def test_an_epoch_left_half_way_does_not_disturb_the_next(dataset):
    left = dataset.batches("train", 50, shuffle=True)
    next(iter(left))
    whole = dataset.batches("train", 50, shuffle=True)
    list(whole)
    assert order_of(left) == order_of(whole)


def test_the_same_order_in_another_process_and_no_global_generator_moves(dataset, places):
    root, prepared = places
    program = f"""
        import hashlib, random, numpy, torch
        import nestlab.data as data
        before = (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
        options = data.PrepareOptions(block_bytes=9000)
        d = data.open_dataset("criteo-kaggle", {str(root)!r}, prepared={str(prepared)!r}, options=options)
        loader = d.batches("train", 50, shuffle=True, seed=5)
        digest = hashlib.sha256()
        for _ in range(2):
            for b in loader:
                digest.update(b.ids.numpy().tobytes())
        after = (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
        assert before == after
        print(digest.hexdigest())
    """
    here, loader = hashlib.sha256(), dataset.batches("train", 50, shuffle=True, seed=5)
    for _ in range(2):
        for batch in loader:
            here.update(batch.ids.numpy().tobytes())
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == here.hexdigest()


@pytest.mark.core
@given(st.lists(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=3, max_size=3), max_size=9))
@settings(max_examples=100, deadline=None)
def test_any_int64_is_an_id(rows):
    columns = [pa.array([r[f] for r in rows], pa.int64()) for f in range(3)]
    ids, lengths = jagged_columns(columns)
    assert ids.tolist() == [r[f] for f in range(3) for r in rows if r[f] is not None]
    assert lengths.tolist() == [int(r[f] is not None) for f in range(3) for r in rows]


@pytest.mark.core
def test_dense_convention():
    dense = dense_log1p([pa.array([0, -3, None, 1, 2_000_000], pa.int32())])
    np.testing.assert_allclose(dense[:, 0], [0, 0, 0, np.log(2), np.log(2_000_001)], rtol=1e-6)


@given(st.lists(st.integers(0, 19), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_gather_keeps_the_order_asked_for(rows):
    table = pa.concat_tables([pa.table({"x": list(range(i, i + 5))}) for i in range(0, 20, 5)])
    assert gather(table, np.array(rows)).column("x").to_pylist() == rows


@pytest.mark.parametrize(
    "bad",
    [{"batch_size": 0}, {"batch_size": 1, "limit": -1}, {"batch_size": 1, "seed": -1}, {"split": "x", "batch_size": 1}],
)
def test_bad_arguments_are_user_errors(dataset, bad):
    with pytest.raises(UserError):
        dataset.batches(**{"split": "train", **bad})


@pytest.mark.data
def test_real_batches_against_the_oracle(real_data, tmp_path):
    dataset = data.open_dataset("criteo-1tb", real_data, rows=2000, prepared=tmp_path)
    rows = oracle.read_file(real_data / "criteo-1tb" / "day_0")[0][:2000]
    for i, batch in enumerate(dataset.batches("heldout", 150)):
        check(batch, rows[1600 + i * 150 : 1600 + (i + 1) * 150])
