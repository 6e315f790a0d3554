"""Streams of keys, replays through the planner, and what is told of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from nestlab import data
from nestlab.experiments import claims as register
from nestlab.experiments.two_tier import activity, hit_rates, key_streams, replay, retrieval, skew, swaps
from nestlab.experiments.two_tier.key_streams import KeyStream
from nestlab.experiments.two_tier.settings import Settings, settings


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Settings:
    return settings("smoke", data_root=str(tmp_path_factory.mktemp("nothing")), rows=4_000)


def made(batches: list[list[int]], uses: list[int]) -> KeyStream:
    rows = tuple(np.array(batch, dtype=np.int64) for batch in batches)
    return KeyStream("ids", "made (SYNTHETIC)", "synthetic", 4, rows, np.array(uses))


@pytest.mark.parametrize("columns", [("video_id",), ("user_id", "video_id")])
def test_a_log_becomes_rows_numbered_as_they_come(small, columns):
    """Broken on purpose: numbers by id and not by first appearance; keys of two columns mixed up."""
    dataset = data.open_dataset("kuairand-synth", small.data_root, rows=small.rows)
    stream = key_streams.of_dataset(dataset, columns, batch_size=256)
    values = [dataset.table.column(name).to_pylist() for name in columns]
    numbers: dict[tuple[int, int], int] = {}
    uses: list[int] = []
    size = stream.batch_size
    assert size == 32 and dataset.info.rows == 4_000  # 256 would give too few batches
    for batch, begin in zip(stream.batches, range(0, 4_000, size), strict=True):
        expected = []
        for column, cells in enumerate(values):
            for cell in cells[begin : begin + size]:
                row = numbers.setdefault((column, cell), len(numbers))
                uses += [0] * (row + 1 - len(uses))
                uses[row] += 1
                expected += [row] if row not in expected else []
        assert batch.tolist() == expected
    assert stream.uses.tolist() == uses and stream.distinct == len(uses)


def test_lists_of_ids_and_missing_values(tmp_path):
    """Criteo's missing values are no keys."""
    dataset = data.open_dataset("criteo-synth", tmp_path, rows=2_000)
    names = key_streams.COLUMNS["criteo"][0]
    stream = key_streams.of_dataset(dataset, names, batch_size=64)
    pairs = [(name, cell) for name in names for cell in dataset.table.column(name).to_pylist() if cell is not None]
    assert int(stream.uses.sum()) == len(pairs) < 26 * 2_000
    assert stream.distinct == len(set(pairs))


def test_what_a_cache_must_hold_at_least():
    assert made([[0], [1], [0]], [2, 1]).room == 2
    assert made([], []).room == 0 and made([[0, 1]], [1, 1]).keys == 2


def test_zipf_is_skewed_and_repeatable():
    flat, steep = (key_streams.zipf(s, 500, 8_000, 64, seed=3) for s in (0.4, 1.4))
    again = key_streams.zipf(1.4, 500, 8_000, 64, seed=3)
    assert all(map(np.array_equal, steep.batches, again.batches))
    assert np.sort(steep.uses)[-5:].sum() > 2 * np.sort(flat.uses)[-5:].sum()


@pytest.mark.parametrize("policy", replay.POLICIES)
def test_a_replay_accounts_for_every_key(policy):
    stream = key_streams.zipf(0.9, 400, 6_000, 32, seed=1)
    slots = max(stream.room, 80)
    done = replay.replay(stream, slots, policy)
    assert done.hits + done.came.sum() == stream.keys
    assert done.came.sum() - done.left.sum() == slots  # more rows than slots: full at the end
    everything = replay.replay(stream, stream.distinct, policy)
    assert everything.came.sum() == stream.distinct and everything.left.sum() == 0


def test_the_oracle_is_best_and_belady_the_limit():
    """Broken on purpose: foresight of the batch before was given to each batch."""
    stream = key_streams.zipf(0.8, 600, 8_000, 32, seed=2)
    rows = pd.DataFrame(hit_rates.of_stream(stream, (0.2, 0.5), limit=10**6))
    for _, lines in rows.groupby("share"):
        hits = lines.set_index("policy")["hits"]
        assert hits.idxmax() in ("oracle", "belady") and hits["oracle"] <= hits["belady"]
        assert hits[["clock", "lru", "lfu"]].max() < hits["oracle"]
    assert "belady" not in {row["policy"] for row in hit_rates.of_stream(stream, (0.5,), limit=10)}


