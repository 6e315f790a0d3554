"""The eight hazards of docs/design.md 4.2: what guards against each is broken, and the tables must come out otherwise.

Each case breaks one guard while the tests run; the control below shows that nothing differs while they stand. So the
test of equality (test_tiers_equal.py) is known to see each of them.
"""

from __future__ import annotations

from functools import cache

import pytest
from tier_runs import TABLES, Shuffled, TableRun, learnt, stream, train

from nestlab.embedding import EmbeddingStore, Tiers, optimizer
from nestlab.embedding.device.dual_buffer import DualBuffer
from nestlab.embedding.device.slot_cache import SlotCache
from nestlab.embedding.device.slot_map import SlotMap
from nestlab.embedding.features.eviction import Eviction
from nestlab.embedding.host.pool import BufferPool
from nestlab.embedding.host.rows import Rows
from nestlab.pipeline import build
from nestlab.pipeline.executors import Progress
from nestlab.techniques import Techniques

pytestmark = pytest.mark.core

SLOTS = "device_tier=slot_cache,cache_slots=330,pipeline_depth=3"
BUFFERS = "device_tier=dual_buffer,pipeline_depth=3"
PLAIN = "device_tier=direct,pipeline_depth=3"
AGE = ",evict=age,evict_after=12,evict_every=10"
SEEDS = range(4)


@cache
def batches():
    return stream(1, 120)


@cache
def reference(rules: str) -> dict[str, bytes]:
    return learnt(train(batches(), Techniques.parse(rules), "adagrad"))


def differs(flags: str, rules: str = "") -> bool:
    """Whether some order that the schedule's required edges allow learns something else, or stops at an error."""
    techniques = Techniques.parse(flags + rules)
    for seed in SEEDS:
        try:
            store = train(
                batches(),
                techniques,
                "adagrad",
                executor=Shuffled(seed),
                schedule=build(techniques).required_only(),
            )
            if learnt(store) != reference(rules.strip(",")):
                return True
        except (RuntimeError, ValueError, AssertionError):
            return True
    return False


def disk(folder) -> str:
    """Frames for about four batches."""
    return f",host_capacity={4 * 520 * 15},disk={folder}"


@pytest.fixture(autouse=True, scope="module")
def references():
    """What is right is found, and every kernel compiled, before anything is broken."""
    for rules in ("", AGE.strip(",")):
        reference(rules)


@pytest.mark.parametrize("flags", [SLOTS, BUFFERS, PLAIN])
def test_with_every_guard_in_place_nothing_differs(flags, tmp_path):
    """The control. Over a disk that holds all but a few batches, with features that go and come back."""
    assert not differs(flags + disk(tmp_path), AGE)


def test_1_a_row_in_use_is_evicted_by_a_later_prepare(monkeypatch):
    """Guard: victims of a plan lie outside K(t) ∪ K(t−1). Broken: the plan before counts as two plans older."""
    plan = SlotMap.plan

    def careless(self, *arguments):
        self.plans += 1
        return plan(self, *arguments)

    monkeypatch.setattr(SlotMap, "plan", careless)
    assert differs(SLOTS)


def test_1_a_feature_in_use_is_evicted(monkeypatch):
    """Guard: rows of this batch and the one before are never given up. Broken: only this batch's are spared."""
    victims = Eviction.victims

    def careless(self, index, last_seen, number):
        return victims(self, index, last_seen - (last_seen == number - 1).astype("int32") * 60, number)

    monkeypatch.setattr(Eviction, "victims", careless)
    assert differs(BUFFERS, AGE)


@pytest.mark.parametrize(("tier", "flags"), [(SlotCache, SLOTS), (DualBuffer, BUFFERS)])
def test_2_a_record_is_read_before_its_write_back_landed(monkeypatch, tier, flags):
    """Guard: WRITEBACK before RETRIEVE of what it wrote. Broken: a write-back lands when the next but two comes."""
    writeback, late = tier.writeback, []

    def careless(self, residency):
        late.append((self, residency, residency.work))
        if len(late) > 6:  # two groups: three batches late
            tier_then, residency_then, work = late.pop(0)
            residency_then.work = work
            writeback(tier_then, residency_then)

    monkeypatch.setattr(tier, "writeback", careless)
    assert differs(flags)


