"""EcoRec by numba kernels, on a CPU, of three cores: what a thread works off, in which memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.tensor_train import kernels_ecorec, kernels_plan
from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.ecorec_plan import Plan, Span, plan
from nestlab.embedding.tensor_train.kernels_ecorec import Cores, Indices, Places, Prefixes, Sizes
from nestlab.embedding.tensor_train.kernels_tiles import lane_count
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work

BLOCK_BYTES = 64 << 10  # of a block's products, see docs/log.md
FEWEST = 4_000_000  # operations a thread: below, handing work to it costs more than it saves


class Threads:
    """Threads that share a call, the calling one included; they end with this object."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._count = 1

    def __reduce__(self) -> tuple:
        """A copy has threads of its own."""
        return Threads, ()

    def run(self, parts: Sequence[Callable[[], object]]) -> None:
        """Each part on a thread of its own; returns when all have ended."""
        if len(parts) > self._count:
            self._pool, self._count = ThreadPoolExecutor(len(parts) - 1, "ecorec"), len(parts)
        others = [self._pool.submit(part) for part in parts[1:]]
        try:
            parts[0]()
        finally:
            for other in others:
                other.result()


@dataclass(frozen=True, eq=False)
class Job:
    """One look-up on its threads; made by `of`.

    Attributes:
        shape: of three cores; `plan` may be of a table of two or four, see ecorec_cores.py.
        operations: of the products of prefixes, of those of rows; each done once.
        groups: where each thread's groups begin, and the end.
    """

    shape: TTShape
    operations: tuple[int, int]
    sizes: Sizes
    cores: Cores
    plan: Plan
    prefixes: Prefixes
    indices: Indices
    groups: list[int]
    threads: Threads
    work: Work
    like: Tensor

    @classmethod
    def of(cls, shape: TTShape, cores: Sequence[Tensor], plan: Plan, work: Work, threads: Threads) -> Job:
        sizes, pre = sizes_of(shape, cores[0].element_size()), plan.grouped
        e_prefix, e_row = shape.products
        if len(plan.levels) == 1:  # of two cores: what stands for a product there is a copy
            e_prefix = 0
        operations = len(pre.parents) * e_prefix, len(pre.digits) * e_row
        many = max(1, min(torch.get_num_threads(), sum(operations) // FEWEST))
        groups = np.empty(many + 1, np.int64)
        kernels_plan.share(pre.starts, pre.order, pre.groups, e_prefix, e_row, groups)
        indices = Indices(plan.order.numpy(), plan.bag.numpy(), _weights(plan, cores[1]))
        return cls(shape, operations, sizes, flat(cores), plan, pre, indices, groups.tolist(), threads, work, cores[1])

    def forward(self, spans: Sequence[Span]) -> Tensor:
        """[bags, dim]"""
        like = self.like
        out = like.new_empty(self.plan.bags.count, self.shape.dim)
        at, size = places(self.sizes, self.shape, backward=False)
        buffers = self.work.empty(len(self.groups) - 1, size, dtype=like.dtype)
        if self.plan.longest <= 1:  # nothing to keep: rows go straight to their bags
            if self.plan.bags.count > self.plan.bags.nnz:
                out.numpy().fill(0)  # not by torch, whose worker thread would spin on beside ours for milliseconds
            self._each(lambda t: self._multiply(t, None, at, buffers, out))
        else:
            self._forward_slices(spans, at, buffers, out)
        self.work.drop(buffers)
        self.work.operations += sum(self.operations)
        return out

    def _forward_slices(self, spans: Sequence[Span], at: Places, buffers: Tensor, out: Tensor) -> None:
        """Unique rows of one slice after the other, each then added to its bags by the threads that these belong to."""
        ends, whole = self._bag_ends(), len(spans) == 1
        if not whole:
            out.numpy().fill(0)
        most = max(span.levels[-1][1] - span.levels[-1][0] for span in spans)
        rows = self.work.empty(most, self.shape.dim, dtype=out.dtype)
        for span in spans:
            self._each(lambda t, s=span: self._multiply(t, s, at, buffers, rows))
            self._each(lambda t, s=span: self._pool(s, whole, ends[t : t + 2], rows, out))
        self.work.drop(rows)

    def backward(self, grad: Tensor, into: Sequence[Tensor]) -> None:
        """Adds to the gradients of the cores, given that of the bags [bags, dim]."""
        at, size = places(self.sizes, self.shape, backward=True)
        buffers = self.work.empty(len(self.groups) - 1, size, dtype=grad.dtype)
        seen = self.work.empty(
            len(buffers), self.shape.row_factors[0] + self.shape.row_factors[2], dtype=torch.uint8
        ).zero_()
        even = grad.detach().contiguous()
        with self.work.hold(*([] if even.data_ptr() == grad.data_ptr() else [even])):
            self._differentiate(at, buffers, seen, even.view(-1).numpy(), flat(into))
        self.work.drop(buffers, seen)
        self.work.operations += 3 * self.operations[0] + 2 * self.operations[1]

    def _differentiate(self, at: Places, buffers: Tensor, seen: Tensor, grad: np.ndarray, sums: Cores) -> None:
        first = self.shape.row_factors[0]
        threads = [(*self.groups[t : t + 2],) for t in range(len(buffers))]
        own = [(buffer, each[:first], each[first:]) for buffer, each in zip(buffers.numpy(), seen.numpy(), strict=True)]
        self._each(
            lambda t: kernels_ecorec.backward(
                *(self.sizes, at, self.cores, self.prefixes, self.indices, threads[t], grad, sums, *own[t])
            )
        )
        for each in own:  # in this order whoever was first
            kernels_ecorec.collect(self.sizes, at, *each, sums)

    def _each(self, work: Callable[[int], object]) -> None:
        self.threads.run([lambda t=t: work(t) for t in range(len(self.groups) - 1)])

    def _multiply(self, thread: int, span: Span | None, at: Places, buffers: Tensor, rows: Tensor) -> None:
        """Rows of a slice; with none, of everything, straight to the bags."""
        prefixes = (0, len(self.prefixes.parents)) if span is None else _prefix_span(self.plan, span)
        where = (*prefixes, self.groups[thread], self.groups[thread + 1])
        kernels_ecorec.forward(
            *(self.sizes, at, self.cores, self.prefixes, self.indices, where),
            *(buffers[thread].numpy(), rows.view(-1).numpy(), span is None),
        )

    def _pool(self, span: Span, whole: bool, bags: list[int], rows: Tensor, out: Tensor) -> None:
        plan, dim, source, target = self.plan, self.shape.dim, rows.view(-1).numpy(), out.view(-1).numpy()
        if whole:
            inverse, offsets, weights = plan.inverse.numpy(), plan.bags.offsets.numpy(), self.indices.weights
            kernels_ecorec.pool(source, dim, inverse, offsets, weights, *bags, target)
        else:
            kernels_ecorec.pool_slice(source, dim, span.levels[-1], self.prefixes, self.indices, *bags, target)

    def _bag_ends(self) -> list[int]:
        """Where each thread's bags begin, and the end: equal shares of the indices."""
        offsets, many = self.plan.bags.offsets, len(self.groups) - 1
        shares = torch.arange(1, many) * self.plan.bags.nnz // many
        return [0, *torch.searchsorted(offsets, shares).tolist(), self.plan.bags.count]


def sizes_of(shape: TTShape, itemsize: int) -> Sizes:
    lanes = lane_count(itemsize)
    (_, q1, r1), (_, q2, r2), (_, q3, _) = shape.slices
    padded1, padded2, turned = (-(-n // lanes) * lanes for n in (r1, r2, q1 * q2))
    block = max(1, BLOCK_BYTES // (itemsize * q1 * q2 * padded2))
    return Sizes(q1, q2, q3, r1, r2, padded1, padded2, turned, lanes, block)


def places(sizes: Sizes, shape: TTShape, backward: bool) -> tuple[Places, int]:
    """Where what lies in a thread's buffer, and its length."""
    product, middle = sizes.q1 * sizes.q2 * sizes.padded2, sizes.r1 * sizes.q2 * sizes.padded2
    packed = middle if sizes.padded2 != sizes.r2 else 0
    last = shape.row_factors[-1] * sizes.q3 * sizes.padded2
    first = shape.row_factors[0] * sizes.q1 * sizes.padded1
    row = max(sizes.q1 * sizes.q2 * sizes.q3, 4 * sizes.lanes)
    lengths = [sizes.block * product, sizes.padded2 * sizes.turned, packed, row]
    if backward:
        turned = sizes.q2 * sizes.padded2 * sizes.padded1
        lengths[1] = 0
        lengths += [sizes.block * product, packed, turned, first, last, last]
    lengths += [0] * (len(Places._fields) - len(lengths))
    ends = np.cumsum([-(-length // sizes.lanes) * sizes.lanes for length in lengths]).tolist()
    return Places(0, *ends[:-1]), ends[-1]


def flat(cores: Sequence[Tensor]) -> Cores:
    """Three cores, or their gradients."""
    arrays = []
    for core in cores:
        core = core.detach()
        length = core.stride(0) * (core.shape[0] - 1) + core.shape[1]
        arrays.append((core.as_strided((length,), (1,)).numpy(), core.stride(0)))
    return Cores(*(array for array, _ in arrays), *(step for _, step in arrays))


def _weights(plan: Plan, like: Tensor) -> np.ndarray:
    weights = plan.bags.weights
    return (like.new_empty(0) if weights is None else weights.detach().to(like.dtype)).numpy()


def _prefix_span(plan: Plan, span: Span) -> tuple[int, int]:
    """The prefixes that are in the slice; of two cores they are not a level of the plan."""
    if len(span.levels) > 1:
        return span.levels[-2]
    low, high = np.searchsorted(plan.grouped.starts, span.levels[0]).tolist()
    return low, high


def warm_up(dtype: torch.dtype) -> None:
    """Compiles (or loads) the kernels: a table of two rows, of bags of one index and of more, whole and in slices."""
    shape, work = TTShape((2, 2, 2), (2, 2, 2), (2, 2)), Work()
    cores = [torch.zeros(p, width, dtype=dtype) for p, width in zip(shape.row_factors, shape.widths, strict=True)]
    for length in (1, 2):
        rows, lengths = torch.arange(0, 4 * length, 4), torch.tensor([length])
        made = plan(shape, Bags.of(rows, lengths, weights=torch.ones(length, dtype=dtype), dtype=dtype))
        for slices in (1, 2):
            job = Job.of(shape, cores, made, work, Threads())
            grad = job.forward(made.cut(slices, (0, 1)))
            job.backward(grad, cores)
