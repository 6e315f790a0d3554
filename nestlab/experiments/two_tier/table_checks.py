"""What the sources say of tables and their records, tried on these tables: each a check that runs and that can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nestlab.embedding import EmbeddingStore, KeySet, StepInfo, TableConfig, Tiers, deduplicate, optimizer
from nestlab.embedding.features import FeatureRules
from nestlab.embedding.optimizers import OPTIMIZERS
from nestlab.experiments.two_tier import optimizers_by_hand
from nestlab.experiments.two_tier.one_pass import Stream
from nestlab.experiments.two_tier.planner_checks import Outcome
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.setups import Setup
from nestlab.experiments.two_tier.training import LR
from nestlab.techniques import Techniques

_DIM = 8
_CACHE = Techniques(device_tier="slot_cache", cache_slots=0.2)
# What a device has to be able to do with slots: read some, write some, look at a part. No keys, no look-up.
PLAIN = {"index_select", "index_copy_", "slice", "select", "view", "alias", "detach", "copy_"}
# Worked by hand, a list a batch: 1 comes four times, 2 three, 3 twice, 4 once.
FREQUENCIES = ([1, 2, 3], [1, 2, 4], [1, 3], [1, 2])
COUNTS = (2, 3, 4)  # thresholds
AGES = (6, 7)  # batches; 3 is 7 batches old at the end, 4 is 8
# Ids and gradients of two batches; the second leaves some rows as they are.
KNOWN = tuple(
    (ids, np.random.default_rng(len(ids)).normal(size=(len(ids), _DIM)).astype(np.float32))
    for ids in ([5, -2, 9, 1 << 40], [9, 5])
)


def host_has_every_row(settings: Settings, stream: Stream) -> Outcome:
    """RS-A-002: every row has its host record while it sits in a slot, and after a flush the newest one."""
    pipeline = Setup(_CACHE, lanes=False, seed=settings.seed, device=settings.device).build(stream)
    for _ in pipeline.run(stream.train):
        pass
    store = pipeline.model.embedding
    held, slots_used, rows_known = [], 0, 0
    for host, tier, group in zip(store.hosts, store.tiers, store.groups, strict=True):
        rows, slots = tier.map.rows_in()
        known = np.concatenate([host.index.entries(table)[1] for table in range(len(group.tables))])
        held.append(np.isin(rows, known).all() and rows.size < known.size)
        tier.flush()
        held.append(torch.equal(host.memory.records[torch.from_numpy(rows)], tier.slots[torch.from_numpy(slots)].cpu()))
        slots_used, rows_known = slots_used + rows.size, rows_known + known.size
    return all(held), f"{slots_used:,} rows in slots, {rows_known:,} in host memory, the former among them"


class _Touching(TorchDispatchMode):
    """The names of torch's operators that read or write a storage."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._storage, self.names = tensor.untyped_storage().data_ptr(), set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if any(tensor.untyped_storage().data_ptr() == self._storage for tensor in tensors):
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def device_needs_no_keys(settings: Settings, stream: Stream) -> Outcome:
    """RS-A-004: the plan is host data; with the slots themselves only plain reads and writes by slot are done."""
    store = _store(settings, ["a"], Tiers(device_tier="slot_cache", cache_slots=64))
    names: set[str] = set()
    for number, keys in enumerate(_keys(1, 12), 1):
        residency = store.prepare([keys])
        plan = residency.groups[0].work.plan
        if not all(type(part) is np.ndarray for part in (plan.in_slots, plan.out_slots, plan.slots)):
            return False, "a plan holds something else than host arrays"
        with _Touching(store.tiers[0].slots) as touching:
            store.commit(residency)
            rows = store.gather(residency, 0)
        names |= touching.names
        _learn(store, residency, rows + 0.5, number)
    found = f"operators on the slots in commit and gather: {', '.join(sorted(names))}"
    return names <= PLAIN and "index_select" in names and "index_copy_" in names, found


def tables_share_a_cache(settings: Settings, stream: Stream) -> Outcome:
    """RS-C-008: three tables in one call, over one cache, against three stores of one table."""
    names, tiers = ["a", "b", "c"], Tiers(device_tier="slot_cache", cache_slots=160)
    together = _store(settings, names, tiers)
    apart = {name: _store(settings, [name], tiers) for name in names}
    for number, keys in enumerate(_keys(3, 30), 1):
        _step(together, keys, number)
        for table, store in enumerate(apart.values()):
            begin, end = keys.offsets[table : table + 2]
            _step(store, KeySet(keys.ids[begin:end], [0, end - begin]), number)
    equal = all(
        torch.equal(together.export(name)[part], store.export(name)[part])
        for name, store in apart.items()
        for part in ("ids", "weight", "state")
    )
    evicted = together.counters.writebacks
    return equal and evicted > 0, f"three tables, 30 batches, {evicted:,} rows written back: every bit is equal"


def records_hold_states(settings: Settings, stream: Stream) -> Outcome:
    """RS-C-009: a row's host record is its weight and then all its states, as its optimizer's formula has them.

    Two steps with known gradients, the second one on some of the rows alone, through a cache; then the host's records.
    """
    held, widths = [], []
    for name in OPTIMIZERS:
        store = _store(settings, ["a"], Tiers(device_tier="slot_cache", cache_slots=8), name)
        records = _after_two_steps(store)
        expected = _by_formula(store)
        held.append(records.shape == expected.shape and np.allclose(records, expected, rtol=1e-4, atol=1e-6))
        widths.append(f"{name} {_DIM} + {records.shape[1] - _DIM}")
    return all(held), f"columns of a record as the formulas have them, weights + states: {', '.join(widths)}"


