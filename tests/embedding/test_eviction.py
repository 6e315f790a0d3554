"""Eviction by age and by score against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.embedding import KeySet, TableConfig
from nestlab.embedding.buckets import BucketedIndex
from nestlab.embedding.features import FeatureRules
from nestlab.embedding.features.eviction import Eviction, RowStats, eviction
from nestlab.embedding.host.rows import Rows
from nestlab.embedding.index import KeyIndex

pytestmark = pytest.mark.core

INT64 = np.iinfo(np.int64)
ID = st.one_of(st.sampled_from([INT64.min, INT64.max]), st.integers(-6, 6))
TABLES = (TableConfig("a", 2), TableConfig("b", 2, evict_after=4))
OCCURRENCES = st.dictionaries(
    st.tuples(st.integers(0, 1), ID), st.tuples(st.integers(1, 2), st.integers(0, 1)), max_size=12
)


def counted(occurrences: dict) -> KeySet:
    """(table, id) → (shows, clicks), as a KeySet."""
    ordered = [key for table in range(2) for key in occurrences if key[0] == table]
    first = sum(1 for table, _ in ordered if table == 0)
    shows = np.array([occurrences[key][0] for key in ordered], dtype=np.int64)
    clicks = np.array([occurrences[key][1] for key in ordered], dtype=np.float64)
    return KeySet(np.array([i for _, i in ordered], dtype=np.int64), [0, first, len(ordered)], shows, clicks)


def named(keys: KeySet) -> list[tuple[int, int]]:
    return list(zip(keys.tables(np.arange(len(keys))).tolist(), keys.ids.tolist(), strict=True))


class Reference:
    """The rules, key by key."""

    def __init__(self, rules: FeatureRules) -> None:
        self.rules, self.seen, self.gained, self.score = rules, {}, {}, {}

    def used(self, keys: KeySet, number: int) -> None:
        for i, key in enumerate(named(keys)):
            self.seen[key] = number
            gain = self.rules.show_weight * int(keys.counts[i]) + self.rules.click_weight * float(keys.clicks[i])
            self.gained[key] = self.gained.get(key, 0.0) + gain

    def victims(self, number: int) -> list[tuple[int, int]]:
        idle = [key for key, seen in self.seen.items() if seen < number - 1]
        if self.rules.evict == "age":
            after = [self.rules.evict_after if t.evict_after is None else t.evict_after for t in TABLES]
            gone = [key for key in idle if number - self.seen[key] > after[key[0]]]
        else:
            for key in self.seen:
                total = self.score.get(key, 0.0) + self.gained.pop(key, 0.0)
                self.score[key] = total * self.rules.decay
            gone = sorted(idle, key=lambda key: (self.score[key], key[1], key[0]))
            gone = gone[: int(self.rules.evict_share * len(self.seen))]
        for key in gone:
            self.seen.pop(key), self.score.pop(key, None), self.gained.pop(key, None)
        return sorted(gone)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(OCCURRENCES, max_size=14),
    st.sampled_from(["age", "score"]),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.sampled_from([KeyIndex, lambda: BucketedIndex(1, buckets=4)]),
)
def test_victims_equal_plain_python(batches, evict, share, make):
    """A round every third batch. Weights are powers of two, so that sums are exact in any order.

    Broken on purpose: ties by row instead of by id, scores of victims not cleared, the previous batch's rows taken,
    one age for all tables: each fails here.
    """
    rules = FeatureRules(evict=evict, evict_after=2, evict_share=share, click_weight=4.0, decay=0.5)
    asked, reference, index, book = eviction(rules, TABLES, 1000), Reference(rules), make(), Rows(1000, 8)
    for number, occurrences in enumerate(batches, start=1):
        keys = counted(occurrences)
        rows, _ = index.find_or_insert(keys, book)
        book.seen(rows, number)
        asked.used(rows, keys)
        reference.used(keys, number)
        if number % 3 == 0:
            gone, rows = asked.victims(index, book.last_seen[: book.ever], number)
            assert named(gone) == reference.victims(number)
            assert (index.remove(gone) == rows).all()
            book.give_back(rows[::-1].copy())
    assert len(index) == len(reference.seen)


def test_the_lowest_share_goes_and_ties_go_by_id_then_table():
    """Broken on purpose: of equal scores by table first, (0, 0) goes and not (1, −5)."""
    asked, index, book = eviction(FeatureRules(evict="score", evict_share=0.5), TABLES, 100), KeyIndex(), Rows(100, 8)
    keys = counted({(0, 3): (1, 0), (0, 0): (1, 0), (0, -5): (1, 0), (1, -5): (1, 0)})
    rows, _ = index.find_or_insert(keys, book)
    asked.used(rows, keys)
    gone, gone_rows = asked.victims(index, book.last_seen[: book.ever], 100)
    assert named(gone) == [(0, -5), (1, -5)] and gone_rows.tolist() == [2, 3]


def test_rows_of_batches_in_flight_stay_whatever_their_score():
    asked, index, book = eviction(FeatureRules(evict="score", evict_share=1.0), TABLES, 100), KeyIndex(), Rows(100, 8)
    rows, _ = index.find_or_insert(counted({(0, i): (1, 0) for i in range(6)}), book)
    book.last_seen[rows] = [96, 97, 98, 99, 100, 100]
    gone, _ = asked.victims(index, book.last_seen[: book.ever], 100)
    assert named(gone) == [(0, 0), (0, 1), (0, 2)]


def test_age_is_more_than_evict_after_of_its_table():
    rules = FeatureRules(evict="age", evict_after=10)
    asked, index, book = eviction(rules, TABLES, 100), KeyIndex(), Rows(100, 8)
    rows, _ = index.find_or_insert(counted({(t, i): (1, 0) for t in range(2) for i in range(12)}), book)
    book.last_seen[rows] = np.tile(np.arange(12), 2) + 89
    gone, _ = asked.victims(index, book.last_seen[: book.ever], 100)
    assert named(gone) == [(0, 0)] + [(1, i) for i in range(7)]
    assert asked.stats is None


def test_free_rows_are_nobodys_victims_and_refused_keys_leave_no_trace():
    asked, index, book = eviction(FeatureRules(evict="score", evict_share=1.0), TABLES, 50), KeyIndex(), Rows(50, 8)
    keys = counted({(0, i): (1, 0) for i in range(8)})
    rows, _ = index.find_or_insert(keys, book)
    asked.used(np.where(rows % 2 == 0, rows, -1), keys)
    assert asked.stats.array[:8, 0].tolist() == [1, 0] * 4 and not asked.stats.array[8:].any()
    index.remove(keys.take(np.arange(4)))  # rows in quarantine: neither in the index nor free
    gone, gone_rows = asked.victims(index, book.last_seen[: book.ever], 9)
    assert gone_rows.tolist() == [4, 5, 6, 7] and len(gone) == 4


def test_no_rows_and_no_share():
    for evict in ("age", "score"):
        asked = Eviction(FeatureRules(evict=evict), TABLES, 10)
        gone, rows = asked.victims(KeyIndex(), np.empty(0, dtype=np.int32), 100)
        assert len(gone) == 0 and gone.offsets.tolist() == [0, 0, 0] and rows.size == 0
    assert eviction(FeatureRules(), TABLES, 10) is None


def test_rounds_are_due_by_number():
    asked = Eviction(FeatureRules(evict="age", evict_every=10), TABLES, 10)
    assert [number for number in range(31) if asked.due(number)] == [10, 20, 30]


def test_stats_survive_a_checkpoint_in_any_order_of_rows():
    stats, other = RowStats(100), RowStats(100)
    keys = counted({(0, i): (i + 1, i % 3) for i in range(6)})
    stats.add(np.array([5, 3, 1, 0, 2, 4]), keys)
    stats.array[:, 2] = np.arange(100)
    rows, elsewhere = np.array([3, 0, 5]), np.array([10, 2, 99])
    other.load_state(elsewhere, stats.state(rows))
    assert (other.array[elsewhere] == stats.array[rows]).all() and other.array.sum() == stats.array[rows].sum()
    assert stats.state(rows)["shows"].tolist() == [2, 4, 1] and RowStats.nbytes(10) == 240
