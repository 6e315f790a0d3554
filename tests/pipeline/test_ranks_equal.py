"""Two ranks, whatever the schedule, give the plain loop's bits; and any number of ranks the same mathematics.

Broken on purpose, each of these fails here: gradients summed in the order in which they come, the loss divided by the
rank's own weight, UPDATE before the last micro-batch, a part's positions taken for the whole batch's.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import product

import pytest
import torch
from rank_cases import Case, alone, learn, merged, same_bits

from nestlab.exchange.collective import CollectiveTransport
from nestlab.techniques import Techniques

pytestmark = pytest.mark.dist

TIERS = (
    "direct",
    "dual_buffer",
    "slot_cache,cache_slots=1",
    "slot_cache,cache_slots=1,cache_policy=oracle,look_ahead=3",
)
DEPTHS, PARTS = (1, 2, 3, 4, 5), (1, 2, 4, 8)
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "lazy_adam")
EXECUTORS = ("lanes", "shuffled:0", "shuffled:1")
STEPS = 24  # of the pairs; presets, clipping and the full product take 50


def _text(tier: str, depth: int, parts: int) -> str:
    return f"device_tier={tier},pipeline_depth={depth},micro_batches={parts}"


# Every pair of two values of two columns occurs: an orthogonal-enough walk through the product, checked below.
def _pairwise() -> list[tuple]:
    columns = (TIERS, DEPTHS, PARTS, OPTIMIZERS, EXECUTORS)
    missing = {
        (i, a, j, b)
        for i, first in enumerate(columns)
        for j, second in enumerate(columns)
        if i < j
        for a in first
        for b in second
    }
    rows = []
    everything = list(product(*columns))
    while missing:
        row = max(
            everything, key=lambda r: sum((i, r[i], j, r[j]) in missing for i in range(5) for j in range(i + 1, 5))
        )
        missing -= {(i, row[i], j, row[j]) for i in range(5) for j in range(i + 1, 5)}
        rows.append(row)
    return rows


class References:
    """Results of the plain loop, each trained once."""

    def __init__(self, ranks) -> None:
        self._ranks, self._known = ranks, {}

    def __call__(self, case: Case) -> dict[str, torch.Tensor]:
        reference = case.reference
        if reference not in self._known:
            self._known[reference] = merged(self._ranks.run(learn, reference))
        return self._known[reference]


@pytest.fixture(scope="module")
def plain(ranks) -> References:
    return References(ranks)


@pytest.mark.parametrize(("tier", "depth", "parts", "optimizer", "executor"), _pairwise())
def test_two_ranks_equal_the_plain_loop(ranks, plain, tier, depth, parts, optimizer, executor):
    case = Case(_text(tier, depth, parts), executor, optimizer, steps=STEPS)
    assert same_bits(merged(ranks.run(learn, case)), plain(case))


@pytest.mark.slow
@pytest.mark.parametrize(("tier", "optimizer"), list(product(TIERS, OPTIMIZERS)))
def test_two_ranks_equal_the_plain_loop_in_full(ranks, plain, tier, optimizer):
    for depth, parts, executor in product(DEPTHS, PARTS, ("inline", *EXECUTORS)):
        case = Case(_text(tier, depth, parts), executor, optimizer)
        assert same_bits(merged(ranks.run(learn, case)), plain(case)), case


def test_presets_and_clustering_equal_the_plain_loop(ranks, plain):
    for text in (
        "nestpipe",
        "nestpipe,clustering=greedy,micro_batches=4",
        "pipeline_depth=5,depth_schedule=ramp,ramp_over=20",
    ):
        case = Case(text, "lanes")
        assert same_bits(merged(ranks.run(learn, case)), plain(case)), text


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_frozen_window_equals_one_full_batch(ranks, optimizer):
    """Float64; only the order of sums moved."""
    whole = merged(ranks.run(learn, Case("", "inline", optimizer, torch.float64, steps=12)))
    for parts in (2, 8, 16):  # 16: more than a rank has samples
        found = merged(ranks.run(learn, Case(f"micro_batches={parts}", "inline", optimizer, torch.float64, steps=12)))
        assert _difference(whole, found) < 1e-10, parts


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("text", ["", "nestpipe"])
def test_two_ranks_equal_one(ranks, optimizer, text):
    """The global batch does not depend on the world size; slices are unequal, with weights, some of them empty."""
    for size, clip in ((14, None), (7, 0.05), (1, None)):
        case = Case(text, "inline", optimizer, torch.float64, size=size, clip=clip, steps=10)
        assert _difference(alone(case), merged(ranks.run(learn, case))) < 1e-10, case


def test_clipping_keeps_its_bits_in_every_schedule(ranks, plain):
    for text, executor in (("", "shuffled:0"), ("nestpipe", "lanes")):
        case = Case(text, executor, clip=0.05)
        assert same_bits(merged(ranks.run(learn, case)), plain(case))
    unclipped = plain(replace(case, clip=None))
    assert not same_bits(unclipped, plain(case))


def test_staleness_gives_one_result_whatever_the_executor(ranks):
    found = [
        merged(ranks.run(learn, Case("staleness=1,pipeline_depth=3", executor)))
        for executor in ("inline", "lanes", "shuffled:0", "shuffled:1")
    ]
    assert all(same_bits(found[0], other) for other in found[1:])
    assert not same_bits(found[0], merged(ranks.run(learn, Case())))


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8"])
def test_quantised_rows_drift_and_stay_near(ranks, name):
    """Declared inexact: not plain's bits, the same in every schedule, and near."""
    exact = merged(ranks.run(learn, Case()))
    found = merged(ranks.run(learn, Case(f"quantise={name}")))
    again = merged(ranks.run(learn, Case(f"quantise={name},device_tier=dual_buffer,pipeline_depth=5", "lanes")))
    assert not same_bits(exact, found) and same_bits(found, again)
    assert (found["losses"] - exact["losses"]).abs().max() < 0.1
    assert Techniques.parse(f"quantise={name}").exactness().startswith("inexact")


