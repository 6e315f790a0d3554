"""Replicas that average what they trained, on threads, against plain Python and against synchronous training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake_transport import FakeWorld

from nestlab.embedding import SGD, Adagrad, EmbeddingStore, KeySet, StepInfo, TableConfig, Tiers
from nestlab.embedding.features import FeatureRules
from nestlab.embedding.records import read_records, write_records
from nestlab.embedding.sharding import owner
from nestlab.exchange import LocalTransport, replicas
from nestlab.exchange.replicas import Replicas

TABLES = (TableConfig("a", 3), TableConfig("b", 3), TableConfig("c", 2))
WHERE = (("a", 0, 0), ("b", 0, 1), ("c", 1, 0))  # table, group, number in the group
IDS = np.concatenate([np.arange(-12, 12), [2**63 - 1, -(2**63)]])
LR = 0.1


def tiers(kind: str, folder) -> Tiers:
    match kind:
        case "direct" | "dual_buffer":
            return Tiers(kind)
        case "slot_cache":
            return Tiers(kind, cache_slots=40)
        case "share":
            return Tiers("slot_cache", cache_slots=0.5, cache_policy="lru")
        case _:
            tier = kind.removesuffix("-disk")
            return Tiers(tier, cache_slots=40 if tier == "slot_cache" else 0, host_rows=90, disk=str(folder))


KINDS = ("direct", "dual_buffer", "slot_cache", "share", "direct-disk", "slot_cache-disk")


def key_set(*ids) -> KeySet:
    return KeySet(np.concatenate([np.asarray(i, dtype=np.int64) for i in ids]), np.cumsum([0, *map(len, ids)]))


def batches(replica: int, count: int) -> list[list[np.ndarray]]:
    """Ids of the three tables: consecutive batches overlap, some runs are empty, replicas train other keys."""
    rng = np.random.default_rng(replica)
    return [
        [rng.choice(IDS, 0 if rng.random() < 0.2 else rng.integers(1, 9), False) for _ in TABLES] for _ in range(count)
    ]


def train(store: EmbeddingStore, ids: list[np.ndarray], number: int, gradient) -> list[KeySet]:
    """One batch on one replica; the gradient of a row is a function of the weights that were read."""
    keys = [key_set(ids[0], ids[1]), key_set(ids[2])]
    residency = store.prepare(keys)
    store.commit(residency)
    grads = [gradient(store.gather(residency, group)) for group in range(2)]
    store.apply(residency, grads, StepInfo(number))
    store.writeback(residency)
    store.release(residency)
    return keys


def grown(weights, replica: int):
    return weights * (replica + 1) + 0.25


def run_replicas(count: int, every: int, steps: int, options: list[Tiers], dtype=torch.float64, optimizer=None):
    """What each replica exports after `steps` batches, the last of which is followed by a sync."""

    def rank(transport):
        replica = transport.mesh.replica
        store = EmbeddingStore(TABLES, optimizer or SGD(LR), dtype=dtype, tiers=options[replica])
        together = Replicas(store, transport)
        for number, ids in enumerate(batches(replica, steps), 1):
            together.touched(train(store, ids, number, lambda w: grown(w, replica)))
            if number % every == 0:
                together.sync()
        return {table: store.export(table) for table, _, _ in WHERE}

    return FakeWorld(count, count).run(rank)


def run_plainly(count: int, every: int, steps: int) -> dict:
    """The same in plain Python: SGD on dicts of lists, and the mean of those."""
    start = EmbeddingStore(TABLES, SGD(LR), dtype=torch.float64)
    initial = {
        (table, int(i)): w
        for table, _, _ in WHERE
        for i, w in zip(IDS, start.full_weight(table, IDS).tolist(), strict=True)
    }
    held = [dict(initial) for _ in range(count)]
    trained, known = set(), set()
    streams = [batches(replica, steps) for replica in range(count)]
    for number in range(1, steps + 1):
        for replica in range(count):
            for (table, _, _), ids in zip(WHERE, streams[replica][number - 1], strict=True):
                for key in ((table, int(i)) for i in ids):
                    held[replica][key] = [w - LR * grown(w, replica) for w in held[replica][key]]
                    trained.add(key)
        if number % every == 0:
            for key in trained:
                mean = [sum(column) / count for column in zip(*(h[key] for h in held), strict=True)]
                for h in held:
                    h[key] = mean
            known |= trained
            trained = set()
    return {key: held[0][key] for key in known}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "every"), [(2, 1), (3, 2)])
def test_replicas_hold_the_mean_at_every_tier(kind, count, every, tmp_path):
    """A later batch trains on what it reads, so that a stale copy in the device tier shows. Seen to fail with
    `overwrite` doing nothing in the dual buffer or the slot cache, and its `newest` reading the host tier alone."""
    steps = 12
    exported = run_replicas(count, every, steps, [tiers(kind, tmp_path / str(r)) for r in range(count)])
    plain = run_plainly(count, every, steps)
    for table, _, _ in WHERE:
        first = exported[0][table]
        assert first["ids"].tolist() == sorted(i for t, i in plain if t == table)
        for other in exported[1:]:
            assert all(torch.equal(first[name], other[table][name]) for name in first)
        expected = [plain[table, i] for i in first["ids"].tolist()]
        np.testing.assert_allclose(first["weight"].numpy(), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_tiers_have_the_bits_of_direct(kind, tmp_path, monkeypatch):
    """In float32 with states, rows in several portions."""
    monkeypatch.setattr(replicas, "_AT_ONCE", 7)
    runs = [
        run_replicas(2, 1, 10, [tiers(k, tmp_path / k / str(r)) for r in range(2)], torch.float32, Adagrad(LR))
        for k in ("direct", kind)
    ]
    for table, _, _ in WHERE:
        for name in ("ids", "weight", "state"):
            assert torch.equal(runs[0][0][table][name], runs[1][1][table][name]), (table, name)


def test_shards_meet_only_their_own_replicas():
    """Four ranks, two groups of two shards: a rank has its shard's keys, and the mean over the groups."""

    def rank(transport):
        mesh = transport.mesh
        store = EmbeddingStore(TABLES, SGD(LR), dtype=torch.float64)
        together = Replicas(store, transport)
        ids = [IDS[owner(IDS, table, 2) == mesh.shard] for table, _, _ in WHERE]
        mine = [
            part[mesh.replica :: 2] if table == "a" else part for part, (table, _, _) in zip(ids, WHERE, strict=True)
        ]
        together.touched(train(store, mine, 1, lambda w: grown(w, mesh.replica)))
        together.sync()
        return {table: store.export(table) for table, _, _ in WHERE}

    exported = FakeWorld(4, 2).run(rank)
    start = EmbeddingStore(TABLES, SGD(LR), dtype=torch.float64)
    for table, _, _ in WHERE:
        for shard in range(2):
            one, other = exported[shard][table], exported[2 + shard][table]
            assert all(torch.equal(one[name], other[name]) for name in one)
            own = np.sort(IDS[owner(IDS, table, 2) == shard])
            assert one["ids"].tolist() == own.tolist()
            if table != "a":
                w = start.full_weight(table, own)
                mean = ((w - LR * grown(w, 0)) + (w - LR * grown(w, 1))) / 2
                torch.testing.assert_close(one["weight"], mean, rtol=1e-13, atol=1e-15)


