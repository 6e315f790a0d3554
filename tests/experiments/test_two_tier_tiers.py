"""The parts of the study that train over tiers: what they show is what happened, and a fault would show."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from nestlab.embedding import Tiers
from nestlab.embedding.device.slot_cache import SlotCache
from nestlab.embedding.device.slot_map import SlotMap
from nestlab.embedding.device.swap import CacheTooSmall
from nestlab.embedding.features import FeatureRules
from nestlab.embedding.optimizers import OPTIMIZERS, LazyAdam
from nestlab.experiments.two_tier import checks, equality, growth, planner_checks, prefetch, table_checks, timelines
from nestlab.experiments.two_tier.one_pass import Stream, distinct_ids, open_stream, slots_on, smallest_cache
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.setups import EMULATED, Setup, repeated
from nestlab.pipeline import build
from nestlab.techniques import Techniques, preset

SMALL = Settings(dataset="kuairand-synth", rows=2_000, batch_size=32, steps=16, seconds=1.0)
CACHE = Techniques(device_tier="slot_cache", cache_slots=0.1, pipeline_depth=2)


@pytest.fixture(scope="module")
def stream() -> Stream:
    return open_stream(SMALL)


@pytest.fixture(scope="module")
def compared() -> pd.DataFrame:
    return equality.measure(SMALL)


def test_every_tier_is_compared_and_equal(compared):
    assert compared["bit_equal"].all() and (compared.filter(like="max_difference") == 0).all(axis=None)
    assert {"direct", "dual_buffer", "slot_cache, clock", "slot_cache, oracle"} <= set(compared["tier"])
    assert compared["disk"].any() and (compared["evict"] == "age").any() and (compared["depth"] == 6).any()
    moved = compared[compared["tier"] != "direct"]
    assert (moved["writebacks"] > 0).all() and (compared.loc[compared["evict"] == "age", "evicted"] > 0).all()
    assert equality.key_figures(compared) == {"set_ups_compared": len(compared), "largest_difference": 0.0}
    assert equality.digest(compared)["bit_equal"].all() and equality.plot(compared, "title").axes


def test_a_fault_of_a_tier_would_be_a_number_above_zero(stream, monkeypatch):
    """Broken on purpose: swap-outs are never written back, so that a row which comes again is an older one."""
    setup = Setup(CACHE, lanes=False)
    reference = equality._run(Setup(Techniques(), lanes=False), stream)
    monkeypatch.setattr(SlotCache, "writeback", lambda self, residency: None)
    row = equality._compare(setup, stream, reference)
    assert not row["bit_equal"] and row["max_difference_weights"] > 0 and row["max_difference_states"] > 0


def test_equality_needs_something_that_moved(compared):
    """Broken on purpose: rows that differ, and set-ups that wrote nothing back."""
    told = {answer["claim_id"]: answer["obtained"] for answer in equality.answers(compared)}
    assert set(told) == {"RS-C-011", "RS-C-024", "RS-C-025", "RS-C-015", "JD-A-016"} and all(told.values())
    idle = equality.answers(compared.assign(writebacks=0, evicted=0))
    unequal = equality.answers(compared.assign(bit_equal=False))
    assert not any(answer["obtained"] for answer in [*idle, *unequal])


def test_prefetch_is_timed_in_turns_and_labelled():
    frame = prefetch.measure(SMALL)
    assert list(frame["how"]) == ["measured"] + [EMULATED] * 4
    assert frame[["tier", "depth"]].drop_duplicates().shape[0] == 5 and (frame["step_ms"] > 0).all()
    alone, ahead = (
        frame[(frame["tier"] == "slot_cache, clock") & (frame["depth"] == depth)].iloc[0] for depth in (1, 2)
    )
    assert alone["exposed_retrieval_ms"] == pytest.approx(alone["retrieval_ms"])  # nothing is hidden in list order
    assert ahead["bytes_in"] == alone["bytes_in"] > 0
    assert frame.loc[frame["tier"] == "direct", "device_bytes_a_row"].item() == 0
    assert prefetch.plot(frame, "title").axes and prefetch.answers(frame) == []
    figures = prefetch.key_figures(frame)
    assert len(figures) == 2 and all(name.startswith("emulated_link_prefetch_speedup_") for name in figures)


def test_repeated_batches_go_on_from_the_start(stream):
    batches = list(repeated(stream, len(stream.train) + 2))
    assert batches[-1] is stream.train[1] and len(batches) == len(stream.train) + 2


@pytest.mark.parametrize("name", list(timelines.STAGES))
def test_every_stage_of_a_preset_has_its_name_in_the_article(name):
    ours = [stage for stages in timelines.STAGES[name].values() for stage in stages]
    assert len(ours) == len(set(ours)) and {entry.stage for entry in build(preset(name)).entries} <= set(ours)


def test_timelines_show_six_stages_and_five():
    frame = timelines.measure(SMALL)
    (answer,) = timelines.answers(frame)
    assert answer["obtained"] == 6 and "post-processing" in answer["note"]
    jd = frame[frame["preset"] == "jd"]
    assert len(timelines.stages_seen(jd)) == 5 and 1 < timelines.in_flight(jd) <= 5
    assert (timelines.digest(frame)["our stages"] != "").all() and timelines.plot(frame, "title").axes


def test_a_stage_that_never_runs_is_not_counted():
    frame = timelines.measure(SMALL)
    (answer,) = timelines.answers(frame[frame["stage"] != "POST"])
    assert answer["obtained"] == 5


def test_batches_in_flight_by_hand():
    events = [("LOAD", 0, 0, 1), ("LOAD", 1, 1, 2), ("UPDATE", 0, 3, 4), ("LOAD", 2, 4, 5), ("UPDATE", 1, 6, 7)]
    frame = pd.DataFrame([*events, ("UPDATE", 2, 8, 9)], columns=["stage", "batch", "start_ms", "end_ms"])
    assert timelines.in_flight(frame) == 2


def test_every_check_holds_but_for_the_one_that_the_source_gets_wrong():
    frame = checks.measure(SMALL)
    assert set(frame.loc[~frame["holds"], "claim_id"]) == {"RS-A-006"}
    assert frame["check"].str.len().min() > 20 and frame["found"].str.len().min() > 20
    assert {a["claim_id"]: a["obtained"] for a in checks.answers(frame)}["RS-C-002"] is True


def never(self, rows) -> None:
    """Broken on purpose: a planner that takes what has no room."""


def by_sum(self, rows) -> None:
    """Broken on purpose: a row that two batches share counts twice."""
    if self._share is None and self._previous + rows.size > self.capacity:
        raise CacheTooSmall(self._previous + rows.size, self.capacity)


def one_late(self, rows) -> None:
    """Broken on purpose: one row too many is let through."""
    if self._share is None and self.room_needed(rows) > self.capacity + 1:
        raise CacheTooSmall(self.room_needed(rows), self.capacity)


@pytest.mark.parametrize("broken", [never, by_sum, one_late])
def test_a_planner_that_refuses_wrongly_is_found_out(broken, stream, monkeypatch):
    monkeypatch.setattr(SlotMap, "require_room", broken)
    holds, found = planner_checks.union_fits(SMALL, stream)
    assert not holds and ("4 slots are refused" if broken is by_sum else "wrongly accepted") in found


def test_a_forgotten_row_that_is_swapped_out_is_found_out(stream, monkeypatch):
    monkeypatch.setattr(SlotMap, "forget", lambda self, rows: None)
    assert not planner_checks.void_slot_is_free(SMALL, stream)[0]


def test_a_cache_that_keeps_its_rows_to_itself_is_found_out(stream, monkeypatch):
    monkeypatch.setattr(SlotCache, "flush", lambda self: None)
    assert not table_checks.host_has_every_row(SMALL, stream)[0]


def test_a_device_that_looks_keys_up_is_found_out(stream, monkeypatch):
    """Broken on purpose: commit sorts the slots, an operator that is neither read nor write by slot."""
    commit = SlotCache.commit

    def sorting(self, residency):
        self.slots.sort()
        commit(self, residency)

    monkeypatch.setattr(SlotCache, "commit", sorting)
    holds, found = table_checks.device_needs_no_keys(SMALL, stream)
    assert not holds and "sort" in found


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ("thresholds", lambda self, tables: np.full(len(tables), 2.0)),
        ("thresholds", lambda self, tables: np.full(len(tables), 3.0)),
        ("thresholds", lambda self, tables: np.full(len(tables), self.admit_threshold + 1.0)),
        ("ages", lambda self, tables: np.full(len(tables), 6)),
        ("ages", lambda self, tables: np.full(len(tables), self.evict_after + 1)),
    ],
    ids=["admits from 2", "admits from 3", "admits one late", "evicts at 6", "evicts one late"],
)
def test_filters_that_keep_other_keys_are_found_out(rule, wrong, stream, monkeypatch):
    """Broken on purpose: the thresholds that the library's filters go by."""
    monkeypatch.setattr(FeatureRules, rule, wrong)
    assert not table_checks.filters_are_lfu_and_lru(SMALL, stream)[0]


