"""Ranks and their metrics against loops over whole numbers, and against torchmetrics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.errors import UserError
from nestlab.training.item_pairs import sampled_pairs
from nestlab.training.ranking_metrics import Ranker, popularity_ranks, ranks_of_targets, retrieval_metrics


def reference(scores: list[list], targets: list[int], left_out: list[list[int]]) -> list[int]:
    """Items above the target and half of its equals, rounded up; by loops, over places."""
    ranks = []
    for row, target, gone in zip(scores, targets, left_out, strict=True):
        above = equal = 0
        for place, score in enumerate(row):
            if place != target and place not in gone:
                above += score > row[target]
                equal += score == row[target]
        ranks.append(above + math.ceil(equal / 2))
    return ranks


def whole(vectors: np.ndarray) -> list[list[int]]:
    """Unit vectors in units of 2⁻²⁶, as Python's integers."""
    found = []
    for vector in vectors.astype(np.float64).tolist():
        squares = 0.0
        for x in vector:
            squares += x * x
        length = max(math.sqrt(squares), 1e-12)
        found.append([round(x / length * 2**26) for x in vector])
    return found


def exact_scores(states: np.ndarray, rows: np.ndarray) -> list[list[int]]:
    ints = whole(rows)
    return [[sum(a * b for a, b in zip(s, r, strict=True)) for r in ints] for s in whole(states)]


