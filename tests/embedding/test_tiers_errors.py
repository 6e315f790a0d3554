"""After an error or an interrupt in any call the tables are as they were before the batch, and train on."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch
from test_tiers_equal import TIERS
from tier_runs import TABLES, Inline, TableRun, learnt, stream

from nestlab.embedding import EmbeddingStore, KeySet, StepInfo, TableConfig, Tiers, optimizer
from nestlab.embedding.host.arena import Arena
from nestlab.embedding.host.pool import BufferPool
from nestlab.embedding.host.tier import HostTier
from nestlab.errors import UserError
from nestlab.pipeline import build
from nestlab.pipeline.executors import Progress
from nestlab.techniques import Techniques

LATER = 12  # batches trained before the fault


class Fault(Exception):
    pass


def faulty(monkeypatch, owner: type, name: str, when: str, calls: int) -> None:
    """The `calls`-th call of a method from now on fails, before or after its work; once."""
    right, left = getattr(owner, name), [calls]

    def method(self, *arguments, **options):
        left[0] -= 1
        if left[0] == 0 and when == "before":
            raise Fault
        value = right(self, *arguments, **options)
        if left[0] == 0:
            raise Fault
        return value

    monkeypatch.setattr(owner, name, method)


def make(flags: str) -> EmbeddingStore:
    return EmbeddingStore(TABLES, optimizer("adagrad", lr=0.1), seed=3, tiers=Tiers.of(Techniques.parse(flags)))


@pytest.mark.parametrize("depth", [1, 3, 6])
@pytest.mark.parametrize("place", ["resolve", "pin before", "pin after", "commit before", "commit after", "seen"])
@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.replace("device_tier=", ""))
def test_a_fault_in_any_call_leaves_what_was_trained_and_nothing_else(tier, place, depth, monkeypatch, tmp_path):
    """Found by a reader: a second group that failed left the first one's keys without records, and pins for ever.

    Broken on purpose: `SlotCache.abandon` without the victims; `unpin_all` left out; no undo in `resolve`.
    """
    batches = stream(3, 40)
    flags = f"{tier},pipeline_depth={depth},host_rows=1600,disk={tmp_path}"
    store = make(flags)
    run, progress = TableRun(store, batches), Progress(build(Techniques.parse(flags)), Inline())
    for _ in range(LATER):
        progress.advance(run.perform)
    with monkeypatch.context() as patched:
        name, _, when = place.partition(" ")
        owner = {"resolve": HostTier, "pin": BufferPool, "seen": None}.get(name, type(store.tiers[1]))
        if owner is None:
            faulty(patched, type(store.hosts[1].rows), "seen", "before", 2)
        else:
            faulty(patched, owner, name, when or "before", 2)
        with suppress(Fault):
            for _ in range(20):
                progress.advance(run.perform)
    done = store.last_step
    store.settle()
    trained = TableRun(make(""), batches[:done])
    plain = Progress(build(Techniques()), Inline())
    while plain.advance(trained.perform) is not None:
        pass
    assert learnt(store) == learnt(trained.store)
    rest, again = TableRun(store, batches[done:]), Progress(build(Techniques.parse(flags)), Inline())
    while again.advance(rest.perform) is not None:
        pass
    assert np.isfinite(store.export("a")["weight"].numpy()).all()


def test_a_second_group_without_room_leaves_no_key_in_the_first(monkeypatch):
    tables = [TableConfig("a", 4), TableConfig("b", 3)]
    store = EmbeddingStore(tables, optimizer("sgd", lr=0.1), tiers=Tiers(host_rows=40))
    keys = [KeySet(np.arange(5), [0, 5]), KeySet(np.arange(5), [0, 5])]
    held = store.prepare(keys)
    store.apply(held, [torch.ones(5, 4), torch.ones(5, 3)], StepInfo(1))
    store.release(held)
    before = store.full_weight("a", np.array([100]))
    with pytest.raises(UserError, match="host_capacity"):
        store.prepare([KeySet(np.arange(100, 103), [0, 3]), KeySet(np.arange(100), [0, 100])])
    store.settle()
    assert store.export("a")["ids"].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(store.full_weight("a", np.array([100])), before)


def test_a_host_capacity_that_holds_no_row_is_refused():
    tables = [TableConfig("a", 4), TableConfig("b", 3)]
    with pytest.raises(UserError, match=r"host_capacity=1: not one row of 16 bytes"):
        EmbeddingStore(tables, optimizer("sgd", lr=0.1), tiers=Tiers(host_capacity=1))
    assert isinstance(EmbeddingStore(tables, optimizer("sgd", lr=0.1)).hosts[0].memory, Arena)
