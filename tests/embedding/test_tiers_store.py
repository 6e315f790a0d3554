"""Evaluation over every tier changes nothing; a batch that does not fit is refused with the size needed, and leaves
nothing behind; an interrupted batch does not stand in the way of others."""

from __future__ import annotations

import hashlib
import threading
import types
from collections import deque
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_tiers_equal import ADMIT, BELOW, EVICT, TIERS, below, rules
from tier_runs import TABLES, TableRun, learnt, stream, train

from nestlab.embedding import EmbeddingStore, KeySet, StepInfo, TableConfig, Tiers, optimizer
from nestlab.embedding.device.swap import CacheTooSmall
from nestlab.pipeline import Inline, build
from nestlab.pipeline.executors import Progress
from nestlab.techniques import Techniques

pytestmark = pytest.mark.core

_SEEN = 10_000  # rows of an array that are looked at: some are address space for billions


def everything(thing: object, known: dict[int, object] | None = None) -> str:
    """A digest of all that hangs on an object: numbers, arrays, tensors, containers, attributes."""
    known = {} if known is None else known
    if isinstance(thing, int | float | str | bytes | bool | type(None) | np.generic | torch.dtype | torch.device):
        return repr(thing)
    if id(thing) in known:
        return "again"
    known[id(thing)] = thing  # kept alive: numbers of objects are used again
    if isinstance(thing, torch.Tensor):
        thing = thing.detach().cpu().numpy()
    if isinstance(thing, np.ndarray):
        return hashlib.sha256(thing[:_SEEN].tobytes()).hexdigest() + str(thing.shape)
    if isinstance(thing, dict):
        return "".join(f"{key}:{everything(value, known)}" for key, value in thing.items())
    if isinstance(thing, list | tuple | deque | set | frozenset):
        return "".join(everything(value, known) for value in thing)
    if isinstance(thing, types.FunctionType | types.MethodType | Executor) or type(thing) is type(threading.Lock()):
        return ""
    slots = [getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ())]
    return type(thing).__name__ + everything(getattr(thing, "__dict__", {}), known) + everything(slots, known)


def trained(flags: str, batches: list) -> tuple[EmbeddingStore, TableRun, Progress]:
    techniques = Techniques.parse(flags)
    store = EmbeddingStore(TABLES, optimizer("adagrad", lr=0.1), seed=3, tiers=Tiers.of(techniques))
    return store, TableRun(store, batches), Progress(build(techniques), Inline())


def look(store: EmbeddingStore, batches: list) -> list[torch.Tensor]:
    seen = []
    for keys in batches:
        plain_keys = [KeySet(k.ids, k.offsets) for k in keys]
        held = store.prepare(plain_keys, train=False)
        store.commit(held)
        seen += [store.gather(held, g, torch.arange(len(k)).flip(0)) for g, k in enumerate(plain_keys)]
        seen += [store.gather(held, g) for g in range(len(plain_keys))]
        store.writeback(held)
        store.release(held)
    return seen


@pytest.mark.parametrize("under", BELOW)
@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.replace("device_tier=", ""))
def test_evaluation_changes_nothing_and_reads_what_direct_reads(tier, under, tmp_path):
    """Index, counts, versions, maps, slots, frames, counters: everything that hangs on the store, before and after.

    Broken on purpose: `SlotMap.slots_of` with a touch of what it finds, and `BufferPool.copy` with a promotion.
    """
    admit, evict = ADMIT[len(tier) % 4], EVICT[1 + len(under) % 2]
    batches = stream(2, 60)
    flags = f"{tier},{rules(admit, evict)}{below(under, 'adagrad', tmp_path)}"
    store, run, progress = trained(flags, batches[:30])
    while progress.advance(run.perform) is not None:
        pass
    before = everything(store)
    seen = look(store, batches[20:60])
    assert everything(store) == before
    plain = train(batches[:30], Techniques.parse(rules(admit, evict)), "adagrad")
    for mine, direct in zip(seen, look(plain, batches[20:60]), strict=True):
        assert torch.equal(mine, direct)
    for table, keys in (("a", batches[40][0]), ("c", batches[40][1])):
        ids = keys.ids[: keys.offsets[1]]
        assert torch.equal(store.full_weight(table, ids), plain.full_weight(table, ids))
    assert everything(store) == before


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.replace("device_tier=", ""))
def test_evaluation_in_the_middle_leaves_training_as_it_was(tier, tmp_path):
    batches = stream(4, 60)
    flags = f"{tier},{rules('count', 'age')}{below('disk', 'adagrad', tmp_path)}"
    alone = learnt(train(batches, Techniques.parse(rules("count", "age")), "adagrad"))
    store, run, progress = trained(flags, batches)
    for t in range(60):
        assert progress.advance(run.perform) == t
        if t % 9 == 0:
            look(store, batches[t : t + 3])
        if t % 25 == 0:
            store.flush()
    assert learnt(store) == alone


