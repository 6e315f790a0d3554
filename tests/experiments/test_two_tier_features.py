"""The study of admission and eviction: its plain-Python rules by hand, and its table on a small twin."""

from __future__ import annotations

import pandas as pd
import pytest

from nestlab.embedding.features import FeatureRules
from nestlab.experiments.two_tier import features
from nestlab.experiments.two_tier.by_hand import ByHand, occurrences
from nestlab.experiments.two_tier.one_pass import distinct_ids, open_stream, rounds
from nestlab.experiments.two_tier.settings import Settings

SMALL = Settings(dataset="kuairand-synth", rows=3_000, batch_size=32, steps=24, seconds=0.1)

A, B, C = (0, 7), (0, -3), (1, 7)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return features.measure(SMALL)


def test_a_key_comes_in_the_batch_in_which_its_count_reaches_the_threshold():
    batches = [[(A, 1, 0.0), (C, 2, 0.0)], [(A, 1, 0.0), (B, 1, 1.0)]]
    rules = ByHand(FeatureRules(admit="count", admit_threshold=2)).run(batches)
    assert rules.seen == {C: 1, A: 2}
    assert rules.waiting == {B: 1.0}


def test_scores_decay_at_the_end_of_a_round():
    """One show before the round is worth 0.5 after it: with another one 1.5 < 2, without the decay 2."""
    rules = FeatureRules(admit="show_click", admit_threshold=2, evict_every=10, decay=0.5)
    batches = [[(A, 1, 0.0)], *[[]] * 9, [(A, 1, 0.0), (B, 1, 1.0)]]
    found = ByHand(rules).run(batches)
    assert found.seen == {B: 11}
    assert found.waiting == {A: 1.5}


def test_the_lowest_score_leaves_and_of_equals_the_smaller_id():
    rules = FeatureRules(evict="score", evict_share=0.34, evict_every=10)
    batches = [[(A, 1, 0.0), (B, 1, 0.0), (C, 1, 1.0)], *[[]] * 9]
    assert ByHand(rules).run(batches).seen == {A: 1, C: 1}


def test_an_old_key_leaves_and_one_of_the_batch_before_stays():
    rules = FeatureRules(evict="age", evict_after=1, evict_every=10)
    batches = [*[[(A, 1, 0.0)]] * 8, [(A, 1, 0.0), (B, 1, 0.0)], [(B, 1, 0.0)]]
    assert ByHand(rules).run(batches).seen == {A: 9, B: 10}
    assert ByHand(rules).run([[(A, 1, 0.0)], *[[(B, 1, 0.0)]] * 9]).seen == {B: 10}


def test_occurrences_sum_to_the_batch():
    batch = open_stream(SMALL).train[0]
    (found,) = occurrences([batch])
    assert sum(shows for _, shows, _ in found) == batch.ids.numel()
    per_id = batch.labels.repeat(len(batch.features)).repeat_interleave(batch.lengths)
    assert sum(clicks for _, _, clicks in found) == pytest.approx(float(per_id.sum()))


def test_every_rule_keeps_exactly_the_keys_of_plain_python(table):
    """Broken on purpose: admission with > in place of ≥ in the library: the rows of `count` and `show_click` fail."""
    told = table[table["rule"] != "sketch"]
    assert told["as_by_hand"].all()
    assert set(told["rule"]) == {"none", "count", "show_click", "age", "score"}
    assert table.loc[table["rule"] == "sketch", "as_by_hand"].isna().all()


def test_tables_shrink_as_thresholds_rise_and_a_sketch_is_never_late(table):
    rows = table.set_index(["rule", "value"])["rows"]
    assert rows["none"].iloc[0] == sum(map(len, distinct_ids(open_stream(SMALL).train)))
    assert rows["none"].iloc[0] > rows["count", 2] > rows["count", 8]
    assert rows["sketch", 2] >= rows["count", 2]
    assert rows["sketch", 8] >= rows["count", 8]
    assert table["refused_share"].between(0, 1).all()
    assert (table["total_bytes"] == table[["index_bytes", "record_bytes", "rules_bytes"]].sum(axis=1)).all()
    assert table["auc"].between(0.3, 1.0).all()
    assert ((table["auc_low"] <= table["auc"]) & (table["auc"] <= table["auc_high"])).all()


def test_answers_follow_from_the_table(table):
    from nestlab.experiments.claims import recorded

    found = features.answers(table)
    recorded.table([recorded.Answer(**answer) for answer in found])  # refuses what no claim asks for
    assert all(answer["obtained"] is True for answer in found)
    worse = table.assign(refused_read_default=False, as_by_hand=False)
    assert not any(answer["obtained"] for answer in features.answers(worse))


def test_a_plot_says_what_data_it_is_of(table):
    figure = features.plot(table, "SYNTHETIC, 3,000 rows")
    assert "SYNTHETIC" in figure.get_suptitle()
    assert len(figure.axes) == 3


def test_rounds_end_with_the_time():
    assert list(rounds(Settings(seconds=0.0))) == [0]
    assert list(rounds(Settings(seconds=60.0), most=4)) == [0, 1, 2, 3]
