"""EcoRec by numba kernels, on a CPU, of three cores: what a thread works off, in which memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding.tensor_train import kernels_ecorec, kernels_plan
from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.ecorec_plan import Plan, plan
from nestlab.embedding.tensor_train.kernels_ecorec import Cores, Indices, Places, Pooled, Prefixes, Sizes
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
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple:
        """A copy has threads of its own."""
        return Threads, ()

    def run(self, work: Callable[[int], object], count: int, meeting: np.ndarray | None = None) -> None:
        """work(0) … work(count − 1), each on a thread of its own; returns when all have ended.

        Where they wait for each other in `meeting` (see `kernels_tiles.meet`), none waits for one that has failed.
        """

        def part(thread: int) -> None:
            try:
                work(thread)
            except BaseException:  # an interrupt too
                if meeting is not None:
                    meeting[0] = 1 << 60
                raise

        with self._lock:
            if count > self._count:
                self._pool, self._count = ThreadPoolExecutor(count - 1, "ecorec"), count
            # All at once: those of two calls that wait for each other must not hold each other's threads.
            others = [self._pool.submit(part, thread) for thread in range(1, count)]
        try:
            part(0)
        finally:
            for other in others:
                other.result()


@dataclass(frozen=True, eq=False)
class Job:
    """One look-up on its threads; made by `of`.

    Attributes:
        shape: of three cores; `plan` may be of a table of two or four, see ecorec_cores.py.
        operations: of the products of prefixes, of those of rows; each done once.
        costs: operations of a prefix, of a row.
        groups: where each thread's groups begin, and the end: for backward, in which a group is one thread's.
    """

    shape: TTShape
    operations: tuple[int, int]
    sizes: Sizes
    cores: Cores
    plan: Plan
    prefixes: Prefixes
    indices: Indices
    costs: tuple[int, int]
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
        costs = e_prefix, e_row
        ends = _shares(pre, (0, len(pre.order)), costs, many)
        groups = [0, *np.searchsorted(pre.groups, ends[1:-1]).tolist(), len(pre.groups) - 1]
        indices = Indices(plan.order.numpy(), plan.bag.numpy(), _weights(plan, cores[1]))
        return cls(shape, operations, sizes, flat(cores), plan, pre, indices, costs, groups, threads, work, cores[1])

    def forward(self, slices: int) -> Tensor:
        """[bags, dim]"""
        out = _aligned(self.plan.bags.count, self.shape.dim, self.like.dtype)
        cuts, mode = np.array([0, len(self.prefixes.order)]), kernels_ecorec.SINGLE
        if self.plan.longest > 1:  # else nothing has to be kept: rows go straight to their bags
            cuts = np.unique(_shares(self.prefixes, cuts, (0, 1), slices))
            mode = kernels_ecorec.WHOLE if len(cuts) == 2 else kernels_ecorec.SLICE
        elif self.plan.bags.count > self.plan.bags.nnz:
            out.numpy().fill(0)  # not by torch, whose worker thread would spin on beside ours for milliseconds
        most = 0 if mode == kernels_ecorec.SINGLE else int(np.diff(self.prefixes.offsets[cuts]).max())
        rows = _aligned(most, self.shape.dim, out.dtype)
        with self.work.hold(rows):
            self._multiply(cuts, rows, out, mode)
        self.work.operations += sum(self.operations)
        return out

    def _multiply(self, cuts: np.ndarray, rows: Tensor, out: Tensor, mode: int) -> None:
        """Slice after slice: unique rows, each then added to its bags by the threads that these belong to."""
        bags, many = self.plan.bags, self.count
        offsets = bags.offsets.numpy()
        shares = np.searchsorted(offsets, np.arange(1, many) * bags.nnz // many)
        ends = np.array([0, *shares, bags.count])
        pooled = Pooled(out.view(-1).numpy(), self.plan.inverse.numpy(), offsets, ends)
        parts = np.stack([_shares(self.prefixes, span, self.costs, many) for span in pairwise(cuts.tolist())])
        at, size = places(self.sizes, self.shape, backward=False)
        buffers, flat_rows = self.work.empty(many, size, dtype=out.dtype), rows.view(-1).numpy()
        own, meeting = buffers.numpy(), np.zeros(1, np.int64)
        self.threads.run(
            lambda t: kernels_ecorec.forward(
                *(t, self.sizes, at, self.cores, self.prefixes, self.indices, pooled, parts),
                *(own[t], flat_rows, mode, meeting),
            ),
            *(many, meeting),
        )
        self.work.drop(buffers)

    def backward(self, grad: Tensor, into: Sequence[Tensor]) -> None:
        """Adds to the gradients of the cores, given that of the bags [bags, dim]."""
        at, size = places(self.sizes, self.shape, backward=True)
        buffers = self.work.empty(self.count, size, dtype=grad.dtype)
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
        self.threads.run(
            lambda t: kernels_ecorec.backward(
                *(self.sizes, at, self.cores, self.prefixes, self.indices, threads[t], grad, sums, *own[t])
            ),
            self.count,
        )
        for each in own:  # in this order whoever was first
            kernels_ecorec.collect(self.sizes, at, *each, sums)

    @property
    def count(self) -> int:
        """Threads."""
        return len(self.groups) - 1


def _shares(prefixes: Prefixes, span: Sequence[int], costs: tuple[int, int], parts: int) -> np.ndarray:
    """[parts + 1]: where in the order of prefixes each part of a span begins, and the end; of about equal cost."""
    ends = np.empty(parts + 1, np.int64)
    kernels_plan.share(prefixes.offsets, *span, *costs, ends)
    return ends


def _aligned(rows: int, dim: int, dtype: torch.dtype) -> Tensor:
    """[rows, dim] that begins with a cache line, by numpy: it asks for huge pages, whose first touch costs far less."""
    like = torch.empty(0, dtype=dtype).numpy()
    raw = np.empty(rows * dim + 64, like.dtype)
    first = -raw.ctypes.data % 64 // raw.itemsize
    return torch.from_numpy(raw[first : first + rows * dim]).view(rows, dim)


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


def warm_up(dtype: torch.dtype) -> None:
    """Compiles (or loads) the kernels: a table of two rows, of bags of one index and of more, whole and in slices."""
    shape, work = TTShape((2, 2, 2), (2, 2, 2), (2, 2)), Work()
    cores = [torch.zeros(p, width, dtype=dtype) for p, width in zip(shape.row_factors, shape.widths, strict=True)]
    for length in (1, 2):
        rows, lengths = torch.arange(0, 4 * length, 4), torch.tensor([length])
        made = plan(shape, Bags.of(rows, lengths, weights=torch.ones(length, dtype=dtype), dtype=dtype))
        for slices in (1, 2):
            job = Job.of(shape, cores, made, work, Threads())
            grad = job.forward(slices)
            job.backward(grad, cores)
