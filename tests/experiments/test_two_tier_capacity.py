"""Host capacity, exports and cold starts: the tables of the study on a small twin."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from nestlab.embedding import Tiers
from nestlab.embedding.host.pool import HostTooSmall
from nestlab.experiments.claims import recorded
from nestlab.experiments.two_tier import cold_start, exports, host_capacity
from nestlab.experiments.two_tier.one_pass import distinct_ids, largest_batch, open_stream, smallest_cache
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.training import Model, equal, train, train_together

SMALL = Settings(dataset="kuairand-synth", rows=3_000, batch_size=16, steps=40, seconds=0.1)
RECORD = 4 * 2 * 16


@pytest.fixture(scope="module")
def capacities() -> pd.DataFrame:
    return host_capacity.measure(SMALL)


@pytest.fixture(scope="module")
def saves() -> pd.DataFrame:
    return exports.measure(SMALL)


@pytest.fixture(scope="module")
def starts() -> pd.DataFrame:
    return cold_start.measure(SMALL)


def test_trainings_in_turn_are_the_trainings_alone():
    """Broken on purpose: a generator of batches shared by all of them: each sees a part and the losses differ."""
    stream = open_stream(SMALL)
    together = train_together([Model(seed=seed).build(stream) for seed in (0, 1)], stream.train)
    for seed, each in enumerate(together):
        alone = train(Model(seed=seed).build(stream), stream.train)
        assert equal(each, alone, stream)
        assert each.step_ms.size == len(stream.train)
    assert not equal(*together, stream)


def test_a_capacity_fits_exactly_if_the_largest_batch_does(tmp_path):
    stream = open_stream(SMALL)
    needed = largest_batch(stream)
    for rows, works in ((needed, True), (needed - 1, False)):
        tiers = Tiers(host_capacity=rows * RECORD, disk=str(tmp_path))
        pipeline = Model(tiers=tiers).build(stream)
        if works:
            train(pipeline, stream.train)
        else:
            with pytest.raises(HostTooSmall):
                train(pipeline, stream.train)


def test_two_batches_fit_exactly_in_the_smallest_cache():
    stream = open_stream(SMALL)
    pairs = [set(), *({(f, i) for f, ids in enumerate(distinct_ids((b,))) for i in ids.tolist()} for b in stream.train)]
    assert smallest_cache(stream) == max(len(a | b) for a, b in pairwise(pairs))


def test_less_memory_more_traffic_and_the_same_numbers(capacities):
    fits = capacities[capacities["fits"]]
    assert fits["same_as_memory"].all() and len(fits) >= 4
    disk = fits.dropna(subset=["capacity"]).sort_values("capacity")
    assert (disk["found_in_memory"].diff().dropna() > 0).all()
    assert (disk["kb_read_a_step"].diff().dropna() < 0).all()
    whole = disk.iloc[-1]
    assert whole["found_in_memory"] == 1 and whole["read_a_step"] == whole["written_a_step"] == 0
    assert disk["kb_read_a_step"].to_numpy() == pytest.approx(disk["read_a_step"].to_numpy() * RECORD / 1e3)
    memory = fits[fits["capacity"].isna()].iloc[0]
    assert memory["step_ratio"] == 1 and memory["disk_bytes"] == 0
    assert memory["host_bytes"] == RECORD * sum(map(len, distinct_ids(open_stream(SMALL).train)))


def test_an_increment_has_the_touched_rows_and_adds_up(saves):
    """Broken on purpose: an increment from one batch too late: empty after one step, so that the part stops."""
    assert (saves["rows_increment"] == saves["touched"]).all()
    assert saves["adds_up"].all() and saves["cached_equals_flat"].all()
    assert (saves["bytes_increment"] < saves["bytes_full"]).all()
    assert saves["rows_increment"].is_monotonic_increasing
    assert saves["ratio_bytes"].to_numpy() == pytest.approx((saves["bytes_full"] / saves["bytes_increment"]).to_numpy())


def test_answers_of_the_exports(saves):
    found = {answer["claim_id"]: answer["obtained"] for answer in exports.answers(saves)}
    assert found["RS-C-018"] is True
    assert found["JD-A-017"] == pytest.approx(saves["ratio_bytes"].min())
    recorded.table([recorded.Answer(**answer) for answer in exports.answers(saves)])
    wrong = {a["claim_id"]: a["obtained"] for a in exports.answers(saves.assign(adds_up=False))}
    assert wrong["JD-A-017"] is None


def test_a_cold_cache_hits_nothing_and_a_filled_one_does(starts):
    first = starts[starts["batch"] == 1].set_index("start")
    filled = "loaded table, hottest ids in the cache"
    assert (first.drop(filled)["hit_share"] == 0).all() and first.loc[filled, "hit_share"] > 0.1
    assert first.loc["empty table", "new_share"] == 1 and first.loc["loaded table", "new_share"] < 1
    assert (first["hit_share"] + first["refused_share"] + first["new_share"] <= 1 + 1e-12).all()


def test_the_cache_changes_no_loss_and_a_loaded_table_does(starts):
    losses = starts.pivot(index="batch", columns="start", values="loss_nats")
    assert (losses["loaded table"] == losses["loaded table, hottest ids in the cache"]).all()
    assert (losses["loaded table"] != losses["empty table"]).any()
    rows = starts[starts["batch"] == starts["batch"].max()].set_index("start")["rows"]
    assert rows["loaded table"] == sum(map(len, distinct_ids(open_stream(SMALL).train)))
    assert rows["empty table, admission from 2"] < rows["empty table"] < rows["loaded table"]


def test_the_hottest_ids_by_hand():
    stream = open_stream(SMALL)
    uses: dict[tuple[int, int], int] = {}
    for batch in stream.train[:4]:
        lengths, at = batch.feature_lengths().sum(dim=1).tolist(), 0
        for column, length in enumerate(lengths):
            for i in batch.ids[at : at + length].tolist():
                uses[column, i] = uses.get((column, i), 0) + 1
            at += length
    chosen = [(column, i) for column, ids in enumerate(cold_start.hottest(stream, 4, 50)) for i in ids.tolist()]
    assert len(set(chosen)) == 50
    assert sorted((uses[key] for key in chosen), reverse=True) == sorted(uses.values(), reverse=True)[:50]


@pytest.mark.parametrize("part", [host_capacity, exports, cold_start])
def test_a_plot_can_be_drawn(part, capacities, saves, starts):
    frame = {host_capacity: capacities, exports: saves, cold_start: starts}[part]
    figure = part.plot(frame, "A part\nSYNTHETIC, 3,000 rows")
    figure.canvas.draw()
    assert "SYNTHETIC" in figure.get_suptitle()
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
    assert (frame["how_obtained"] == "measured").all()
    digest = cold_start.first_batches if part is cold_start else part.digest
    assert np.isfinite(digest(frame).select_dtypes("number").iloc[:, 1:].dropna()).all(axis=None)
