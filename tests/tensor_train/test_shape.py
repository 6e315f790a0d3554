"""Shapes, bags and counted work of tensor-train tables, against plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.shape import MOST_ROWS, TTShape, suggest
from nestlab.embedding.tensor_train.work import Work
from nestlab.errors import UserError

numbers = st.integers(1, 9)


@st.composite
def shapes(draw) -> TTShape:
    d = draw(st.integers(2, 4))
    p, q, r = (draw(st.lists(numbers, min_size=n, max_size=n)) for n in (d, d, d - 1))
    return TTShape(p, q, r)


@settings(max_examples=50, deadline=None)
@given(shapes())
def test_numbers_of_a_shape(shape):
    """Every row by nested loops over its digits. Broken on purpose: the strides of the digits reversed."""
    rows = [()]
    for p in shape.row_factors:
        rows = [(*digits, digit) for digits in rows for digit in range(p)]
    assert shape.rows == len(rows)
    assert shape.digits(np.arange(shape.rows)).T.tolist() == [list(digits) for digits in rows]
    assert shape.dim == math.prod(shape.dim_factors)
    ranks = (1, *shape.ranks, 1)
    widths = [ranks[k] * q * ranks[k + 1] for k, q in enumerate(shape.dim_factors)]
    assert list(shape.widths) == widths
    assert shape.parameters == sum(p * width for p, width in zip(shape.row_factors, widths, strict=True))


@settings(max_examples=50, deadline=None)
@given(shapes())
def test_operations_of_the_products(shape):
    """Counted by multiplying a chain of matrices [Q, r] × [r, q·r'], as their sizes say."""
    height, counted = shape.dim_factors[0], []
    for (r_in, q, r_out), _ in zip(shape.slices[1:], shape.ranks, strict=True):
        counted.append(2 * height * r_in * q * r_out)
        height *= q
    assert list(shape.products) == counted
    assert height == shape.dim


def test_digits_beyond_32_bits():
    """Whole-number division: a division of floats errs here, by up to 500 rows."""
    shape = TTShape((1 << 21, 1 << 20, 1 << 21), (1, 1, 1), (1, 1))
    rows = [0, 2**31, 2**53 + 1, 2**62 - 1, 3**39]
    expected = [[row >> 41, row >> 21 & (1 << 20) - 1, row & (1 << 21) - 1] for row in rows]
    assert shape.digits(np.array(rows)).T.tolist() == expected


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**12), st.integers(1, 400), st.integers(2, 4), st.integers(1, 64))
def test_suggestions(rows, dim, cores, rank):
    """Enough rows with no factor to spare, within 1 of each other; weights exactly `dim`.

    Broken on purpose: one factor made as small as it can be before the next (626 rows came as 3 × 6 × 6 × 6).
    """
    shape = suggest(rows, dim, cores, rank)
    assert shape.rows >= rows and shape.dim == dim and shape.ranks == (rank,) * (cores - 1)
    for p in shape.row_factors:
        assert p == 1 or shape.rows // p * (p - 1) < rows
    assert list(shape.row_factors) == sorted(shape.row_factors)
    assert shape.row_factors[-1] - shape.row_factors[0] <= 1
    splits = _splits(dim, cores)
    assert tuple(shape.dim_factors) in splits and sum(shape.dim_factors) == min(map(sum, splits))


def _splits(total: int, count: int) -> list[tuple[int, ...]]:
    if count == 1:
        return [(total,)]
    return [(q, *rest) for q in range(1, total + 1) if total % q == 0 for rest in _splits(total // q, count - 1)]


def test_suggestions_known():
    assert suggest(8_000_000, 64) == TTShape((200, 200, 200), (4, 4, 4), (32, 32))
    assert suggest(626, 64, 4).row_factors == (5, 5, 5, 6)
    assert suggest(1 << 62, 1, 2).row_factors == (1 << 31, 1 << 31)
    assert suggest(1, 1, 2, rank=[5]) == TTShape((1, 1), (1, 1), (5,))
    assert suggest(100, 32, rank=(2, 3)).dim_factors == (2, 4, 4)
    assert suggest(100, 32, rank=np.int64(7)).ranks == (7, 7)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TTShape((3,), (2,), ()), "1 cores; give 2, 3 or 4 row factors"),
        (lambda: TTShape((3,) * 5, (2,) * 5, (2,) * 4), "5 cores"),
        (lambda: TTShape((3, 3), (2, 2, 2), (2,)), "2 row factors go with as many dim factors and 1 ranks"),
        (lambda: TTShape((3, 3), (2, 2), (2, 2)), "not with 2 and 2"),
        (lambda: TTShape((3, 0), (2, 2), (2,)), "a number below 1"),
        (lambda: TTShape((3, 3), (2, 2), (-1,)), "a number below 1"),
        (lambda: TTShape((3, 2.5), (2, 2), (1,)), "row_factors is (3, 2.5); give a list of whole numbers"),
        (lambda: TTShape((3, 2), (2, 2), 4), "ranks is 4; give a list of whole numbers"),
        (lambda: TTShape((MOST_ROWS, 2), (2, 2), (1,)), "at most 2^62"),
        (lambda: suggest(0, 4), "0 rows × 4 in 3 cores"),
        (lambda: suggest(5, 4, rank=(2,)), "2 ranks, not with 3 and 1"),
        (lambda: suggest(5, 4, cores=1), "1 cores"),
    ],
)
def test_refusals(make, said):
    with pytest.raises(UserError) as refused:
        make()
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_bags():
    """Broken on purpose: a mean without its division; offsets without the 0 in front."""
    rows, lengths = torch.tensor([5, 6, 7, 8]), torch.tensor([0, 3, 0, 1], dtype=torch.int32)
    summed = Bags.of(rows, lengths)
    assert summed.offsets.tolist() == [0, 0, 3, 3, 4] and summed.offsets.dtype == torch.int64
    assert summed.weights is None and (summed.nnz, summed.count) == (4, 4)
    assert summed.nbytes == 9 * 8
    weighted = Bags.of(rows, lengths, weights=torch.tensor([1.0, 2.0, 3.0, 4.0]), dtype=torch.float64)
    assert weighted.weights.dtype == torch.float64 and weighted.nbytes == 13 * 8
    mean = Bags.of(rows, lengths, "mean", dtype=torch.float64)
    assert mean.weights.tolist() == [1 / 3, 1 / 3, 1 / 3, 1.0]
    sequence = Bags.of(rows, lengths, "none")
    assert sequence.offsets.tolist() == [0, 1, 2, 3, 4] and sequence.weights is None
    for pooling in ("sum", "mean", "none"):
        empty = Bags.of(rows[:0], lengths[:0], pooling)
        assert empty.offsets.tolist() == [0] and (empty.nnz, empty.count) == (0, 0)


def test_work_counts_what_is_held():
    work = Work()
    first = work.empty(3, 4, dtype=torch.float64)
    with work.hold(torch.empty(10), torch.empty(6, dtype=torch.int64)):
        assert work.nbytes == 96 + 40 + 48
    assert work.nbytes == 96 and work.peak == 184
    with pytest.raises(ValueError), work.hold(first):
        raise ValueError
    work.drop(first)
    assert work.nbytes == 0 and work.peak == 192
