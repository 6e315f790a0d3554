"""TT-SVD against numpy's SVD and against its own reconstruction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import whole_table

from nestlab.embedding import SGD, Adagrad, StepInfo, TableConfig
from nestlab.embedding.tensor_train import TensorTrain, TTShape, TTTable, compress, suggest
from nestlab.errors import UserError

UNBOUNDED = 1 << 20  # a rank that no table here needs


def random_table(rows: int, dim: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def true_error(dense: torch.Tensor, found) -> float:
    back = whole_table(found.shape, found.cores)[: len(dense)]
    return float((dense - back).norm() / dense.norm())


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 4), st.integers(1, 40), st.sampled_from([1, 4, 6, 12]), st.integers(1, 5))
def test_the_error_told_is_the_true_one(cores, rows, dim, rank):
    """Broken on purpose: with the padding rows counted in, or with nothing summed, this fails."""
    dense = random_table(rows, dim)
    found = compress(dense, suggest(rows, dim, cores, rank))
    assert found.error == pytest.approx(true_error(dense, found), rel=1e-9, abs=1e-13)
    assert all(r <= rank for r in found.shape.ranks)


@pytest.mark.parametrize("cores", [2, 3, 4])
def test_full_ranks_are_exact(cores):
    dense = random_table(53, 12)
    found = compress(dense, suggest(53, 12, cores, UNBOUNDED))
    assert found.error < 1e-13
    torch.testing.assert_close(whole_table(found.shape, found.cores)[:53], dense, rtol=0, atol=1e-10)


@pytest.mark.parametrize("cores", [2, 3, 4])
def test_the_ranks_of_a_table_are_found_again(cores):
    """A table made of cores of rank 2 and 3 needs no more than that; asked for less, it loses something."""
    shape = TTShape((4, 5, 3, 2)[:cores], (2, 3, 2, 2)[:cores], (2, 3, 2)[: cores - 1])
    generator = torch.Generator().manual_seed(1)
    made = [
        torch.randn(p, width, dtype=torch.float64, generator=generator)
        for p, width in zip(shape.row_factors, shape.widths, strict=True)
    ]
    dense = whole_table(shape, made)
    found = compress(dense, shape, error=1e-10)
    assert found.shape == shape
    assert found.error < 1e-12
    less = TTShape(shape.row_factors, shape.dim_factors, (1,) * (cores - 1))
    assert compress(dense, less).error > 0.1


def test_two_cores_are_the_best_that_there_are():
    """Eckart and Young: of one cut, no other cores of rank r are nearer; numpy's SVD says how near that is."""
    dense, shape = random_table(30, 6), TTShape((5, 6), (2, 3), (4,))
    unfolded = dense.view(5, 6, 2, 3).permute(0, 2, 1, 3).reshape(10, 18).numpy()
    values = np.linalg.svd(unfolded, compute_uv=False)
    best = np.sqrt((values[4:] ** 2).sum() / (values**2).sum())
    assert compress(dense, shape).error == pytest.approx(best, rel=1e-10)


@pytest.mark.parametrize("error", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("cores", [2, 3, 4])
def test_an_error_is_kept_to_with_few_ranks(cores, error):
    """Rows that fade, so that there is something to leave out. Broken on purpose: with error in place of error/√(d−1)
    for each step, three cores at 0.5 fail."""
    dense = random_table(48, 12) * torch.logspace(0, -3, 12, dtype=torch.float64)
    found = compress(dense, suggest(48, 12, cores), error)
    assert found.error <= max(error, 1e-13)
    if error:
        exact = compress(dense, suggest(48, 12, cores, UNBOUNDED))
        assert found.shape.parameters < exact.shape.parameters


def test_cores_are_of_one_mean_square():
    found = compress(random_table(40, 8) * 100, suggest(40, 8, 3, 4))
    spreads = [float(core.square().mean()) for core in found.cores]
    assert spreads == pytest.approx([spreads[0]] * 3, rel=1e-9)


def test_a_table_of_zeros():
    found = compress(torch.zeros(10, 4), suggest(10, 4, 3, 2))
    assert found.error == 0
    assert not whole_table(found.shape, found.cores).any()


def test_a_table_goes_on_from_a_dense_one():
    dense = random_table(50, 8).float()
    config = TableConfig("t", 8, tensor_train=TensorTrain(rows=50, rank=UNBOUNDED, ids="range"))
    made, error = TTTable.from_dense(config, Adagrad(lr=0.1), dense, scheme="tt_rec")
    assert error < 1e-12
    torch.testing.assert_close(made.full_weight(torch.arange(50)), dense, rtol=0, atol=1e-5)
    made.embed(torch.tensor([3, 4]), torch.tensor([2])).sum().backward()
    made.apply(StepInfo(1))
    assert (made.full_weight(torch.tensor([3])) - dense[3]).abs().min() > 1e-4
    smaller, told = TTTable.from_dense(config, Adagrad(lr=0.1), dense, error=0.3, dtype=torch.float64, scheme="tt_rec")
    assert smaller.shape.parameters < made.shape.parameters
    true = float((smaller.full_weight() - dense).norm() / dense.double().norm())
    assert told == pytest.approx(true, rel=1e-9)
    assert 0 < told <= 0.3


def test_what_does_not_fit_is_refused():
    shape = TTShape((4, 5), (2, 3), (2,))
    for rows, dim in ((21, 6), (20, 5)):
        with pytest.raises(UserError, match=rf"a table of \[{rows}, {dim}\] does not fit a shape of 20 rows × 6"):
            compress(torch.zeros(rows, dim), shape)
    with pytest.raises(UserError, match="not finite"):
        compress(torch.full((20, 6), torch.nan), shape)
    with pytest.raises(UserError, match="error=-1; give"):
        compress(torch.zeros(20, 6), shape, error=-1)
    for kind in (TensorTrain(rows=20), TensorTrain(rows=21, ids="range")):
        with pytest.raises(UserError, match=r"becomes one of TensorTrain\(rows=20, ids='range'\)"):
            TTTable.from_dense(TableConfig("t", 6, tensor_train=kind), SGD(lr=0.1), torch.zeros(20, 6))