def test_records_are_compared_with_formulas():
    holds, found = table_checks.records_hold_states(SMALL, None)
    assert holds and "lazy_adam 8 + 16" in found and np.char.count(found, ",") >= 3


@pytest.mark.parametrize("name", ["adagrad", "rowwise_adagrad", "lazy_adam"])
@pytest.mark.parametrize("part", ["states", "weights", "last state"])
def test_an_optimizer_that_does_not_write_all_is_found_out(name, part, monkeypatch):
    """Broken on purpose: after each step some columns of a record are as they were before."""
    kind, dim = OPTIMIZERS[name], 8
    update, columns = kind._update, {"states": slice(dim, None), "weights": slice(dim), "last state": slice(-1, None)}

    def forgetful(self, records, rows, grads, lr, number):
        before = records[rows].copy()
        update(self, records, rows, grads, lr, number)
        records[rows, columns[part]] = before[:, columns[part]]

    monkeypatch.setattr(kind, "_update", forgetful)
    assert not table_checks.records_hold_states(SMALL, None)[0]


def test_moments_in_the_wrong_order_are_found_out(monkeypatch):
    """Broken on purpose: the second moment lies before the first."""
    update, order = LazyAdam._update, [*range(8), *range(16, 24), *range(8, 16)]

    def swapped(self, records, rows, grads, lr, number):
        turned = np.ascontiguousarray(records[:, order])
        update(self, turned, rows, grads, lr, number)
        records[:] = turned[:, order]

    monkeypatch.setattr(LazyAdam, "_update", swapped)
    assert not table_checks.records_hold_states(SMALL, None)[0]