def _after_two_steps(store: EmbeddingStore) -> np.ndarray:
    """The host records of the rows of `KNOWN`, by id: [4, width]."""
    for number, (ids, grads) in enumerate(KNOWN, 1):
        residency = store.prepare([KeySet(ids, [0, len(ids)])])
        store.commit(residency)
        _learn(store, residency, torch.from_numpy(grads), number)
    store.flush()
    rows = store.hosts[0].find(KeySet(KNOWN[0][0], [0, len(KNOWN[0][0])]))
    return store.hosts[0].memory.records[torch.from_numpy(rows), : store.groups[0].record_width].numpy()


def _by_formula(store: EmbeddingStore) -> np.ndarray:
    """[4, width] float64: what `_after_two_steps` should find, from the initial weights of a table never trained."""
    ids = KNOWN[0][0]
    untrained = EmbeddingStore(store.groups[0].tables, store.optimizer, seed=store.seed)
    rows = []
    for i, weight in zip(ids, untrained.full_weight("a", np.array(ids)).double().numpy(), strict=True):
        touched = [(n, grads[at.index(i)].astype(float)) for n, (at, grads) in enumerate(KNOWN, 1) if i in at]
        rows.append(optimizers_by_hand.record(store.optimizer, weight, touched))
    return np.stack(rows)


def filters_are_lfu_and_lru(settings: Settings, stream: Stream) -> Outcome:
    """RS-A-007: whether a table of as many rows, filled by LFU and emptied by LRU, would hold the same keys.

    At several thresholds each, which tell all counts and ages of the keys apart: the count filter against as many of
    the most frequent keys as reach the threshold, the age filter against as many of the most recently used ones.
    """
    batches = _ten_times(FREQUENCIES)
    uses = {i: sum(i in batch for batch in FREQUENCIES) for i in (1, 2, 3, 4)}
    ages = {i: min(len(batches) - n for n, batch in enumerate(batches, 1) if i in batch) for i in uses}
    same, said = [], []
    for least in COUNTS:
        admitted = _kept(settings, batches[:4], FeatureRules(admit="count", admit_threshold=least))
        same.append(admitted == _first(uses, lambda i: -uses[i], sum(n >= least for n in uses.values())))
        said.append(f"from {least} uses on {sorted(admitted)}")
    for most in AGES:
        stayed = _kept(settings, batches, FeatureRules(evict="age", evict_after=most, evict_every=10))
        same.append(stayed == _first(ages, lambda i: ages[i], sum(age <= most for age in ages.values())))
        said.append(f"up to age {most} {sorted(stayed)}")
    by_click = _kept(settings, batches[:4], FeatureRules(admit="show_click", admit_threshold=11), clicked={4})
    other = (
        "" if by_click == _first(uses, lambda i: -uses[i], len(by_click)) else "; the third rule, by clicks, does not"
    )
    return all(same), f"{', '.join(said)}: {'' if all(same) else 'NOT '}as LFU and LRU would{other}"


def _first(keys: Iterable[int], order: Callable[[int], int], count: int) -> set[int]:
    return set(sorted(keys, key=order)[:count])


def _ten_times(batches: Sequence[Sequence[int]]) -> list[list[int]]:
    """The batches, and then 1 and 2 alone until a round of eviction is due."""
    return [*map(list, batches), [1, 2], [2], [1], [1, 2], [2], [1]]


def _kept(
    settings: Settings, batches: Sequence[Sequence[int]], rules: FeatureRules, clicked: Sequence[int] = ()
) -> set[int]:
    """The keys that have a row after the batches."""
    store = _store(settings, ["a"], Tiers(features=rules))
    for number, ids in enumerate(batches, 1):
        clicks = np.array([float(i in clicked) for i in ids])
        keys = KeySet(ids, [0, len(ids)], np.ones(len(ids), dtype=np.int64), clicks)
        _step(store, keys, number)
        store.evict()
    return set(store.export("a")["ids"].tolist())


def _store(settings: Settings, names: Sequence[str], tiers: Tiers, rule: str = "adagrad") -> EmbeddingStore:
    tables, there = [TableConfig(name, _DIM) for name in names], replace(tiers, device=settings.device)
    return EmbeddingStore(tables, optimizer(rule, lr=LR), seed=settings.seed, tiers=there)


def _keys(tables: int, batches: int, size: int = 30) -> list[KeySet]:
    """Unique keys of random batches, the same at every call."""
    rng = np.random.default_rng(11)
    offsets = np.arange(tables + 1) * size
    draws = (rng.zipf(1.3, tables * size) % 300 for _ in range(batches))
    return [KeySet(*deduplicate(ids.astype(np.int64), offsets)[:2]) for ids in draws]


def _step(store: EmbeddingStore, keys: KeySet, number: int) -> None:
    residency = store.prepare([keys])
    store.commit(residency)
    _learn(store, residency, store.gather(residency, 0) + 0.5, number)  # a gradient that hangs on the row


def _learn(store: EmbeddingStore, residency, grads: torch.Tensor, number: int) -> None:
    """One update, and all that is left to do of the batch."""
    store.apply(residency, [grads], StepInfo(number=number))
    store.writeback(residency)
    store.release(residency)


CHECKS = {
    "RS-A-002": host_has_every_row,
    "RS-A-004": device_needs_no_keys,
    "RS-A-007": filters_are_lfu_and_lru,
    "RS-C-008": tables_share_a_cache,
    "RS-C-009": records_hold_states,
}