@st.composite
def rankings(draw):
    """Few items of few distinct rows, so that many tie; any ids; some seen, among them repeats and strangers."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    items, n, dim = draw(st.integers(1, 9)), draw(st.integers(0, 5)), draw(st.integers(1, 4))
    distinct = generator.normal(size=(draw(st.integers(1, items)), dim)).astype(np.float32)
    rows = distinct[generator.integers(0, len(distinct), items)] * generator.choice([0.0, 1.0, 2.0], (items, 1))
    ids = np.sort(generator.choice(np.arange(-9, 9) * (2**40 + 1), items, replace=False))
    states = generator.normal(size=(n, dim)).astype(np.float32) * generator.choice([0.0, 1.0, 3.0], (n, 1))
    places = generator.integers(0, items, n)
    lengths = generator.integers(0, 5, n)
    seen = generator.choice(np.append(ids, 5), int(lengths.sum()))
    return states, rows, ids, places, (seen, lengths), draw(st.integers(1, 10))


def places_seen(seen, ids):
    values, lengths = seen
    runs = np.split(np.asarray(values), np.cumsum(lengths))[:-1]
    return [[int(np.flatnonzero(ids == value)[0]) for value in run if value in ids] for run in runs]


@settings(max_examples=60, deadline=None)
@given(rankings())
def test_ranks_are_those_of_whole_numbers(case):
    """Broken on purpose: `>=` for `>` above the target; ties rounded down; a target among the seen left out with them;
    seen items of the chunk before: each fails."""
    states, rows, ids, places, seen, chunk = case
    scores = exact_scores(states, rows)
    found = ranks_of_targets(states, torch.from_numpy(rows), ids, ids[places], chunk=chunk)
    assert found.dtype == np.int64 and found.tolist() == reference(scores, places.tolist(), [[]] * len(states))
    found = ranks_of_targets(torch.from_numpy(states), rows, ids, ids[places], seen, chunk)
    assert found.tolist() == reference(scores, places.tolist(), places_seen(seen, ids))


@settings(max_examples=30, deadline=None)
@given(rankings())
def test_popularity_ranks_likewise(case):
    """Broken on purpose: a seen item counted twice that was seen twice."""
    _, _, ids, places, seen, chunk = case
    counts = np.random.default_rng(chunk).integers(0, 3, len(ids))
    for given_seen, left_out in ((None, [[]] * len(places)), (seen, places_seen(seen, ids))):
        expected = reference([counts.tolist()] * len(places), places.tolist(), left_out)
        assert popularity_ranks(counts, ids, ids[places], given_seen).tolist() == expected


def test_more_samples_than_a_block_and_more_items_than_a_chunk(monkeypatch):
    """Blocks of three samples; all divisions give the ranks of one. Broken on purpose: pairs of a block at its number
    in place of its first sample."""
    monkeypatch.setattr("nestlab.training.ranking_metrics.SCORES", 12)
    generator = np.random.default_rng(0)
    states, rows, ids = generator.normal(size=(20, 5)), generator.normal(size=(33, 5)), np.arange(33) * 7
    rows[::4] = rows[0]
    targets, seen = ids[generator.integers(0, 33, 20)], (ids[generator.integers(0, 33, 60)], np.full(20, 3))
    expected = reference(exact_scores(states, rows), (targets // 7).tolist(), places_seen(seen, ids))
    for chunk in (1, 4, 32, 33, 100):
        assert ranks_of_targets(states, rows, ids, targets, seen, chunk).tolist() == expected


def test_a_product_is_exact_whatever_the_order():
    """The claim on which equal ranks stand: with unit vectors on the grid no sum is rounded. Broken on purpose: a grid
    of 2⁻³⁰, whose products do not fit."""
    from nestlab.training.ranking_metrics import on_grid

    vectors = on_grid(torch.randn(40, 64, generator=torch.Generator().manual_seed(1)), "it")
    scores, backwards = vectors @ vectors.T, vectors.flip(1) @ vectors.flip(1).T
    assert torch.equal(scores, backwards)
    ints = (vectors * 2**26).to(torch.int64).tolist()
    expected = [[sum(a * b for a, b in zip(x, y, strict=True)) / 2**52 for y in ints] for x in ints]
    assert scores.tolist() == expected  # true division of integers rounds correctly: equality means there was none


def test_all_ties_are_in_the_middle():
    for items, rank in ((1, 0), (2, 1), (3, 1), (4, 2), (101, 50)):
        rows, ids = np.ones((items, 2), np.float32), np.arange(items)
        assert ranks_of_targets(np.zeros((1, 2)), rows, ids, [items - 1]).tolist() == [rank]
        assert ranks_of_targets(np.ones((1, 2)), rows, ids, [0]).tolist() == [rank]


def test_no_sample_and_one_item():
    nothing = ranks_of_targets(np.zeros((0, 2)), np.ones((3, 2)), np.arange(3), np.zeros(0, int))
    assert nothing.shape == (0,) and all(math.isnan(v) for v in retrieval_metrics(nothing).values())
    one = ranks_of_targets(np.ones((2, 2)), np.ones((1, 2)), [5], [5, 5])
    assert retrieval_metrics(one, (1,)) == {"HR@1": 1.0, "NDCG@1": 1.0, "MRR": 1.0}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"targets": [0, 9]}, r"1 of 2 targets are none of the 3 items, 9 is the first"),
        ({"items": [0, 2, 1]}, r"not ascending"),
        ({"items": [0, 1, 1]}, r"not ascending"),
        ({"states": [[1.0, math.nan]] * 2}, r"the state of a sample holds a number that is not finite"),
        ({"item_rows": [[1.0, math.inf]] * 3}, r"the row of an item holds a number that is not finite"),
        ({"seen": ([1, 2], [1])}, r"2 seen items in 1 runs of 1 in all, for 2 samples"),
        ({"chunk": 0}, r"chunk=0"),
    ],
)
def test_what_cannot_be_ranked_is_refused(changes, reason):
    """Of NaN every comparison is false: without the refusal a model that diverged would rank all targets first."""
    states, rows = [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    given = {"states": states, "item_rows": rows, "items": [0, 1, 2], "targets": [0, 1]} | changes
    tensors = {name: torch.tensor(given[name]) for name in ("states", "item_rows")}
    with pytest.raises(UserError, match=reason):
        ranks_of_targets(**(given | tensors))


def test_metrics_against_torchmetrics():
    """Of one relevant item each. Broken on purpose: log2(rank + 1) in the gain."""
    functional = pytest.importorskip("torchmetrics.functional.retrieval")
    generator = torch.Generator().manual_seed(2)
    scores, targets = torch.rand(50, 30, generator=generator), torch.randint(0, 30, (50,), generator=generator)
    relevant = torch.nn.functional.one_hot(targets, 30).bool()
    ranks = (scores > scores.gather(1, targets[:, None])).sum(dim=1)
    found = retrieval_metrics(ranks, (1, 10, 25))
    for k in (1, 10, 25):
        hits = [functional.retrieval_hit_rate(s, r, top_k=k) for s, r in zip(scores, relevant, strict=True)]
        gains = [functional.retrieval_normalized_dcg(s, r, top_k=k) for s, r in zip(scores, relevant, strict=True)]
        assert found[f"HR@{k}"] == pytest.approx(float(torch.stack(hits).mean()), abs=1e-6)
        assert found[f"NDCG@{k}"] == pytest.approx(float(torch.stack(gains).mean()), abs=1e-6)
    places = [functional.retrieval_reciprocal_rank(s, r) for s, r in zip(scores, relevant, strict=True)]
    assert found["MRR"] == pytest.approx(float(torch.stack(places).mean()), abs=1e-6)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=30), st.integers(1, 50))
@settings(max_examples=30, deadline=None)
def test_metrics_against_loops(ranks, k):
    found = retrieval_metrics(np.array(ranks), (k,), "sampled_")
    assert list(found) == [f"sampled_HR@{k}", f"sampled_NDCG@{k}", "sampled_MRR"]
    hits, gains, places = 0, 0.0, 0.0
    for rank in ranks:
        hits += rank < k
        gains += 1 / math.log2(rank + 2) if rank < k else 0
        places += 1 / (rank + 1)
    assert list(found.values()) == pytest.approx([hits / len(ranks), gains / len(ranks), places / len(ranks)])


def test_a_k_below_one_is_refused():
    with pytest.raises(UserError, match="k=0: give at least 1"):
        retrieval_metrics(np.zeros(1), (10, 0))


def test_sampled_items_hang_on_the_sample_alone():
    """None is the target, none twice, all equally often; other samples and their order change nothing."""
    numbers, places = np.arange(4000), np.full(4000, 3)
    drawn = sampled_pairs(8, places, numbers, 4, 0).places.reshape(-1, 4)
    assert all(len(np.unique(row)) == 4 for row in drawn) and not (drawn == 3).any()
    shares = np.bincount(drawn.ravel(), minlength=8)[[0, 1, 2, 4, 5, 6, 7]] / drawn.size
    np.testing.assert_allclose(shares, 1 / 7, atol=0.01)
    some = np.array([77, 5, 1234])
    assert (sampled_pairs(8, places[some], numbers[some], 4, 0).places.reshape(-1, 4) == drawn[some]).all()
    assert (sampled_pairs(8, places, numbers, 4, 1).places.reshape(-1, 4) != drawn).any()
    for count in (0, 8):
        with pytest.raises(UserError, match=rf"{count} sampled items of 7 others; give 1 … 7"):
            sampled_pairs(8, places, numbers, count, 0)


def test_ranks_among_sampled_items(monkeypatch):
    """Against loops over the sampled ones, with ties and blocks. Broken on purpose: the target's tie with itself taken
    off here too."""
    monkeypatch.setattr("nestlab.training.ranking_metrics.SCORES", 12)
    generator = np.random.default_rng(4)
    states, rows = generator.normal(size=(17, 3)), torch.from_numpy(generator.normal(size=(30, 3)))
    rows[::3] = rows[0]
    places = generator.integers(0, 30, 17)
    pairs = sampled_pairs(30, places, np.arange(17), 9, 5)
    ranker = Ranker(states, rows[torch.from_numpy(places)], 30, chunk=4)
    ranker.sample(pairs)
    for first in range(0, 30, 4):
        ranker.add(first, rows[first : first + 4])
    scores, drawn = exact_scores(states, rows.numpy()), pairs.places.reshape(17, 9)
    others = [[place for place in range(30) if place not in row] for row in drawn.tolist()]
    assert ranker.sampled_ranks().tolist() == reference(scores, places.tolist(), others)
    assert ranker.ranks().tolist() == reference(scores, places.tolist(), [[]] * 17)