def test_everything_is_built_where_the_settings_say(stream, monkeypatch):
    """Broken on purpose: a set-up without its device, a store without its seed."""
    there = replace(SMALL, device="cuda:0", seed=5)
    built = []
    finished = SimpleNamespace(record_bytes=1 << 20)
    monkeypatch.setattr(equality, "_run", lambda setup, stream: built.append(setup) or finished)
    monkeypatch.setattr(equality, "_compare", lambda setup, stream, reference: built.append(setup) or {})
    equality.measure(there)
    assert len(built) > 10 and {(setup.device, setup.seed) for setup in built} == {("cuda:0", 5)}
    model = growth._model(there, index_buckets=4)
    assert (model.device, model.seed, model.tiers.device, model.tiers.index_buckets) == ("cuda:0", 5, "cuda:0", 4)
    store = table_checks._store(there, ["a"], Tiers())
    assert (store.options.device, store.seed) == ("cuda:0", 5)


def test_an_accelerator_is_given_a_number_of_slots(stream):
    assert slots_on("cpu", 0.1, stream) == 0.1
    distinct = sum(map(len, distinct_ids(stream.train)))
    around = sum(map(len, distinct_ids((stream.train[-1], stream.train[0]))))
    assert slots_on("cuda:0", 0.001, stream) == max(smallest_cache(stream), around)
    assert slots_on("cuda:0", 0.99, stream) == np.ceil(0.99 * distinct)
    fixed = Setup(CACHE)._flags_on("cuda:0", stream)
    assert fixed.cache_slots >= 1 and Setup(CACHE)._flags_on("cpu", stream) is not fixed
    assert (
        Setup(CACHE)._flags_on("cpu", stream) == CACHE
        and Setup(Techniques())._flags_on("cuda:0", stream).cache_slots == 0
    )
