"""Admission against plain Python: exact counts, the sketch, shows and clicks; their states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.batch import Batch
from nestlab.embedding import KeyLayout, KeySet, TableConfig, route
from nestlab.embedding.config import group_tables
from nestlab.embedding.features import FeatureRules
from nestlab.embedding.features.admission import admission
from nestlab.errors import UserError

pytestmark = pytest.mark.core

INT64 = np.iinfo(np.int64)
ID = st.one_of(st.sampled_from([INT64.min, INT64.max, -1]), st.integers(0, 6))
TABLES = (TableConfig("a", 2), TableConfig("b", 2, admit_threshold=5), TableConfig("c", 2, admit_threshold=1))
OCCURRENCES = st.lists(st.tuples(st.integers(0, 2), ID, st.integers(0, 1)), max_size=25)


def counted(occurrences) -> KeySet:
    """(table, id, label) one an occurrence, as a KeySet with counts and clicks."""
    keys: dict[tuple[int, int], list[float]] = {}
    for table, id, label in occurrences:
        entry = keys.setdefault((table, id), [0, 0.0])
        entry[0] += 1
        entry[1] += label
    ordered = [key for table in range(len(TABLES)) for key in keys if key[0] == table]
    sizes = np.bincount(np.array([t for t, _ in ordered], dtype=np.int64), minlength=len(TABLES))
    return KeySet(
        np.array([i for _, i in ordered], dtype=np.int64),
        np.concatenate(([0], np.cumsum(sizes))),
        np.array([keys[key][0] for key in ordered], dtype=np.int64),
        np.array([keys[key][1] for key in ordered], dtype=np.float64),
    )


def named(keys: KeySet) -> list[tuple[int, int]]:
    return list(zip(keys.tables(np.arange(len(keys))).tolist(), keys.ids.tolist(), strict=True))


class Reference:
    """The rule, key by key. Keys that have a row are not asked again, as the host tier has it."""

    def __init__(self, rules: FeatureRules) -> None:
        self.rules, self.numbers, self.rows = rules, {}, set()

    def batch(self, keys: KeySet) -> list[bool]:
        admitted = []
        for i, key in enumerate(named(keys)):
            gain = int(keys.counts[i])
            if self.rules.admit == "show_click":
                gain = self.rules.show_weight * gain + self.rules.click_weight * float(keys.clicks[i])
            total = self.numbers.pop(key, 0) + gain
            own = TABLES[key[0]].admit_threshold
            admitted.append(total >= (self.rules.admit_threshold if own is None else own))
            if admitted[-1]:
                self.rows.add(key)
            else:
                self.numbers[key] = total
        return admitted


def unknown(keys: KeySet, rows: set) -> KeySet:
    return keys.take(np.array([i for i, key in enumerate(named(keys)) if key not in rows], dtype=np.int64))


@settings(max_examples=60, deadline=None)
@given(st.lists(OCCURRENCES, max_size=10), st.sampled_from(["count", "show_click"]), st.integers(0, 9))
def test_exact_rules_equal_plain_python(batches, admit, saved_after):
    """Broken on purpose: without this batch's counts an id comes a batch late; without the removal of the admitted, an
    id that lost its row comes back at once; both fail here. A checkpoint in the middle changes nothing."""
    rules = FeatureRules(admit=admit, admit_threshold=3, click_weight=1.5, decay=0.5)
    asked, reference = admission(rules, TABLES), Reference(rules)
    for number, occurrences in enumerate(batches):
        keys = unknown(counted(occurrences), reference.rows)
        assert asked.admit(keys).tolist() == reference.batch(keys)
        if number % 3 == 2:  # a round: scores decay, and every key loses its row
            asked.end_round()
            reference.rows.clear()
            if admit == "show_click":
                reference.numbers = {key: value * 0.5 for key, value in reference.numbers.items()}
        if number == saved_after:
            state, asked = asked.state(), admission(rules, TABLES)
            asked.load_state(state)
    state = asked.state()
    saved = KeySet(state["ids"], state["offsets"])
    numbers = state["counts" if admit == "count" else "scores"].tolist()
    assert named(saved) == sorted(reference.numbers)
    assert dict(zip(named(saved), numbers, strict=True)) == reference.numbers


def test_shares_of_a_state_merge_to_the_whole():
    """Broken on purpose: with offsets copied instead of counted anew, the shares claim keys they do not have."""
    rng = np.random.default_rng(3)
    rules = FeatureRules(admit="count", admit_threshold=50)
    whole = admission(rules, TABLES)
    whole.admit(counted([(t, i, 0) for t, i in rng.integers([0, -40], [2, 40], (400, 2)).tolist()]))
    state = whole.state()
    shares = [whole.select(state, lambda ids, t, s=shard: (ids * 7 + t) % 4 == s) for shard in range(4)]
    assert sum(share["ids"].size for share in shares) == state["ids"].size
    assert all(share["offsets"][-1] == share["ids"].size for share in shares)
    merged = whole.merge(shares)
    assert state.keys() == merged.keys() and all((state[name] == merged[name]).all() for name in state)
    one = admission(rules, TABLES)
    one.load_state(shares[2])
    again = one.state()
    assert all((again[name] == shares[2][name]).all() for name in again)


def test_forgotten_keys_start_again():
    asked = admission(FeatureRules(admit="count", admit_threshold=3), TABLES)
    keys = counted([(0, 9, 0), (0, 9, 0), (0, -9, 0)])
    assert asked.admit(keys).tolist() == [False, False]
    asked.forget(counted([(0, 9, 0), (1, -9, 0)]))
    assert asked.admit(keys).tolist() == [False, False]
    assert asked.admit(keys).tolist() == [True, True]
    assert asked.state()["ids"].size == 0


def test_an_empty_batch_and_an_empty_state():
    for admit in ("count", "sketch", "show_click"):
        asked = admission(FeatureRules(admit=admit), TABLES)
        assert asked.admit(counted([])).tolist() == []
        asked.load_state(asked.state())
        assert asked.nbytes > 0
    assert admission(FeatureRules(), TABLES) is None


@settings(max_examples=40, deadline=None)
@given(st.lists(OCCURRENCES, max_size=8), st.sampled_from([64, 256, 1 << 16]), st.sampled_from([3, 1000]))
def test_a_sketch_never_admits_late(batches, sketch_bytes, threshold):
    """Few counters (64 bytes: 16 a row, or 4), shared by all keys: what exact counts admit, the sketch has admitted.

    Broken on purpose: with the largest of the four counters raised only, ids come late; with counters of 8 bits under
    a threshold of 1,000 they wrap, and ids come late.
    """
    rules = FeatureRules(admit="sketch", admit_threshold=threshold, sketch_bytes=sketch_bytes)
    asked, reference, rows = admission(rules, TABLES), Reference(rules), set()
    for occurrences in batches:
        keys = unknown(counted(occurrences), rows)
        got = asked.admit(keys)
        keys_of_reference = unknown(counted(occurrences), reference.rows)
        reference.batch(keys_of_reference)
        rows |= {key for key, yes in zip(named(keys), got.tolist(), strict=True) if yes}
        assert reference.rows <= rows


def many(ids: np.ndarray, counts: np.ndarray) -> KeySet:
    return KeySet(ids, [0, ids.size], counts, np.zeros(ids.size))


@pytest.mark.parametrize(("threshold", "counter"), [(256, np.uint8), (257, np.uint32), (1000.5, np.uint32)])
def test_large_counts_do_not_wrap(threshold, counter):
    """Broken on purpose: with 8 bits up to 257, a count of 256 wraps to 0 and the id comes late."""
    table = (TableConfig("a", 2),)
    asked = admission(FeatureRules(admit="sketch", admit_threshold=threshold, sketch_bytes=1024), table)
    assert asked.state()["sketch"].dtype == counter
    below = int(np.ceil(threshold)) - 1
    assert not asked.admit(many(np.array([7]), np.array([below])))[0]
    assert asked.admit(many(np.array([7]), np.array([1])))[0]


def test_a_roomy_sketch_agrees_with_exact_counts_and_a_small_one_errs_on_one_side():
    """3,000 ids once or twice each, threshold 3: none is to come. Predicted: under 1 % come early from 64 KiB (16,384
    counters a row), most from 1 KiB (256 a row)."""
    rng = np.random.default_rng(5)
    ids = rng.integers(INT64.min, INT64.max, 3000)
    counts = rng.integers(1, 3, 3000)
    early = {}
    for size in (1 << 10, 1 << 16):
        rules = FeatureRules(admit="sketch", admit_threshold=3, sketch_bytes=size)
        early[size] = admission(rules, (TableConfig("a", 2),)).admit(many(ids, counts)).mean()
    assert early[1 << 16] < 0.01 < 0.5 < early[1 << 10]


@pytest.mark.parametrize("widths", [(4096, 4096), (4096, 1024), (1024, 4096)])
def test_sketches_of_shards_merge_and_split_without_a_late_id(widths):
    """Two shards of other keys, saved, merged and loaded into one of another width; threshold 3, ids seen twice.

    One more and it comes. Broken on purpose: merged by minimum, ids come late.
    """
    table = (TableConfig("a", 2),)
    saved, loaded = (FeatureRules(admit="sketch", admit_threshold=3, sketch_bytes=size) for size in widths)
    shards, ids = [admission(saved, table) for _ in range(2)], np.arange(200) * 12345
    for shard, own in zip(shards, (ids[::2], ids[1::2]), strict=True):
        shard.admit(many(own, np.full(100, 2)))
    merged = shards[0].merge([shard.state() for shard in shards])
    one = admission(loaded, table)
    one.load_state(one.select(merged, lambda ids, table: ids > 0))
    assert one.admit(many(ids, np.ones(200, dtype=np.int64))).all()
    same = shards[0].merge([merged, merged])["sketch"]
    assert (same == merged["sketch"]).all(), "splitting and merging again must cost nothing"


def test_a_sketch_of_wider_counters_loads_into_narrower_ones():
    table = (TableConfig("a", 2),)
    wide = admission(FeatureRules(admit="sketch", admit_threshold=5000, sketch_bytes=4096), table)
    wide.admit(many(np.arange(50), np.full(50, 4000)))
    narrow = admission(FeatureRules(admit="sketch", admit_threshold=200, sketch_bytes=4096), table)
    narrow.load_state(wide.state())
    assert narrow.admit(many(np.arange(50), np.ones(50, dtype=np.int64))).all()


def test_states_of_other_rules_are_refused():
    count, sketch = (admission(FeatureRules(admit=admit), TABLES) for admit in ("count", "sketch"))
    with pytest.raises(UserError, match="not a sketch"):
        sketch.load_state(count.state())
    with pytest.raises(UserError, match="not counts of 3"):
        count.load_state(sketch.state())
    with pytest.raises(UserError, match="counts of 3 tables, not counts of 1"):
        admission(FeatureRules(admit="count"), TABLES[:1]).load_state(count.state())


def test_route_counts_shows_and_clicks():
    """Two features share a table; the sample of an occurrence is its bag's. Broken on purpose: with bags taken for
    samples (no return to the first one after each feature) labels are read beyond the batch."""
    rng = np.random.default_rng(11)
    size, features = 40, ("x", "y", "z")
    lengths = rng.integers(0, 4, len(features) * size)
    ids = rng.integers(-5, 5, lengths.sum())
    labels = rng.integers(0, 2, size).astype(np.float32)
    batch = Batch(
        torch.zeros(size, 0), features, torch.from_numpy(ids), torch.from_numpy(lengths), torch.from_numpy(labels)
    )
    tables = [TableConfig("xz", 2, ("x", "z")), TableConfig("y", 2)]
    layout = KeyLayout(group_tables(tables, lambda dim: 0))
    (plain,), (routed,) = route(batch, layout), route(batch, layout, count=True)
    assert plain.keys.counts is None and plain.keys.clicks is None
    assert (plain.keys.ids == routed.keys.ids).all() and (plain.positions == routed.positions).all()
    samples, feature = np.repeat(np.tile(np.arange(size), 3), lengths), np.repeat(np.arange(3), size).repeat(lengths)
    for i, (table, id) in enumerate(named(routed.keys)):
        mine = (ids == id) & (np.isin(feature, [0, 2]) if table == 0 else feature == 1)
        assert routed.keys.counts[i] == mine.sum()
        assert routed.keys.clicks[i] == labels[samples[mine]].sum()
    assert routed.keys.counts.sum() == ids.size


def test_key_sets_with_counts_are_checked_and_taken_apart():
    with pytest.raises(ValueError, match="counts of shape"):
        KeySet(np.arange(3), [0, 3], counts=np.ones(2, dtype=np.int64))
    keys = KeySet(np.array([4, 5, 6, 7]), [0, 3, 3, 4], np.array([1, 2, 3, 4]), np.array([0.0, 1.0, 0.0, 2.0]))
    part = keys.take(np.array([1, 3]))
    assert part.ids.tolist() == [5, 7] and part.offsets.tolist() == [0, 1, 1, 2]
    assert part.counts.tolist() == [2, 4] and part.clicks.tolist() == [1.0, 2.0]
    assert len(keys.take(np.empty(0, dtype=np.int64))) == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"admit": "often"}, "unknown admit 'often'; use one of none, count, sketch, show_click"),
        ({"evict": "lru"}, "unknown evict 'lru'"),
        ({"admit_threshold": -1}, "admit_threshold is -1; give 0 … "),
        ({"admit_threshold": float("nan")}, "admit_threshold is nan"),
        ({"evict_every": 9}, "evict_every is 9; give a whole number, 10 or more"),
        ({"evict_after": 0}, "evict_after is 0; give a whole number, 1 or more"),
        ({"evict_share": 1.5}, "evict_share is 1.5; give 0 … 1"),
        ({"decay": 2}, "decay is 2; give 0 … 1"),
        ({"click_weight": -0.5}, "click_weight is -0.5; give 0 or more"),
        ({"default_value": float("inf")}, "default_value is inf; give a finite number"),
        ({"sketch_bytes": 8}, "sketch_bytes is 8; give a whole number, 64 or more"),
    ],
)
def test_rules_outside_their_range_are_one_clear_error(wrong, message):
    with pytest.raises(UserError, match="FeatureRules: " + message):
        FeatureRules(**wrong)


def test_tables_override_rules():
    tables = (TableConfig("a", 2), TableConfig("b", 2, admit_threshold=7, evict_after=20, default_value=0.25))
    rules = FeatureRules(admit="count", admit_threshold=3)
    assert rules.thresholds(tables).tolist() == [3, 7] and rules.ages(tables).tolist() == [1000, 20]
    assert rules.defaults(tables).tolist() == [0.0, 0.25]
    assert rules.counts and FeatureRules(evict="score").counts and not FeatureRules(evict="age").counts
    for wrong in ({"admit_threshold": -1}, {"evict_after": 0}, {"evict_after": 1.5}, {"default_value": float("nan")}):
        with pytest.raises(UserError, match=f"table 'a': {next(iter(wrong))}"):
            TableConfig("a", 2, **wrong)