def test_a_size_that_two_batches_do_not_fit_is_told_apart():
    stream = made([[0, 1, 2], [3, 4, 5], [0, 1, 2]], [2, 2, 2, 1, 1, 1])
    rows = pd.DataFrame(hit_rates.of_stream(stream, (0.5, 1.0), limit=100))
    small, whole = rows[rows["slots"] == 3], rows[rows["slots"] == 6]
    assert small["hit_rate"].isna().all() and (small["needed"] == 6).all()
    assert (whole["hits"] == 3).all()


def curve(rates: list[float], kind: str = "real") -> pd.DataFrame:
    shares = [0.1, 0.2, 0.4, 0.8][: len(rates)]
    same = {"label": "video_id, log", "keys": "video_id", "kind": kind, "policy": "lru", "needed": 5, "distinct": 100}
    return pd.DataFrame(
        [{**same, "share": s, "hit_rate": r, "best_rate": 0.97} for s, r in zip(shares, rates, strict=True)]
    )


def test_the_size_for_a_rate_lies_between_two_sizes():
    frame = curve([0.5, 0.7, 0.9, 0.96])
    assert hit_rates.size_for(frame, "lru", 0.8) == pytest.approx(0.3)
    assert hit_rates.size_for(frame, "lru", 0.4) == 0.1
    assert np.isnan(hit_rates.size_for(frame, "lru", 0.97))
    assert hit_rates.size_for(curve([np.nan, 0.6]), "lru", 0.6) == 0.2


def test_what_lru_reaches_is_told_as_it_is():
    """Broken on purpose: the published rate was told whether it was reached or not."""
    published = register.claim("NP-A-008").value
    (reached,) = hit_rates.answers(curve([0.5, 0.7, 0.9, 0.96]))
    assert reached["obtained"] == published and "reached at" in reached["note"]
    (missed,) = hit_rates.answers(curve([0.5, 0.7]))
    assert missed["obtained"] == 70.0 and "not reached" in missed["note"]
    assert hit_rates.answers(curve([0.5, 0.96], kind="synthetic")) == []


def test_how_few_rows_are_hot(small):
    stream = made([[0, 1], [0, 2], [0, 1]], [6, 2, 1, 1])
    rows = {(r["what"], r["at"]): r["share"] for r in activity._of_stream(stream)}
    assert rows["hottest", 0.3] == 0.6 and rows["hottest", 1.0] == 1.0  # one of four rows has 6 of 10 look-ups
    assert rows["window", 1] == 0.5 and rows["window", 2] == 0.75 and ("window", 6) not in rows


def test_no_claim_on_real_rows_is_answered_by_a_twin(small):
    frame = activity.measure(small)
    assert set(frame["kind"]) == {"synthetic"} and activity.answers(frame) == []
    assert activity.digest(frame)["stream"].str.contains("SYNTHETIC").all()
    assert activity.plot(frame, "title").axes


def test_swaps_balance(small):
    frame = swaps.measure(small)
    full = swaps.by_size(frame)
    assert (full["rows_in"] == full["rows_out"]).all() and (
        full["bytes_in"] == swaps.record_bytes() * full["rows_in"]
    ).all()
    means = full.pivot(index="share", columns="policy", values="rows_in")
    assert (means["oracle"] <= means["clock"]).all()
    assert swaps.plot(frame, "title").axes


def test_skew_helps_every_policy(small):
    table = skew.digest(skew.measure(small))
    assert list(table.index) == list(skew.SKEWS) and (table.iloc[-1] > table.iloc[0]).all()


def test_the_best_number_of_buckets_and_two_threads_over_one():
    base = {"work": retrieval.LOOK_UP, "p10": 1.0, "p90": 2.0}
    rates = {(16, 1): 10, (16, 2): 12, (256, 1): 8, (256, 2): 16}
    frame = pd.DataFrame([{**base, "buckets": b, "threads": t, "mkeys_s": r} for (b, t), r in rates.items()])
    told = {answer["claim_id"]: answer["obtained"] for answer in retrieval.answers(frame)}
    assert told == {"NP-A-007": 256, "JD-A-012": 2.0}
    assert retrieval.answers(frame[frame["threads"] == 1]) == []


def test_days_are_whole_batches_and_a_day_in_part_is_none():
    """Broken on purpose: the batch that a day begins in was counted with it."""
    dates = [1] * 2 + [2] * 11 + [3] * 10 + [4] * 9
    dataset = SimpleNamespace(table=pa.table({"date": dates}))
    assert key_streams._days(dataset, 4) == ((1, 3), (4, 5), (6, 8))
    assert key_streams._days(SimpleNamespace(table=pa.table({"label": dates})), 4) == ()
