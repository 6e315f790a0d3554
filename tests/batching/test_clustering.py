"""Clustering rules: permutations that cost no more than time order, against brute force on tiny batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.batch import Batch
from nestlab.batching import RULES, Greedy, KMeans, SampleKeys, cluster, cost, reduction, rule, sample_keys
from nestlab.errors import UserError

NAMES = list(RULES)
ALL = {name: rule(name) for name in NAMES}


def made(sets: list[list[int]]) -> SampleKeys:
    numbers = {key: number for number, key in enumerate(dict.fromkeys(k for keys in sets for k in keys))}
    offsets = np.cumsum([0, *map(len, sets)])
    return SampleKeys(offsets, np.array([numbers[k] for keys in sets for k in keys], dtype=np.int64), len(numbers))


def plain_cost(sets: list[list[int]], order, parts: int) -> int:
    """The objective in plain Python, from its definition."""
    size = len(sets)
    runs = [order[i * size // parts : (i + 1) * size // parts] for i in range(parts)]
    return sum(len({k for s in run for k in sets[s]}) for run in runs)


SETS = st.lists(st.lists(st.integers(0, 12), max_size=4), max_size=30)


@settings(max_examples=150, deadline=None)
@given(SETS, st.integers(1, 9))
def test_an_order_is_a_permutation_that_costs_no_more_than_time_order(sets, parts):
    """Seen to fail: with time order left out of the candidates of either rule, with one sample written twice by an
    exchange, with the kernel's cost not starting anew in each part."""
    samples, identity = made(sets), list(range(len(sets)))
    for name, chosen in ALL.items():
        order = chosen.order(samples, parts)
        assert order.dtype == np.int64 and sorted(order.tolist()) == identity, name
        assert cost(samples, parts, order) == plain_cost(sets, order.tolist(), parts), name
        assert plain_cost(sets, order.tolist(), parts) <= plain_cost(sets, identity, parts), name
        assert (order == chosen.order(samples, parts)).all(), name
        assert reduction(samples, parts, order) <= 1


def least(sets: list[list[int]], parts: int) -> int:
    return min(plain_cost(sets, order, parts) for order in itertools.permutations(range(len(sets))))


def test_greedy_finds_the_optimum_of_tiny_batches():
    """Six samples, all 720 orders. Seen to fail without exchanges."""
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(40):
        sets = [rng.integers(0, 6, rng.integers(1, 4)).tolist() for _ in range(6)]
        parts = int(rng.integers(2, 4))
        samples, best = made(sets), least(sets, parts)
        found = cost(samples, parts, ALL["greedy"].order(samples, parts))
        assert best <= found
        hits += found == best
    assert hits == 40


def test_interleaved_blocks_are_told_apart():
    """Four groups of samples with keys of their own, dealt in turn: the bound is reached by growing alone."""
    sets = [[10 * (s % 4) + k for k in (s % 3, 3)] for s in range(64)]
    samples = made(sets)
    for chosen in (Greedy(exchanges=0), ALL["greedy"], ALL["kmeans"]):
        assert cost(samples, 4, chosen.order(samples, 4)) == samples.unique
        assert reduction(samples, 4, chosen.order(samples, 4)) == 1.0
    assert cost(samples, 4) == 4 * samples.unique


def test_exchanges_save_keys_after_growing():
    rng = np.random.default_rng(5)
    samples = made(rng.zipf(1.5, (300, 3)).tolist())
    grown, exchanged = (cost(samples, 6, Greedy(exchanges=n).order(samples, 6)) for n in (0, 64))
    assert samples.unique <= exchanged < grown < cost(samples, 6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("sets", "parts"), [([], 4), ([[1]], 4), ([[], []], 2), ([[1], [2], [1]], 8), ([[1, 1]], 1)])
def test_edge_cases_keep_time_order(name, sets, parts):
    samples = made(sets)
    assert ALL[name].order(samples, parts).tolist() == list(range(len(sets)))


def test_order_within_a_part_is_that_of_time():
    samples = made([[s % 5, 5 + s % 7] for s in range(100)])
    for name in ("greedy", "kmeans"):
        order = ALL[name].order(samples, 4)
        assert all((np.diff(part) > 0).all() for part in np.split(order, 4)), name


def test_effort_is_bounded():
    samples = made([[s % 9, 9 + s % 11] for s in range(200)])
    start = Greedy(exchanges=0).order(samples, 4)
    assert (Greedy(touches=0, exchanges=0).order(samples, 4) == start).all()
    assert cost(samples, 4, Greedy(touches=1).order(samples, 4)) <= cost(samples, 4, start)


