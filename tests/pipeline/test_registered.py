"""Every value that a flag can have from outside, the suite's own beside those of installed packages, learns the same.

Values come from the registry: an installed package is tried without being named. `tests/plugins` runs this on one.
Broken on purpose, each of these fails here: a clustering rule that leaves a sample out and repeats another, a schedule
without UPDATE(t−1) → EMB_EXCHANGE(t), a transport that sums only half the ranks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rank_cases import Case, alone, learn, merged, same_bits

from nestlab import plugins
from nestlab.exchange import Transport
from nestlab.exchange.collective import CollectiveTransport
from nestlab.techniques import values

EXECUTORS = ("inline", "lanes", "shuffled:0")
STEPS = 12
SLOTS = "device_tier=slot_cache,cache_slots=1"  # the tests' own trainings make it as small as their batches allow


def settings() -> list[str]:
    """As flags: each policy, clustering rule and schedule builder of the registry, on a tier that it matters for."""
    policies = [f"{SLOTS},cache_policy={name},pipeline_depth=3" for name in values("cache_policy") if name != "oracle"]
    rules = [f"micro_batches=4,clustering={name},pipeline_depth=3" for name in values("clustering") if name != "none"]
    builders = [name for name in values("schedule") if name != "auto"]
    tiers = ("device_tier=direct", "device_tier=dual_buffer,micro_batches=4", f"{SLOTS},micro_batches=2")
    return policies + rules + [f"schedule={name},{tier}" for name in builders for tier in tiers]


def check_alone(text: str) -> None:
    """One rank: whatever the executor, the bits of the plain loop."""
    case = Case(text, steps=STEPS)
    expected = alone(case.reference)
    for executor in EXECUTORS:
        assert same_bits(alone(replace(case, executor=executor)), expected), executor


def check_ranks(ranks, text: str) -> None:
    """Two ranks, a thread a lane: the bits of the plain loop on two ranks."""
    case = Case(text, "lanes", steps=STEPS)
    assert same_bits(merged(ranks.run(learn, case)), merged(ranks.run(learn, case.reference)))


def check_order_of_samples(name: str) -> None:
    """Float64: with the samples in another order only the order of sums moves."""
    plain, clustered = (Case(text, dtype=torch.float64, steps=STEPS) for text in ("", _clustered(name)))
    one, other = alone(plain), alone(clustered)
    assert one.keys() == other.keys()
    assert all(torch.allclose(one[n].double(), other[n].double(), rtol=0, atol=1e-10) for n in one)


def check_transport(ranks, name: str) -> None:
    """Two ranks that meet by this transport: the bits of the suite's own."""
    case = Case("nestpipe,micro_batches=2", "lanes", steps=STEPS)
    assert same_bits(merged(ranks.run(learn_over, name, case)), merged(ranks.run(learn, case)))


def learn_over(transport: Transport, name: str, case: Case) -> dict[str, torch.Tensor]:
    """In a rank: connects once more, by the transport called `name`."""
    connect = plugins.transport(name) or CollectiveTransport.connect
    own = connect(replicas=1, device="cpu", timeout_s=30.0)
    try:
        return learn(own, case)
    finally:
        own.close()


def _clustered(name: str) -> str:
    return f"micro_batches=4,clustering={name}"


@pytest.mark.parametrize("text", settings())
def test_one_rank_equals_the_plain_loop(text):
    check_alone(text)


@pytest.mark.dist
@pytest.mark.parametrize("text", settings())
def test_two_ranks_equal_the_plain_loop(ranks, text):
    check_ranks(ranks, text)


@pytest.mark.parametrize("name", values("clustering"))
def test_another_order_of_samples_learns_the_same(name):
    check_order_of_samples(name)


@pytest.mark.dist
@pytest.mark.parametrize("name", values("transport"))
def test_ranks_that_meet_by_a_transport_learn_the_same(ranks, name):
    check_transport(ranks, name)
