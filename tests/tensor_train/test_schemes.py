"""Every scheme against autograd through the whole table, or through products row by row where that is too large.

A scheme that is added to SCHEMES is tested by everything here but the counts, whose formula it must bring.
"""

from __future__ import annotations

from functools import reduce
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import pooled, whole_table

from nestlab import device
from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.function import tt_embed
from nestlab.embedding.tensor_train.schemes import SCHEMES
from nestlab.embedding.tensor_train.schemes.chain import runs_of
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work

F64 = torch.float64
MADE = {name: scheme() for name, scheme in SCHEMES.items()}
BASELINES = {
    f"{name} {chunk} {'grouped' if grouped else 'batched'}": SCHEMES[name](chunk, grouped)
    for name in ("tt_rec", "el_rec")
    for chunk, grouped in ((3, False), (None, True), (4, True))
}
GROUPED = {f"{name} grouped": SCHEMES[name](grouped=True) for name in ("tt_rec", "el_rec")}
each_scheme = pytest.mark.parametrize("scheme", (MADE | BASELINES).values(), ids=(MADE | BASELINES).keys())

SHAPES = (
    TTShape((5, 4), (3, 2), (4,)),
    TTShape((3, 4, 5), (2, 3, 4), (3, 5)),
    TTShape((2, 1, 3), (1, 2, 1), (1, 2)),
    TTShape((3, 2, 4, 3), (2, 3, 1, 2), (3, 5, 2)),
)
HUGE = (
    TTShape((70_000, 70_000), (2, 3), (2,)),
    TTShape((2_000, 1_500, 1_700), (2, 1, 3), (3, 2)),
    TTShape((300, 250, 280, 290), (2, 1, 2, 2), (2, 3, 2)),
)