def one_table(slots: int, policy: str) -> EmbeddingStore:
    tiers = Tiers(device_tier="slot_cache", cache_slots=slots, cache_policy=policy, look_ahead=3)
    return EmbeddingStore([TableConfig("t", 4), TableConfig("u", 3)], optimizer("sgd", lr=0.1), tiers=tiers)


def step(store: EmbeddingStore, ids: range, number: int) -> None:
    keys = [KeySet(np.array(ids), [0, len(ids)]), KeySet(np.arange(2), [0, 2])]
    store.foresee(keys)
    store.end_of_stream()
    held = store.prepare(keys)
    store.commit(held)
    store.apply(held, [torch.ones_like(store.gather(held, g)) for g in range(2)], StepInfo(number))
    store.writeback(held)
    store.release(held)


@pytest.mark.parametrize("policy", ["clock", "lru", "lfu", "oracle"])
def test_a_cache_that_is_too_small_names_the_union_it_needs(policy):
    """|K(t) ∪ K(t−1)| = 35 of 20 + 25 keys: with 35 slots it works, with 34 it is refused and nothing has changed."""
    fits = one_table(35, policy)
    for number, ids in enumerate((range(20), range(10, 35), range(40, 50)), 1):
        step(fits, ids, number)
    tight = one_table(34, policy)
    step(tight, range(20), 1)
    counters, learnt_before = replace(tight.counters), learnt_of(tight)
    with pytest.raises(CacheTooSmall, match=r"\b35\b.*\b34\b") as refused:
        step(tight, range(10, 35), 2)
    assert "\n" not in str(refused.value)
    assert learnt_of(tight) == learnt_before
    assert (tight.counters.inserts, tight.counters.writebacks) == (counters.inserts, counters.writebacks)
    step(tight, range(12, 34), 3)  # 34 of them with the batch before: training goes on


def learnt_of(store: EmbeddingStore) -> list:
    return [{name: values.tolist() for name, values in store.export(t).items()} for t in ("t", "u")]


@pytest.mark.parametrize("tier", TIERS[1:], ids=lambda tier: tier.replace("device_tier=", ""))
def test_interrupted_batches_are_settled_and_training_goes_on(tier):
    """A batch that never got to its update owes its other calls; afterwards a new schedule trains the rest.

    Keys that only such batches brought in are not there any more (hazard 8).
    """
    batches = stream(5, 40)
    store, run, progress = trained(f"{tier},pipeline_depth=6", batches)
    for _ in range(10):
        progress.advance(run.perform)
    assert run.held
    with pytest.raises(RuntimeError, match="in flight"):
        store.flush()
    store.settle()
    trained_ids = {i for keys in batches[:10] for i in keys[0].ids[: keys[0].offsets[1]].tolist()}
    assert set(store.export("a")["ids"].tolist()) == trained_ids
    rest = TableRun(store, batches[10:])
    again = Progress(build(Techniques.parse(f"{tier}")), Inline())
    while again.advance(rest.perform) is not None:
        pass
    reference = train(batches, Techniques.parse(""), "adagrad")
    mine, direct = store.export("a"), reference.export("a")
    assert torch.equal(mine["ids"], direct["ids"]) and torch.isfinite(mine["weight"]).all()
    store.require_quiet("test")