def regression(optimizer, groups: int, steps: int = 15):
    """The weights of table c after training y ≈ Σ w over pairs of ids: each group on its part of the global batch, with
    the gradient of its own mean loss, one synchronisation after every step."""
    rng = np.random.default_rng(11)
    pairs, targets = rng.integers(0, 12, (steps, 24, 2)), rng.normal(size=(steps, 24))

    def rank(transport):
        mesh = transport.mesh
        store = EmbeddingStore([TableConfig("c", 2)], optimizer, dtype=torch.float64)
        together = Replicas(store, transport)
        mine = slice(24 * mesh.replica // groups, 24 * (mesh.replica + 1) // groups)
        for number in range(steps):
            unique, at = np.unique(pairs[number, mine], return_inverse=True)
            keys, at = [key_set(unique)], torch.from_numpy(at.reshape(-1, 2))
            residency = store.prepare(keys)
            store.commit(residency)
            rows = store.gather(residency, 0).requires_grad_()
            error = rows[at].sum(dim=(1, 2)) - torch.from_numpy(targets[number, mine])
            (0.5 * error.square().mean()).backward()
            store.apply(residency, [rows.grad], StepInfo(number + 1))
            store.writeback(residency)
            store.release(residency)
            together.touched(keys)
            together.sync()
        return store.export("c")["weight"]

    return FakeWorld(groups, groups).run(rank)[0]


@pytest.mark.parametrize("groups", [2, 3, 4])
def test_sgd_equals_synchronous_training_and_adagrad_does_not(groups):
    """The declared gap: Adagrad's states sum squares of each group's gradients, not of their mean."""
    torch.testing.assert_close(regression(SGD(0.3), groups), regression(SGD(0.3), 1), rtol=0, atol=1e-12)
    gap = (regression(Adagrad(0.3), groups) - regression(Adagrad(0.3), 1)).abs().max()
    assert 1e-3 < gap < 1


def test_only_what_was_trained_travels():
    """Bytes by hand; what one replica alone trained is averaged with what the other starts with."""

    def rank(transport):
        store = EmbeddingStore(TABLES, Adagrad(LR), dtype=torch.float64)
        together = Replicas(store, transport)
        before = store.full_weight("a", np.array([7]))
        if transport.mesh.replica == 0:
            together.touched(train(store, [[7, 9], [], [5]], 1, torch.ones_like))
            together.touched(train(store, [[7], [], []], 2, torch.ones_like))
        mine = store.full_weight("a", np.array([7]))
        first, second = together.sync(), together.sync()
        record = read_records(store, 0, key_set([7], []))
        return first, second, before, mine, record, int(store.hosts[0].rows.last_seen.max())

    results = FakeWorld(2, 2).run(rank)
    (first, second, before, mine, record, seen), (*_, other, seen_there) = results
    counts, ids, records = 3 * 8, 3 * 8, (2 * (3 + 3) + (2 + 2)) * 8
    assert (first, second) == (counts + ids + records, counts)
    assert torch.equal(record, other)
    torch.testing.assert_close(record[:, :3], (before + mine) / 2, rtol=1e-15, atol=0)
    assert record[0, 3:].tolist() == [1.0, 1.0, 1.0]  # two steps with gradients of 1, over two replicas
    assert (seen, seen_there) == (3, 1)  # later than the last batch: an incremental checkpoint takes them


def test_a_key_that_was_refused_is_not_averaged():
    rules = FeatureRules(admit="count", admit_threshold=2)

    def rank(transport):
        store = EmbeddingStore([TableConfig("c", 2)], SGD(LR), tiers=Tiers(features=rules))
        together = Replicas(store, transport)
        replica, shows = transport.mesh.replica, np.array([1, 2])
        keys = [KeySet(np.array([4, 5 + transport.mesh.replica]), [0, 2], shows, np.zeros(2))]
        residency = store.prepare(keys)
        store.apply(residency, [torch.full((2, 2), 1.0 + replica)], StepInfo(1))
        store.writeback(residency)
        store.release(residency)
        together.touched(keys)
        together.sync()
        return store.export("c")

    one, other = FakeWorld(2, 2).run(rank)
    assert one["ids"].tolist() == other["ids"].tolist() == [5, 6]
    assert torch.equal(one["weight"], other["weight"])
    start = EmbeddingStore([TableConfig("c", 2)], SGD(LR)).full_weight("c", np.array([5, 6]))
    torch.testing.assert_close(one["weight"], start - LR * torch.tensor([[0.5], [1.0]]))


def test_a_single_replica_sends_nothing():
    store = EmbeddingStore(TABLES, SGD(LR))
    together = Replicas(store, LocalTransport())
    together.touched(train(store, [[1], [2], [3]], 1, torch.ones_like))
    before = store.export("a")["weight"]
    assert together.sync() == 0 and torch.equal(store.export("a")["weight"], before)


def test_batches_in_flight_are_refused():
    def rank(transport):
        store = EmbeddingStore(TABLES, SGD(LR))
        store.prepare([key_set([1], []), key_set([])])
        with pytest.raises(RuntimeError, match="sync: 1 batches are in flight"):
            Replicas(store, transport).sync()
        with pytest.raises(RuntimeError, match="write_records: 1 batches are in flight"):
            write_records(store, 0, key_set([], []), torch.empty(0, 3))

    FakeWorld(2, 2).run(rank)
