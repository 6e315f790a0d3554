"""Deduplication against plain Python, and routing of a batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.batch import Batch
from nestlab.embedding import SGD, EmbeddingStore, KeyLayout, Scratch, TableConfig, deduplicate, keys, route
from nestlab.embedding.config import group_tables
from nestlab.errors import UserError

pytestmark = pytest.mark.core

INT64 = np.iinfo(np.int64)
ID = st.one_of(
    st.sampled_from([INT64.min, INT64.max, 0, -1]), st.integers(-5, 5), st.integers(-4, 4).map(lambda k: k << 44)
)
SEGMENTS = st.lists(st.tuples(st.integers(0, 3), st.lists(ID, max_size=40)), max_size=6)


def reference(segments: list[tuple[int, list[int]]], tables: int):
    """The same, by dicts."""
    places, unique, offsets = {}, [], [0]
    for table in range(tables):
        for t, ids in segments:
            for i in ids if t == table else ():
                if (table, i) not in places:
                    places[table, i] = len(unique)
                    unique.append(i)
        offsets.append(len(unique))
    return unique, offsets, [places[t, i] for t, ids in segments for i in ids]


@settings(max_examples=150, deadline=None)
@given(SEGMENTS)
def test_deduplicate_equals_plain_python(segments):
    """Broken on purpose: with one stamp for all tables, tables that share an id share its place, and this fails."""
    ids = np.array([i for _, run in segments for i in run], dtype=np.int64)
    offsets = np.cumsum([0] + [len(run) for _, run in segments])
    got = deduplicate(ids, offsets, [t for t, _ in segments], 4)
    assert tuple(part.tolist() for part in got) == reference(segments, 4)


def test_deduplicate_equals_numpy_on_many_ids():
    rng = np.random.default_rng(1)
    ids = rng.integers(INT64.min, INT64.max, 20_000)[rng.zipf(1.2, 100_000) % 20_000]
    unique, offsets, inverse = deduplicate(ids, [0, ids.size])
    expected, first = np.unique(ids, return_index=True)
    assert offsets.tolist() == [0, expected.size]
    assert (unique == ids[np.sort(first)]).all() and unique.size == expected.size
    assert (unique[inverse] == ids).all()


def test_scratch_is_reused_without_clearing_and_survives_its_last_stamp():
    scratch = Scratch()
    scratch._stamp = keys._LAST_STAMP - 2
    for i in range(6):
        unique, _, inverse = deduplicate(np.array([i, 5, i, 5]), [0, 4], scratch=scratch)
        assert unique[inverse].tolist() == [i, 5, i, 5]
    assert scratch._stamp < 10


def test_every_thread_has_a_scratch_of_its_own():
    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            ids = rng.integers(0, 500, 2_000)
            unique, _, inverse = deduplicate(ids, [0, ids.size])
            if not (unique[inverse] == ids).all() or unique.size != np.unique(ids).size:
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def batch(features: tuple[str, ...], ids: list[int], lengths: list[int], size: int, weights=None) -> Batch:
    return Batch(
        dense=torch.zeros(size, 1),
        features=features,
        ids=torch.tensor(ids, dtype=torch.int64),
        lengths=torch.tensor(lengths, dtype=torch.int64),
        labels=torch.zeros(size),
        id_weights=None if weights is None else torch.tensor(weights),
    )


def test_route_splits_a_batch_by_group_and_shares_tables():
    tables = [TableConfig("user", 4), TableConfig("item", 8, ("seen", "bought")), TableConfig("shop", 4)]
    layout = KeyLayout(group_tables(tables, lambda dim: 0))
    data = batch(("bought", "user", "seen", "shop"), [7, 7, 1, 2, 9, 7, 1, 3], [2, 0, 1, 1, 1, 1, 2, 0], 2, range(8))
    narrow, wide = route(data, layout)
    assert narrow.features == ("user", "shop")
    assert narrow.keys.ids.tolist() == [1, 2, 1, 3] and narrow.keys.offsets.tolist() == [0, 2, 4]
    assert narrow.positions.tolist() == [0, 1, 2, 3] and narrow.lengths.tolist() == [1, 1, 2, 0]
    assert narrow.id_weights.tolist() == [2, 3, 6, 7]
    assert wide.features == ("bought", "seen") and wide.keys.ids.tolist() == [7, 9]
    assert wide.positions.tolist() == [0, 0, 1, 0] and wide.lengths.tolist() == [2, 0, 1, 1]
    assert wide.id_weights.tolist() == [0, 1, 4, 5]
    assert layout.bind(data.features) is layout.bind(tuple(data.features))


def test_mismatched_features_are_one_clear_error():
    store = EmbeddingStore([TableConfig("user", 4), TableConfig("item", 4)], SGD(lr=0.1))
    with pytest.raises(UserError, match=r"no table for the batch's feature\(s\) shop"):
        route(batch(("user", "item", "shop"), [], [0, 0, 0], 1), store.layout)
    with pytest.raises(UserError, match=r"the batch lacks feature\(s\) item \(table item\)"):
        route(batch(("user",), [], [0], 1), store.layout)


def test_an_empty_batch_routes():
    store = EmbeddingStore([TableConfig("user", 4)], SGD(lr=0.1))
    (group,) = route(batch(("user",), [], [], 0), store.layout)
    assert len(group.keys) == 0 and group.positions.numel() == 0 and group.lengths.numel() == 0