def batch_of(features: dict[str, list[list[int]]], size: int) -> Batch:
    bags = list(features.values())
    ids = torch.tensor([i for bag in bags for sample in bag for i in sample], dtype=torch.int64)
    return Batch(
        dense=torch.arange(2.0 * size).view(size, 2),
        features=tuple(features),
        ids=ids,
        lengths=torch.tensor([len(sample) for bag in bags for sample in bag], dtype=torch.int64),
        labels=torch.arange(float(size)),
        weights=torch.arange(float(size)) + 1,
        id_weights=torch.arange(float(ids.numel())),
    )


BIG = 2**63 - 1
FEATURES = {"a": [[1, 2], [], [BIG]], "b": [[2], [7], [-BIG - 1, 2]], "c": [[], [], []]}


def test_features_of_one_table_share_keys():
    batch = batch_of(FEATURES, 3)
    apart, shared = sample_keys(batch), sample_keys(batch, {"a": "t", "b": "t", "c": "u"})
    assert (apart.unique, shared.unique) == (6, 5)
    assert np.diff(shared.offsets).tolist() == [3, 1, 3]
    one, two, three = np.split(shared.keys, shared.offsets[1:-1])
    assert one[1] == one[2] == three[2] and len({*one, *two, *three}) == 5
    assert sample_keys(batch, {"b": "b"}).unique == 3
    with pytest.raises(UserError, match=r"lacks feature\(s\) z; it has \['a', 'b', 'c'\]"):
        sample_keys(batch, {"z": "t"})


def test_no_features_and_no_samples():
    for batch in (batch_of({}, 3), batch_of({"a": []}, 0), batch_of({"a": [[]] * 5}, 5)):
        for chosen in ALL.values():
            assert cluster(batch, chosen, 4) is batch
        assert cost(sample_keys(batch), 4) == 0


def test_cluster_moves_whole_samples():
    features = {"a": [[s % 3, 100 + s % 3] for s in range(12)], "b": [[s] * (s % 3) for s in range(12)]}
    batch = batch_of(features, 12)
    after = cluster(batch, ALL["greedy"], 3, {"a": "a"})
    order = after.labels.long().tolist()
    assert sorted(order) == list(range(12)) and order != list(range(12))
    expected = batch_of({name: [bags[s] for s in order] for name, bags in features.items()}, 12)
    assert torch.equal(after.ids, expected.ids) and torch.equal(after.lengths, expected.lengths)
    assert torch.equal(after.dense, batch.dense[order]) and torch.equal(after.weights, after.labels + 1)
    assert [len(set(part.ids[: 2 * part.size].tolist())) for part in after.micro_batches(3)] == [2, 2, 2]


class Wrong:
    def __init__(self, order):
        self._order = order

    def order(self, samples, parts):
        return self._order


@pytest.mark.parametrize("order", [[0, 0, 1], [0, 1], [0, 1, 3], [-1, 0, 1], [0.0, 1.0, 2.0]])
def test_a_rule_that_gives_no_permutation_is_refused(order):
    with pytest.raises(UserError, match="rule Wrong: its order of 3 samples is no int64 permutation"):
        cluster(batch_of(FEATURES, 3), Wrong(np.array(order)), 2)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="unknown clustering rule 'k-means'; use one of none, greedy, kmeans"):
        rule("k-means")
    with pytest.raises(UserError, match="rounds=0"):
        KMeans(rounds=0)
    with pytest.raises(UserError, match="exchanges=-1"):
        Greedy(exchanges=-1)
    with pytest.raises(ValueError, match="do not ascend"):
        SampleKeys(np.array([0, 2]), np.array([0]), 1)
    with pytest.raises(ValueError, match=r"keys outside 0 … 0"):
        SampleKeys(np.array([0, 1]), np.array([1]), 1)


@pytest.mark.data
def test_real_rows_share_keys(real_data, tmp_path_factory):
    """KuaiRand-Pure, user and video: above 0.65 and above the best sort by one of the two, in every batch."""
    from nestlab.benchmarks.clustering import _best_sort
    from nestlab.data import open_dataset

    dataset = open_dataset("kuairand-pure", real_data, prepared=tmp_path_factory.mktemp("prepared"))
    reached = []
    for batch in itertools.islice(dataset.batches("train", 4096), 0, 44, 11):
        samples = sample_keys(batch, {"user_id": "user", "video_id": "video"})
        assert samples.keys.size == 2 * 4096
        clustered = cluster(batch, ALL["greedy"], 8, {"user_id": "user", "video_id": "video"})
        after = cost(sample_keys(clustered, {"user_id": "user", "video_id": "video"}), 8)
        greedy, kmeans = (reduction(samples, 8, ALL[name].order(samples, 8)) for name in ("greedy", "kmeans"))
        assert after == cost(samples, 8, ALL["greedy"].order(samples, 8))
        assert greedy > max(0.65, kmeans, reduction(samples, 8, _best_sort(batch, samples, 8)))
        reached.append(greedy)
    assert len(reached) == 4 and np.median(reached) > 0.85
