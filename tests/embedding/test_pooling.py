"""Pooling in host memory against embedding_bag: values and gradients, ragged bags, views of larger gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.embedding import pooling, warmup
from nestlab.embedding.pooling import _Pool, _Run

pytestmark = pytest.mark.core


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=12),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(["sum", "mean"]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_bags_and_gradients_are_torchs(bags, features, pooling_kind, dtype):
    """Values to the bit. Broken on purpose: samples and features exchanged in `pool`, a mean undivided in `spread`."""
    size = len(bags) // features
    bags = bags[: size * features]
    run = _Run(
        pooling_kind,
        tuple(map(str, range(features))),
        torch.tensor([i for bag in bags for i in bag], dtype=torch.int64),
        torch.tensor([len(bag) for bag in bags], dtype=torch.int64),
        None,
    )
    generator = torch.Generator().manual_seed(len(bags))
    rows = torch.randn(7, 5, dtype=dtype, generator=generator)
    around = torch.randn(size, features + 2, 5, dtype=dtype, generator=generator)
    found = []
    for by_torch in (False, True):
        leaf = rows.clone().requires_grad_()
        if by_torch:
            out = pooling._by_torch(leaf, run).view(features, size, 5).transpose(0, 1)
        else:
            out = _Pool.apply(leaf, run, size)
        out.backward(around[:, 1 : features + 1])  # lies in a larger gradient, as behind a concatenation
        found.append((out.detach().contiguous(), leaf.grad))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize(
    "gradient",
    [torch.ones(1).expand(3, 2, 4), torch.randn(4, 2, 3).permute(2, 1, 0)],
    ids=["expanded", "permuted"],
)
def test_gradients_of_any_layout(gradient):
    """Expanded ones (a sum behind) and permuted ones are read as what they are."""
    run = _Run("sum", ("a", "b"), torch.tensor([0, 1, 1, 2, 0, 2]), torch.ones(6, dtype=torch.int64), None)
    found = []
    for given_gradient in (gradient, gradient.contiguous()):
        rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
        _Pool.apply(rows, run, 3).backward(given_gradient)
        found.append(rows.grad)
    assert torch.equal(*found)


def test_nothing_compiles_after_the_warm_up():
    warmup.warm_up(torch.float32)
    kernels = (pooling.pooling_kernels.pool, pooling.pooling_kernels.spread)
    known = [len(kernel.signatures) for kernel in kernels]
    run = _Run("mean", ("a", "b"), torch.tensor([0, 1, 1, 2]), torch.tensor([1, 2, 0, 1]), None)
    rows = torch.randn(3, 4, requires_grad=True)
    _Pool.apply(rows, run, 2).sum().backward()
    assert [len(kernel.signatures) for kernel in kernels] == known