def leaves(shape: TTShape, seed: int = 0, dtype=F64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = zip(shape.row_factors, shape.widths, strict=True)
    return [torch.randn(*size, generator=generator, dtype=dtype, requires_grad=True) for size in sizes]


def some_bags(shape: TTShape, lengths: list[int], pooling: str = "weighted", seed: int = 0, dtype=F64) -> Bags:
    """Rows drawn from few, so that many are there twice; with the first and the last of the table."""
    generator = torch.Generator().manual_seed(seed)
    few = torch.randint(0, shape.rows, (1 + sum(lengths) // 3,), generator=generator).tolist()
    few = torch.tensor([0, shape.rows - 1, *few, *(min(row + 1, shape.rows - 1) for row in few)])
    rows = few[torch.randint(0, few.numel(), (sum(lengths),), generator=generator)]
    weights = torch.randn(rows.numel(), generator=generator, dtype=dtype) if pooling == "weighted" else None
    pooling = "sum" if pooling == "weighted" else pooling
    return Bags.of(rows, torch.tensor(lengths, dtype=torch.int64), pooling, weights, dtype)


def row_by_row(shape: TTShape, cores, rows: torch.Tensor) -> torch.Tensor:
    """[n, dim], one row after the other, digits by Python's numbers of any size."""
    found = []
    for row in rows.tolist():
        digits = []
        for p in reversed(shape.row_factors):
            row, digit = divmod(row, p)
            digits.insert(0, digit)
        slices = [core[i].view(size) for core, i, size in zip(cores, digits, shape.slices, strict=True)]
        found.append(reduce(lambda a, b: torch.tensordot(a, b, dims=1), slices).flatten())
    return torch.stack(found)


def expected(shape: TTShape, cores, bags: Bags, lengths: list[int], pooling: str) -> torch.Tensor:
    rows = whole_table(shape, cores)[bags.rows] if shape.rows < 1000 else row_by_row(shape, cores, bags.rows)
    return (
        rows
        if pooling == "none"
        else pooled(rows, lengths, bags.weights if pooling == "weighted" else None, pooling == "mean")
    )


def compare(scheme, shape: TTShape, lengths: list[int], pooling: str, seed: int = 0) -> None:
    cores, bags = leaves(shape, seed), some_bags(shape, lengths, pooling, seed)
    theirs = expected(shape, cores, bags, lengths, pooling)
    ours = tt_embed(cores, shape, bags, scheme)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    grad = torch.randn(ours.shape, dtype=F64, generator=torch.Generator().manual_seed(seed))
    for found, true in zip(
        torch.autograd.grad(ours, cores, grad), torch.autograd.grad(theirs, cores, grad), strict=True
    ):
        torch.testing.assert_close(found, true, rtol=0, atol=1e-10)


@each_scheme
@settings(max_examples=10, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=10).filter(sum),
    pooling=st.sampled_from(["sum", "weighted", "mean", "none"]),
    seed=st.integers(0, 99),
)
def test_equals_the_whole_table(scheme, shape, lengths, pooling, seed):
    """Forward and the gradient of every core.

    Broken on purpose: weights left out in forward, in backward, left unsorted; gradients of equal slices overwritten
    instead of added; the last core's gradient not turned back; the sums of a chunk of unique rows not zeroed; parents
    counted from the level's begin instead of the chunk's.
    """
    compare(scheme, shape, lengths, pooling, seed)


@each_scheme
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_whole_table_all_at_once(scheme, shape):
    """What hypothesis may not draw: 60 rows in 20 bags, of each shape."""
    compare(scheme, shape, [3, 0, 9, 1, 2, 5, 0, 0, 4, 6, 1, 1, 7, 3, 2, 8, 0, 3, 4, 1], "weighted")


@each_scheme
@pytest.mark.parametrize("shape", HUGE, ids=str)
def test_rows_beyond_32_bits(scheme, shape):
    """Tables of 3 to 6 billion rows: nothing of a table's size is made, and no row number is cut."""
    assert shape.rows > 2**31
    compare(scheme, shape, [2, 0, 5, 1, 4], "weighted")


@each_scheme
@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
def test_nothing_to_look_up(scheme, lengths):
    for shape in SHAPES:
        cores, work = leaves(shape), Work()
        out = tt_embed(cores, shape, some_bags(shape, lengths), scheme, work)
        assert out.shape == (len(lengths), shape.dim) and not out.any()
        out.sum().backward()
        assert all(core.grad.shape == core.shape and not core.grad.any() for core in cores)
        assert work.operations == 0 and work.nbytes == 0


def counts(shape: TTShape, rows: list[int]) -> tuple[int, dict[int, int]]:
    """nnz; and n_k, unique prefixes of k + 1 digits, k = 1 … d − 1."""
    return len(rows), {k: len({row // shape.strides[k] for row in rows}) for k in range(1, shape.cores)}


def operations(name: str, shape: TTShape, rows: list[int]) -> tuple[int, int]:
    """Of forward and backward, counted from the rows: E_k is the cost of a prefix of k + 1 digits."""
    nnz, n = counts(shape, rows)
    costs = dict(enumerate(shape.products, start=1))
    *inner, last = costs
    prefixes = sum(n[k] * costs[k] for k in inner)
    chain = sum(3 * costs[k] for k in inner) + 2 * costs[last]
    if name == "tt_rec":
        return nnz * sum(costs.values()), nnz * chain
    if name == "el_rec":
        return prefixes + nnz * costs[last], n[last] * chain
    return prefixes + n[last] * costs[last], 3 * prefixes + 2 * n[last] * costs[last]


@each_scheme
@pytest.mark.parametrize("shape", SHAPES + HUGE, ids=str)
def test_operations_equal_the_formulas(scheme, shape):
    """Broken on purpose: an addition not counted; EL-Rec's prefixes not made unique."""
    bags, cores, work = some_bags(shape, [5, 0, 30, 7, 1, 20]), leaves(shape), Work()
    forward, backward = operations(scheme.name, shape, bags.rows.tolist())
    out = tt_embed(cores, shape, bags, scheme, work)
    assert work.operations == forward
    out.sum().backward()
    assert work.operations - forward == backward


@each_scheme
def test_cores_and_gradients_that_lie_in_records(scheme):
    """Rows of unit stride apart from each other, as in record arrays; gradients are added to what is there.

    Broken on purpose: sums made apart not brought back.
    """
    for shape in SHAPES:
        cores = [core.detach() for core in leaves(shape)]
        bags = some_bags(shape, [4, 0, 9, 3])
        plan = scheme.prepare(shape, bags)
        grad = torch.randn(bags.count, shape.dim, dtype=F64, generator=torch.Generator().manual_seed(1))
        records = [torch.full((len(core), core.shape[1] + 3), 7.0, dtype=F64) for core in cores]
        apart = [record[:, : core.shape[1]] for record, core in zip(records, cores, strict=True)]
        for part, core in zip(apart, cores, strict=True):
            part.copy_(core)
        assert torch.equal(scheme.forward(shape, apart, plan, Work()), scheme.forward(shape, cores, plan, Work()))
        plain = [torch.zeros_like(core) for core in cores]
        scheme.backward(shape, cores, plan, grad, plain, Work())
        sums = [torch.full_like(record, 2.0)[:, : core.shape[1]] for record, core in zip(records, cores, strict=True)]
        scheme.backward(shape, apart, plan, grad, sums, Work())
        for total, part in zip(sums, plain, strict=True):
            torch.testing.assert_close(total, part + 2, rtol=0, atol=1e-12)
        assert all((record[:, core.shape[1] :] == 7).all() for record, core in zip(records, cores, strict=True))


@each_scheme
def test_float32_and_gradients_of_any_layout(scheme):
    """A gradient that is expanded or transposed is read as what it is; float32 stays float32."""
    shape = SHAPES[1]
    bags, exact = some_bags(shape, [4, 0, 9, 3]), leaves(shape)
    cores = [core.detach().float().requires_grad_() for core in exact]
    single = Bags(bags.rows, bags.offsets, bags.weights.float())
    for grad in (torch.ones(1, 1, dtype=F64).expand(4, shape.dim), torch.randn(shape.dim, 4, dtype=F64).T):
        true = torch.autograd.grad(tt_embed(exact, shape, bags, scheme), exact, grad)
        out = tt_embed(cores, shape, single, scheme)
        found = torch.autograd.grad(out, cores, grad.float())
        for ours, theirs in zip((out, *found), (tt_embed(exact, shape, bags, scheme), *true), strict=True):
            assert ours.dtype == torch.float32
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scheme", (MADE | GROUPED).values(), ids=(MADE | GROUPED).keys())
def test_same_bits_every_time(scheme):
    """Also with two threads: sums have one order."""
    shape, threads = TTShape((6, 7, 8), (4, 4, 4), (8, 8)), torch.get_num_threads()
    cores, bags = leaves(shape, dtype=torch.float32), some_bags(shape, [7] * 30, dtype=torch.float32)
    found = []
    try:
        for count in (1, 2, 2):
            torch.set_num_threads(count)
            out = tt_embed(cores, shape, bags, scheme)
            found.append((out, *torch.autograd.grad(out.square().sum(), cores)))
    finally:
        torch.set_num_threads(threads)
    for one, *others in zip(*found, strict=True):
        assert all(torch.equal(one, other) for other in others)


@each_scheme
def test_only_what_is_asked_for(scheme):
    """A core that needs no gradient gets none, and the gradient has no gradient of its own."""
    shape = SHAPES[1]
    cores = leaves(shape)
    cores[1].requires_grad_(False)
    out = tt_embed(cores, shape, some_bags(shape, [3, 4]), scheme)
    (grad,) = torch.autograd.grad(out.square().sum(), cores[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
    out.sum().backward()
    assert cores[1].grad is None and cores[0].grad is not None


@pytest.mark.parametrize("scheme", BASELINES.values(), ids=BASELINES.keys())
def test_chunks_bound_what_is_held(scheme):
    """Ten times the indices, the same peak; and nothing is held in the end."""
    shape, peaks = SHAPES[3], []
    for bags in (some_bags(shape, [50]), some_bags(shape, [500])):
        work = Work()
        tt_embed(leaves(shape), shape, bags, scheme, work).sum().backward()
        peaks.append(work.peak)
        assert work.nbytes == 0 and scheme.prepare(shape, bags).nbytes >= 8 * bags.nnz
    assert (peaks[0] == peaks[1]) == (scheme.chunk is not None)


@pytest.mark.parametrize("name", ["tt_rec", "el_rec"])
@pytest.mark.parametrize("grouped", [False, True])
def test_everything_held_is_counted(name, grouped):
    """Numbers a row of a chunk, of three cores: slices, prefixes, and the row twice; prefixes twice in backward (their
    gradients) and in EL-Rec's forward (copies for their children). Backward also sums the last core apart.

    Broken on purpose: the copies for children not counted.
    """
    shape, work = SHAPES[1], Work()
    slices = shape.widths[2] + (0 if grouped else shape.widths[1])
    prefixes = 2 * 3 + 2 * 3 * 5  # q_1 r_1 + q_1 q_2 r_2
    out = tt_embed(leaves(shape), shape, some_bags(shape, [40]), SCHEMES[name](2, grouped), work)
    assert work.peak == 8 * 2 * (slices + prefixes * (2 if name == "el_rec" else 1) + 2 * shape.dim)
    out.sum().backward()
    assert work.peak == 8 * (2 * (slices + prefixes * 2 + 2 * shape.dim) + 5 * shape.widths[2])


def test_runs():
    """By hand: digits 0 0 2 2 2 3 | 3 5 in chunks, digit 1 and 4 absent, a run over the edge of a chunk."""
    starts = torch.tensor([0, 2, 2, 5, 7, 7, 8]).numpy()
    assert runs_of(starts, slice(0, 6)) == [(0, slice(0, 2)), (2, slice(2, 5)), (3, slice(5, 6))]
    assert runs_of(starts, slice(6, 8)) == [(3, slice(0, 1)), (5, slice(1, 2))]
    assert runs_of(starts, slice(3, 4)) == [(2, slice(0, 1))]


@pytest.mark.gpu
@pytest.mark.skipif(device.accelerator_type() is None, reason="this machine has no accelerator")
def test_equals_the_cpu_on_an_accelerator():
    """Forward and gradients; twice to the same bits, since sums are sorted there."""
    for scheme, shape in product((MADE | BASELINES).values(), SHAPES + HUGE):
        bags, cores, found = some_bags(shape, [5, 0, 30, 7, 1, 20]), leaves(shape), []
        for where in ("cpu", device.accelerator_type(), device.accelerator_type()):
            there = [core.detach().to(where).requires_grad_() for core in cores]
            moved = Bags(bags.rows.to(where), bags.offsets.to(where), bags.weights.to(where))
            out = tt_embed(there, shape, moved, scheme)
            found.append([each.cpu() for each in (out, *torch.autograd.grad(out.square().sum(), there))])
        for here, there, again in zip(*found, strict=True):
            torch.testing.assert_close(there, here, rtol=0, atol=1e-10)
            assert torch.equal(there, again)
