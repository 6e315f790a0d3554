"""Every tier, policy and rule, in any order, learns what `Direct` learns in the plain order: to the bit.

What was broken on purpose to see it fail, for each of the eight hazards of docs/design.md 4.2, is in test_hazards.py,
where it is broken anew each time. Policies are those of the registry: what a package adds is tried like any other.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tier_runs import Inline, Shuffled, learnt, stream, train

from nestlab.embedding import optimizer
from nestlab.techniques import Techniques, values

OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "lazy_adam")
TIERS = (
    "device_tier=direct",
    "device_tier=dual_buffer",
    *(f"device_tier=slot_cache,cache_slots=400,cache_policy={p}" for p in values("cache_policy") if p != "oracle"),
    "device_tier=slot_cache,cache_slots=400,cache_policy=oracle,look_ahead=8",
    "device_tier=slot_cache,cache_slots=0.1",
)
BELOW = ("memory", "disk", "buckets")
ADMIT = ("none", "count", "sketch", "show_click")
EVICT = ("none", "age", "score")
DEPTHS = (1, 2, 3, 5)
ORDERS = (None, 0, 1)  # inline, or the seed of a random order
FIELDS = (OPTIMIZERS, TIERS, BELOW, ADMIT, EVICT, DEPTHS, ORDERS)


def pairwise(fields: tuple[tuple, ...]) -> list[tuple]:
    """Rows in which every two values of different fields meet at least once; greedy, the same every time."""
    places = [(i, j) for i in range(len(fields)) for j in range(i)]
    open_pairs = {(i, j, a, b) for i, j in places for a in fields[i] for b in fields[j]}
    rows = []
    everything, rng = list(product(*fields)), random.Random(1)
    while open_pairs:
        some = rng.sample(everything, 60)
        met = [{(i, j, row[i], row[j]) for i, j in places} & open_pairs for row in some]
        best = max(range(len(some)), key=lambda n: len(met[n]))
        open_pairs -= met[best]
        rows.append(some[best])
    return rows


@cache
def batches(seed: int):
    return stream(seed)


@cache
def plain(kind: str, rules: str, seed: int) -> dict[str, bytes]:
    """What `Direct` learns in the plain order."""
    return learnt(train(batches(seed), Techniques.parse(rules), kind))


def rules(admit: str, evict: str) -> str:
    """As flags: thresholds at which some ids are refused, and rounds in which some rows go and come back."""
    threshold = {
        "none": "",
        "count": ",admit_threshold=3",
        "sketch": ",admit_threshold=3",
        "show_click": ",admit_threshold=8",
    }
    going = {"none": "", "age": ",evict_after=15,evict_every=10", "score": ",evict_share=0.1,evict_every=10"}
    return f"admit={admit}{threshold[admit]},evict={evict}{going[evict]}"


def below(name: str, kind: str, folder) -> str:
    """A disk below a host tier that holds a seventh of the rows; or the key index in parts."""
    width = 6 + optimizer(kind, lr=0.1).state_width(6) + (3 + optimizer(kind, lr=0.1).state_width(3)) // 2
    return {
        "memory": "",
        "disk": f",host_capacity={4 * 560 * width},disk={folder}",
        "buckets": ",index_buckets=8,index_threads=2",
    }[name]


def check(row: tuple, folder, seed: int = 0) -> None:
    kind, tier, under, admit, evict, depth, order = row
    flags = f"{tier},{rules(admit, evict)}{below(under, kind, folder)},pipeline_depth={depth}"
    store = train(batches(seed), Techniques.parse(flags), kind, executor=Inline() if order is None else Shuffled(order))
    assert learnt(store) == plain(kind, rules(admit, evict), seed)
    counted = store.counters
    if "slot_cache" in tier:
        assert counted.hits > 0 and counted.misses > 0 and counted.writebacks > 0
    if admit != "none":
        assert counted.refused > 0
    if evict != "none":
        assert counted.evicted > 0
    if under == "disk":
        assert all(host.memory.demoted > 0 for host in store.hosts[:1])


@pytest.mark.parametrize("row", pairwise(FIELDS), ids=lambda row: "-".join(map(str, row)))
def test_every_pair_of_settings_learns_what_direct_learns(row, tmp_path):
    check(row, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("head", list(product(OPTIMIZERS, TIERS)), ids=lambda head: "-".join(head))
def test_the_full_product_learns_what_direct_learns(head, tmp_path):
    """Every optimizer, tier, policy, memory and depth of prefetching, with and without features that come and go."""
    for under, (admit, evict), depth in product(BELOW, (("none", "none"), ("count", "age")), (2, 5)):
        check((*head, under, admit, evict, depth, 7), tmp_path)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from(TIERS[1:]), st.sampled_from(DEPTHS[1:]), st.integers(0, 99))
def test_any_stream_learns_what_direct_learns(tmp_path_factory, seed, tier, depth, order):
    folder = tmp_path_factory.mktemp("disk")
    check(("adagrad", tier, "disk", "count", "age", depth, order), folder, seed)