def _learn_replicated(transport, case: Case):
    """The same with as many replica groups as there are ranks: what each rank holds, which is all of it."""
    with closing(CollectiveTransport.connect(replicas=transport.mesh.world_size)) as replicated:
        return learn(replicated, case)


def test_replicas_hold_the_same_after_they_are_averaged(ranks):
    """Every executor gives the same bits, and after SYNC every replica holds the same.

    Broken on purpose: without SYNC's edges an executor that shuffles gives other bits.
    """
    found = []
    for text, executor in (("", "inline"), ("device_tier=dual_buffer,pipeline_depth=4,micro_batches=2", "lanes")):
        case = Case(f"replica_groups=2,replica_every=5,{text}".rstrip(","), executor, "rowwise_adagrad", steps=20)
        one, other = ranks.run(_learn_replicated, replace(case, whole=True))
        assert same_bits(one, other)
        found.append(one)
        shuffled = ranks.run(_learn_replicated, replace(case, whole=True, executor="shuffled:3"))
        assert same_bits(one, shuffled[0])
    assert not same_bits(
        found[0], merged(ranks.run(learn, Case("", "inline", "rowwise_adagrad", steps=20, whole=True)))
    )


def test_replicas_of_sgd_that_are_averaged_after_every_batch_equal_one_copy(ranks):
    """Float64: the mean of the groups' steps is the step of the mean. What Adagrad does with it is declared inexact."""
    case = Case("replica_groups=2", "inline", "sgd", torch.float64, steps=20)
    one, other = ranks.run(_learn_replicated, case)
    assert same_bits(one, other)
    assert _difference(one, merged(ranks.run(learn, replace(case, techniques="")))) < 1e-10


def _difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    differences = [(one[name].double() - other[name].double()).abs().max().item() for name in one if one[name].numel()]
    assert all(one[name].shape == other[name].shape for name in one)
    return max(differences)
