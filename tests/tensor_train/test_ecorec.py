"""EcoRec's own: the plan of sorted rows against plain Python, and slices."""

import hashlib
import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nestlab.embedding.tensor_train import kernels_ecorec, kernels_tiles
from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.ecorec_plan import Plan, plan, plan_torch
from nestlab.embedding.tensor_train.schemes.ecorec import EcoRec
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work
from nestlab.errors import UserError

SHAPES = (
    TTShape((5, 7), (2, 3), (4,)),
    TTShape((4, 5, 6), (4, 4, 4), (16, 32)),
    TTShape((3, 4, 5, 6), (2, 2, 2, 2), (3, 4, 5)),
    TTShape((1 << 20, 1 << 21, 1 << 21), (1, 2, 2), (2, 2)),  # rows up to 2^62: too long to be sorted as one word
)
shapes = st.sampled_from(SHAPES)
some_lengths = st.lists(st.integers(0, 6), min_size=0, max_size=12)


def bags_of(shape: TTShape, lengths: list[int], seed: int, weighted: bool = False) -> Bags:
    """Random rows, many of them twice; float64."""
    generator = torch.Generator().manual_seed(seed)
    few = torch.randint(0, shape.rows, (1 + sum(lengths) // 2,), generator=generator)
    rows = few[torch.randint(0, few.numel(), (sum(lengths),), generator=generator)]
    weights = torch.randn(rows.numel(), dtype=torch.float64, generator=generator) if weighted else None
    return Bags.of(rows, torch.tensor(lengths, dtype=torch.int64), weights=weights, dtype=torch.float64)


def small(plan_made) -> list:
    return [
        *(each.tolist() for each in (plan_made.order, plan_made.bag, plan_made.inverse)),
        *((level.parent.tolist(), level.digit.tolist(), level.starts.tolist()) for level in plan_made.levels),
    ]


@settings(max_examples=40, deadline=None)
@given(shapes, some_lengths, st.integers(0, 1000))
def test_a_plan_is_the_sorted_rows(shape: TTShape, lengths: list[int], seed: int) -> None:
    """Broken once: the parent of a first-level prefix taken modulo p_1 p_2; a level's starts one item late."""
    bags = bags_of(shape, lengths, seed)
    made = plan(shape, bags)
    assert small(made) == small(plan_torch(shape, bags))
    rows = bags.rows.tolist()
    unique = sorted(set(rows))
    assert made.order.tolist() == sorted(range(len(rows)), key=lambda i: (rows[i], i))
    assert [unique[u] for u in made.inverse.tolist()] == rows
    strides = shape.strides
    for k, level in enumerate(made.levels, start=1):
        prefixes = sorted({row // strides[k] for row in rows})
        upper = sorted({row // strides[k - 1] for row in rows}) if k > 1 else range(shape.row_factors[0])
        assert [(upper[p], d) for p, d in zip(level.parent.tolist(), level.digit.tolist(), strict=True)] == [
            divmod(prefix, shape.row_factors[k]) for prefix in prefixes
        ]
        below = sorted({row // strides[k + 1] for row in rows}) if k < shape.cores - 1 else sorted(rows)
        below = [each // shape.row_factors[k + 1] if k < shape.cores - 1 else each for each in below]
        assert level.starts.tolist() == [sum(each < prefix for each in below) for prefix in prefixes] + [len(below)]


@settings(max_examples=40, deadline=None)
@given(shapes, some_lengths, st.integers(0, 1000), st.integers(1, 9))
def test_slices_cover_everything_once_and_split_no_prefix(shape, lengths, seed, slices) -> None:
    made = plan(shape, bags_of(shape, lengths, seed))
    spans = made.cut(slices, [1] * (shape.cores - 1))
    assert len(spans) <= slices
    for k, level in enumerate(made.levels):
        assert list(itertools.chain.from_iterable(range(*span.levels[k]) for span in spans)) == list(range(len(level)))
        for span in spans:
            first, end = span.levels[k]
            below = span.levels[k + 1] if k + 1 < len(made.levels) else span.indices
            assert (int(level.starts[first]), int(level.starts[end])) == below


def gradients(scheme: EcoRec, shape: TTShape, bags: Bags, made: Plan | None = None) -> tuple[list, Work]:
    """The pooled rows and the gradients of every core, and the work."""
    generator = torch.Generator().manual_seed(1)
    cores = [torch.randn(p, w, dtype=torch.float64, generator=generator) for p, w in zip_factors(shape)]
    grad = torch.randn(bags.count, shape.dim, dtype=torch.float64, generator=generator)
    into, work = [torch.zeros_like(core) for core in cores], Work()
    made = scheme.prepare(shape, bags) if made is None else made
    out = scheme.forward(shape, cores, made, work)
    scheme.backward(shape, cores, made, grad, into, work)
    return [out, *into], work


def zip_factors(shape: TTShape):
    return zip(shape.row_factors, shape.widths, strict=True)


@settings(max_examples=20, deadline=None)
@given(shapes=st.sampled_from(SHAPES[:3]), lengths=some_lengths, seed=st.integers(0, 1000), slices=st.integers(0, 40))
def test_any_number_of_slices_gives_the_same(shapes: TTShape, lengths: list[int], seed: int, slices: int) -> None:
    """Broken once: gradients written, not added, to the last core by each slice."""
    bags = bags_of(shapes, lengths, seed, weighted=seed % 2 == 0)
    whole, work = gradients(EcoRec(), shapes, bags)
    sliced, sliced_work = gradients(EcoRec(slices, budget=3000), shapes, bags)
    assert sliced_work.operations == work.operations
    assert sliced_work.nbytes == work.nbytes == 0
    for a, b in zip(whole, sliced, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("slices", "budget", "said"), [(-1, None, "slices is -1"), (0, 0, "budget is 0 bytes")])
def test_numbers_out_of_range_are_refused(slices, budget, said) -> None:
    with pytest.raises(UserError, match=said):
        EcoRec(slices, budget)


def test_cached_kernels_end_with_a_change_of_their_tiles() -> None:
    """numba compiles anew only what stands in a changed file: kernels_ecorec.py must change with kernels_tiles.py."""
    digest = hashlib.sha256(Path(kernels_tiles.__file__).read_bytes()).hexdigest()[:16]
    assert digest in kernels_ecorec.__doc__, f"put {digest} into the docstring of kernels_ecorec.py"