def test_3_a_gradient_goes_to_a_place_its_row_has_left(monkeypatch):
    """Guard: COMMIT(t) after UPDATE(t−2), and places that travel with the batch. Broken: swaps happen when planned."""
    plan = SlotCache.plan

    def careless(self, residency):
        plan(self, residency)
        SlotCache.retrieve(self, residency)
        SlotCache.commit(self, residency)

    monkeypatch.setattr(SlotCache, "plan", careless)
    monkeypatch.setattr("nestlab.embedding.store.EmbeddingStore.retrieve", lambda self, residency: None)
    monkeypatch.setattr("nestlab.embedding.store.EmbeddingStore.commit", lambda self, residency: None)
    assert differs(SLOTS.replace("depth=3", "depth=6"))


def test_4_the_row_of_an_evicted_feature_is_freed_before_its_swap_out_landed(monkeypatch):
    """Guard: quarantine until the batches in flight are over. Broken: none, and write-backs two batches late."""
    writeback, late = SlotCache.writeback, []

    def slow(self, residency):
        late.append((self, residency, residency.work))
        if len(late) > 2:
            tier_then, residency_then, work = late.pop(0)
            residency_then.work = work
            writeback(tier_then, residency_then)

    monkeypatch.setattr(Rows, "_may_leave", staticmethod(lambda evicted_after, number, oldest: True))
    monkeypatch.setattr(SlotCache, "writeback", slow)
    assert differs(SLOTS, AGE)


def test_5_a_feature_that_comes_back_is_not_what_it_was(monkeypatch):
    """Guard: what the device tier has of an evicted key is void. Broken: it is not, and the row is reused at once."""
    monkeypatch.setattr(Rows, "_may_leave", staticmethod(lambda evicted_after, number, oldest: True))
    monkeypatch.setattr(SlotCache, "forget", lambda self, rows: None)
    assert differs(SLOTS.replace("330", "2000"), AGE)


@pytest.mark.parametrize("flags", [BUFFERS, PLAIN])
def test_6_a_host_row_moves_while_a_batch_holds_its_frame(monkeypatch, flags, tmp_path):
    """Guard: pins. Broken: a pin ends as soon as it is made; that its record changed stays known.

    A slot cache holds frames from RETRIEVE(t) to WRITEBACK(t) only, and RETRIEVE(t+1) waits for that: nothing comes in
    between that could move them, in any order its edges allow.
    """
    pin, unpin = BufferPool.pin, BufferPool.unpin

    def careless(self, rows, read=None):
        frames = pin(self, rows, read)
        unpin(self, frames, True)
        return frames

    monkeypatch.setattr(BufferPool, "pin", careless)
    monkeypatch.setattr(BufferPool, "unpin", lambda self, frames, changed: None)
    assert differs(flags + disk(tmp_path))


def test_7_a_decision_depends_on_how_far_ahead_it_was_made(monkeypatch):
    """Guard: eviction counts the batches resolved. Broken: it counts the batches trained."""
    monkeypatch.setattr(
        EmbeddingStore,
        "evict",
        lambda self: [
            tier.forget(host.evict(self.last_step)) for host, tier in zip(self.hosts, self.tiers, strict=True)
        ],
    )
    assert differs(BUFFERS, AGE)


def test_8_keys_of_untrained_batches_do_not_appear_in_an_export(monkeypatch):
    """Guard: an export refuses while batches are in flight. Broken: it does not, and untrained keys are in it."""
    flags = Techniques.parse(SLOTS)
    store = EmbeddingStore(TABLES, optimizer("adagrad", lr=0.1), seed=3, tiers=Tiers.of(flags))
    run, progress = TableRun(store, batches()), Progress(build(flags), Shuffled(0))
    for _ in range(5):
        progress.advance(run.perform)
    assert run.held, "the schedule looks ahead"
    with pytest.raises(RuntimeError, match="batches are in flight; drain the pipeline first"):
        store.export("a")
    trained = {i for keys in batches()[:5] for i in keys[0].ids[: keys[0].offsets[1]].tolist()}
    monkeypatch.setattr(EmbeddingStore, "require_quiet", lambda self, call: None)
    assert set(store.export("a")["ids"].tolist()) - trained
