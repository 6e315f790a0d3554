"""Numba kernels of EcoRec with three cores: rows and gradients of the prefixes that share the middle core's slice.

Prefixes are worked off group by group, a group being those with one second digit: their slices of the first core times
that one slice of the middle core are one product, and so is the gradient of it. A block of prefixes at a time goes all
the way, so that its products never leave the cache. A thread has a range of groups, and nothing else writes to their
slices of the middle core; what it adds to the first and the last core stays in its own buffer until `collect`.

A core is flat: one-dimensional, its slices `step` apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nestlab.embedding.tensor_train.kernels_tiles import (
    VECTOR_BYTES,
    fetch,
    meet,
    scale,
    scale_add,
    tile,
    tile_add,
    tile_back,
    tile_last,
    tile_sum,
    turn,
)
from nestlab.jit import jit

SLICE, WHOLE, SINGLE = 0, 1, 2  # what `forward` writes
FOUND = 512  # indices found before their rows are added
WIDEST = 4 if VECTOR_BYTES == 64 else 2  # vectors of a tile of four rows: there are 32 registers, or 16


class Sizes(NamedTuple):
    """Of a table of three cores. Ranks are padded to whole vectors, and so is q1·q2 where it is turned."""

    q1: int
    q2: int
    q3: int
    r1: int
    r2: int
    padded1: int
    padded2: int
    turned: int
    lanes: int  # of a vector
    block: int  # prefixes at once


class Places(NamedTuple):
    """Where what lies in a thread's buffer."""

    products: int  # [block, q1, q2, padded2]
    turned: int  # [padded2, turned], the transpose of one product
    middle: int  # [r1, q2, padded2], a slice of the middle core; only if r2 is padded
    row: int  # [dim] of one row, or [4, a vector]
    grads: int  # [block, q1, q2, padded2], of the products
    middle_grads: int  # [r1, q2, padded2]; only if r2 is padded
    middle_turned: int  # [q2, padded2, padded1]
    first_grads: int  # [p1, q1, padded1]
    last: int  # [p3, q3, padded2], slices of the last core turned
    last_grads: int  # [p3, q3, padded2]


class Cores(NamedTuple):
    """Flat cores, or their gradients, and the distance from one slice of each to the next."""

    first: np.ndarray
    middle: np.ndarray
    last: np.ndarray
    first_step: int
    middle_step: int
    last_step: int


class Prefixes(NamedTuple):
    """Unique prefixes and rows of a plan.

    parents, starts: of every prefix, its first digit and its first row ([n_p], [n_p + 1] int32).
    digits, indices: of every row, its last digit and its first sorted index ([n_u], [n_u + 1] int32).
    order: [n_p] int32, the prefixes by second digit.
    offsets: [n_p + 1] int32, the rows of prefixes before each one of `order`.
    groups: [p2 + 1] int64, where the prefixes of each second digit begin in `order`.
    """

    parents: np.ndarray
    starts: np.ndarray
    digits: np.ndarray
    indices: np.ndarray
    order: np.ndarray
    offsets: np.ndarray
    groups: np.ndarray


class Indices(NamedTuple):
    """The indices of a plan.

    order, bag: [nnz] int32, as in the plan.
    weights: [nnz], or [0] for weights of 1.
    """

    order: np.ndarray
    bag: np.ndarray
    weights: np.ndarray


class Pooled(NamedTuple):
    """Where unique rows go.

    out: flat [bags, dim], written.
    inverse, offsets: [nnz] int32, [bags + 1] int64: the unique row of each index, in the bags' order; where bags begin.
    ends: [threads + 1] int64, where each thread's bags begin, and the end.
    """

    out: np.ndarray
    inverse: np.ndarray
    offsets: np.ndarray
    ends: np.ndarray


@jit
def weight_of(given, index, like):
    """Of a sorted index."""
    return given.weights[given.order[index]] if given.weights.size > 0 else like.dtype.type(1)


@jit
def vectors_of(columns, lanes):
    """How many vectors a tile takes of so many columns."""
    if WIDEST == 4 and columns >= 4 * lanes:
        return 4
    return 2 if columns >= 2 * lanes else 1


@jit
def multiply_block(cores, pre, first, end, right, right_at, sizes, buffer, at, soon, soon_at):
    """buffer[at …] [end − first, q1, q2·padded2]: slices of the first core × one of the middle core, `right`.

    Panel by panel of columns, so that the panel stays in the cache nearest. Meanwhile a slice that is needed next, of
    the middle core or of its gradient, is asked for: from soon_at on in `soon`, unless soon_at is negative.
    """
    g1, q1, r1, columns, lanes = cores.first, sizes.q1, sizes.r1, sizes.q2 * sizes.padded2, sizes.lanes
    each = r1 * sizes.q2 * sizes.r2 * lanes // (columns * (end - first)) + 1  # elements to ask for, a vector of columns
    c = 0
    while c < columns:
        vectors = vectors_of(columns - c, lanes)
        for i in range(first, end):
            if soon_at >= 0:
                fetch(soon, soon_at, vectors * each)
                soon_at += vectors * each
            a_at, c_at = np.int64(pre.parents[pre.order[i]]) * cores.first_step, at + (i - first) * q1 * columns + c
            q = 0
            while q < q1:
                rows = 4 if q + 4 <= q1 else 1
                tile(g1, a_at + q * r1, r1, 1, right, right_at + c, columns, buffer, c_at, columns, r1, rows, vectors)
                q, c_at = q + rows, c_at + rows * columns
        c += vectors * lanes


@jit
def pack_middle(g2, at, sizes, buffer, to):
    """buffer[to …] [r1, q2, padded2] of a slice [r1, q2, r2] of the middle core; zeros beyond r2."""
    r2, padded = sizes.r2, sizes.padded2
    for i in range(sizes.r1 * sizes.q2):
        for k in range(r2):
            buffer[to + i * padded + k] = g2[at + i * r2 + k]
        for k in range(r2, padded):
            buffer[to + i * padded + k] = 0


@jit
def group_of(groups, place):
    """The group that has a place of the order."""
    low, high = 0, groups.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if groups[middle] <= place:
            low = middle
        else:
            high = middle
    return low


@jit
def turn_product(sizes, buffer, at, to):
    """buffer[to …] [padded2, turned] = the transpose of a product [q1·q2, padded2]."""
    high, padded, width, lanes = sizes.q1 * sizes.q2, sizes.padded2, sizes.turned, sizes.lanes
    for j in range(0, high, lanes):
        for k in range(0, padded, lanes):
            turn(buffer, at + j * padded + k, padded, min(lanes, high - j), buffer, to + k * width + j, width)


@jit
def multiply_row(cores, digit, sizes, buffer, at, out, to):
    """out[to …] [q1·q2, q3] = the product turned in the buffer × a slice [r2, q3] of the last core."""
    high, q3, width, lanes = sizes.q1 * sizes.q2, sizes.q3, sizes.turned, sizes.lanes
    slice_at = digit * cores.last_step
    for j in range(0, high, lanes):
        left = at.turned + j
        if q3 == 4 and j + lanes <= high:
            tile_last(cores.last, slice_at, q3, buffer, left, width, out, to + j * q3, sizes.r2, 4)
            continue
        for c in range(0, q3, 4):
            many = min(4, q3 - c)
            tile_last(cores.last, slice_at + c, q3, buffer, left, width, buffer, at.row, sizes.r2, many)
            for i in range(min(lanes, high - j)):
                for k in range(many):
                    out[to + (j + i) * q3 + c + k] = buffer[at.row + i * many + k]


@jit
def fetch_rows(pre, given, first, end, rows, dim):
    """Asks for rows of bags [bags, dim], those that the prefixes order[first:end] have to do with."""
    for i in range(first, end):
        own = pre.starts[pre.order[i]], pre.starts[pre.order[i] + 1]
        for k in range(np.int64(pre.indices[own[0]]), np.int64(pre.indices[own[1]])):
            fetch(rows, np.int64(given.bag[k]) * dim, dim)


@jit
def next_group(pre, group, end):
    """The next group that has prefixes before place `end` of the order; or −1."""
    for g in range(group + 1, pre.groups.size - 1):
        if pre.groups[g] < pre.groups[g + 1]:
            return g if pre.groups[g] < end else -1
    return -1


@jit
def copy_row(pre, given, row, out, dim):
    """From the first of a row's bags to the others, each with its weight."""
    first, end = np.int64(pre.indices[row]), np.int64(pre.indices[row + 1])
    source = np.int64(given.bag[first]) * dim
    for i in range(first + 1, end):
        scale(out, np.int64(given.bag[i]) * dim, out, source, dim, weight_of(given, i, out))
    if given.weights.size > 0:
        scale(out, source, out, source, dim, weight_of(given, first, out))


@jit
def pool(rows, dim, pooled, weights, first, end):
    """Weighted sums of unique rows of the bags from `first` to `end`; weights [nnz] or [0]."""
    out, offsets = pooled.out, pooled.offsets
    for b in range(first, end):
        if offsets[b] == offsets[b + 1]:
            out[b * dim : (b + 1) * dim] = 0
        for i in range(offsets[b], offsets[b + 1]):
            weight = weights[i] if weights.size > 0 else out.dtype.type(1)
            if i == offsets[b]:
                scale(out, b * dim, rows, np.int64(pooled.inverse[i]) * dim, dim, weight)
            else:
                scale_add(out, b * dim, rows, np.int64(pooled.inverse[i]) * dim, dim, weight)


@jit
def pool_slice(rows, dim, place, stop, pre, given, first, end, out):
    """Adds rows of the prefixes that stand in the order from `place` to `stop` to their bags from `first` to `end`.

    Which indices those are is found without a branch, some ahead: half of the guesses would be wrong.
    """
    at, found = np.int64(0), 0
    row, index = np.empty(FOUND, np.int64), np.empty(FOUND, np.int64)
    for k in range(place, stop):
        for u in range(np.int64(pre.starts[pre.order[k]]), np.int64(pre.starts[pre.order[k] + 1])):
            for i in range(np.int64(pre.indices[u]), np.int64(pre.indices[u + 1])):
                row[found], index[found] = at, i
                found += (given.bag[i] >= first) & (given.bag[i] < end)
                if found == FOUND:
                    add_found(rows, dim, row, index, found, given, out)
                    found = 0
            at += dim
    add_found(rows, dim, row, index, found, given, out)


@jit
def add_found(rows, dim, row, index, found, given, out):
    for k in range(found):
        scale_add(out, np.int64(given.bag[index[k]]) * dim, rows, row[k], dim, weight_of(given, index[k], out))


@jit
def multiply_prefixes(sizes, at, cores, pre, given, place, stop, begin, buffer, rows, mode):
    """Unique rows of the prefixes that stand in the order from `place` to `stop`, into `rows`; see `forward`.

    Of a slice, rows begin with those of place `begin`.
    """
    size, dim = sizes.q1 * sizes.q2 * sizes.padded2, sizes.q1 * sizes.q2 * sizes.q3
    g = group_of(pre.groups, place) if place < stop else -1
    while g >= 0:
        low, high = max(pre.groups[g], place), min(pre.groups[g + 1], stop)
        coming = next_group(pre, g, stop)
        right, right_at = cores.middle, g * cores.middle_step
        if sizes.padded2 != sizes.r2:
            pack_middle(cores.middle, right_at, sizes, buffer, at.middle)
            right, right_at = buffer, at.middle
        for first in range(low, high, sizes.block):
            end = min(first + sizes.block, high)
            if mode == SINGLE:
                fetch_rows(pre, given, first, end, rows, dim)
            soon = coming * cores.middle_step if first == low else -1
            multiply_block(cores, pre, first, end, right, right_at, sizes, buffer, at.products, cores.middle, soon)
            for i in range(first, end):
                start = np.int64(pre.starts[pre.order[i]])
                turn_product(sizes, buffer, at.products + (i - first) * size, at.turned)
                for u in range(start, np.int64(pre.starts[pre.order[i] + 1])):
                    to = u
                    if mode == SINGLE:
                        to = np.int64(given.bag[pre.indices[u]])
                    elif mode == SLICE:
                        to = np.int64(pre.offsets[i]) - np.int64(pre.offsets[begin]) + u - start
                    multiply_row(cores, np.int64(pre.digits[u]), sizes, buffer, at, rows, to * dim)
                    if mode == SINGLE:
                        copy_row(pre, given, u, rows, dim)
        g = coming


@jit
def forward(thread, sizes, at, cores, pre, given, pooled, parts, buffer, rows, mode, meeting):
    """What one of the threads does of a look-up.

    Args:
        at: the places in `buffer`, the thread's.
        parts: [slices, threads + 1] int64: where in the order of prefixes each thread's share begins, and the end.
        rows: flat [n, dim], unique rows of a slice in the order of prefixes (mode SLICE), or of all as in the plan
            (WHOLE); of bags of at most one index it is not needed (SINGLE).
        meeting: [1] int64, zero.
    """
    threads, dim, met = parts.shape[1] - 1, sizes.q1 * sizes.q2 * sizes.q3, 0
    first, end = pooled.ends[thread], pooled.ends[thread + 1]
    if mode == SLICE:
        pooled.out[first * dim : end * dim] = 0
    target = pooled.out if mode == SINGLE else rows
    for s in range(parts.shape[0]):
        low, high = parts[s, thread], parts[s, thread + 1]
        multiply_prefixes(sizes, at, cores, pre, given, low, high, parts[s, 0], buffer, target, mode)
        if mode == SINGLE:
            continue
        met += threads
        meet(meeting, met)
        if mode == WHOLE:
            pool(rows, dim, pooled, given.weights, first, end)
        else:
            pool_slice(rows, dim, parts[s, 0], parts[s, threads], pre, given, first, end, pooled.out)
            met += threads
            meet(meeting, met)


@jit
def turn_middle(right, at, sizes, buffer, to):
    """buffer[to …] [q2·padded2, padded1] = the transpose of a slice [r1, q2·padded2] of the middle core."""
    r1, columns, padded, lanes = sizes.r1, sizes.q2 * sizes.padded2, sizes.padded1, sizes.lanes
    for i in range(0, padded, lanes):
        for c in range(0, columns, lanes):
            turn(right, at + i * columns + c, columns, min(lanes, r1 - i), buffer, to + c * padded + i, padded)


@jit
def contract(grad, dim, given, first, end, buffer, at):
    """buffer[at …] [dim] = the gradient of a unique row: the weighted sum over its sorted indices first to end."""
    scale(buffer, at, grad, np.int64(given.bag[first]) * dim, dim, weight_of(given, first, grad))
    for i in range(first + 1, end):
        scale_add(buffer, at, grad, np.int64(given.bag[i]) * dim, dim, weight_of(given, i, grad))


@jit
def differentiate_row(sizes, buffer, p_at, dp_at, dr_at, g_at, dg_at, fresh):
    """Adds to the gradients of a product and of a slice of the last core (turned); see `tile_back`."""
    high, q3, padded, lanes = sizes.q1 * sizes.q2, sizes.q3, sizes.padded2, sizes.lanes
    c = 0
    while c < q3:
        columns, k = 4 if c + 4 <= q3 else 1, 0
        while k < padded:
            vectors, at = 2 if k + 2 * lanes <= padded else 1, c * padded + k
            tile_back(
                buffer, p_at + k, dp_at + k, dr_at + c, g_at + at, dg_at + at, padded, q3, high, columns, vectors,
                fresh and c == 0,
            )  # fmt: skip
            k += vectors * lanes
        c += columns


@jit
def open_last(g3, at3, sizes, buffer, g_at, dg_at):
    """A slice of the last core, turned and padded to [q3, padded2], and zeros for its gradient."""
    q3, r2, padded = sizes.q3, sizes.r2, sizes.padded2
    buffer[dg_at : dg_at + q3 * padded] = 0
    for c in range(q3):
        for k in range(r2):
            buffer[g_at + c * padded + k] = g3[at3 + k * q3 + c]
        for k in range(r2, padded):
            buffer[g_at + c * padded + k] = 0


@jit
def differentiate_first(cores, sizes, at, buffer, pre, first, end, soon):
    """Adds to [q1, padded1] of each prefix's first digit: the product's gradient × the middle core's slice, turned.

    Meanwhile the middle core's next slice is asked for, unless `soon`, its place, is negative.
    """
    q1, depth, padded = sizes.q1, sizes.q2 * sizes.padded2, sizes.padded1
    each = sizes.r1 * sizes.q2 * sizes.r2 // (end - first) + 1
    for i in range(first, end):
        if soon >= 0:
            fetch(cores.middle, soon, each)
            soon += each
        to = at.first_grads + np.int64(pre.parents[pre.order[i]]) * q1 * padded
        q, a_at = 0, at.grads + (i - first) * q1 * depth
        while q < q1:
            rows, c = 4 if q + 4 <= q1 else 1, 0
            while c < padded:
                vectors, c_at, b_at = vectors_of(padded - c, sizes.lanes), to + q * padded + c, at.middle_turned + c
                tile_add(buffer, a_at, depth, 1, buffer, b_at, padded, buffer, c_at, padded, depth, rows, vectors)
                c += vectors * sizes.lanes
            q, a_at = q + rows, a_at + rows * depth


@jit
def differentiate_middle(cores, sizes, buffer, pre, first, end, dp_at, into, to):
    """Adds to [r1, q2·padded2] of `into` at `to`: slices of the first core, turned, × gradients of the products."""
    q1, r1, columns = sizes.q1, sizes.r1, sizes.q2 * sizes.padded2
    c = 0
    while c < columns:
        vectors, i = vectors_of(columns - c, sizes.lanes), 0
        while i < r1:
            rows = 4 if i + 4 <= r1 else 1
            tile_sum(
                cores.first, i, 1, r1, pre.order, pre.parents, first, end, cores.first_step,
                buffer, dp_at + c, columns, q1 * columns,
                into, to + i * columns + c, columns, q1, rows, vectors,
            )  # fmt: skip
            i += rows
        c += vectors * sizes.lanes


@jit
def differentiate_rows(sizes, at, cores, pre, given, first, end, grad, buffer, seen):
    """Gradients of the products of order[first:end], and of the last core's slices in their rows."""
    size, dim, wide = sizes.q1 * sizes.q2 * sizes.padded2, sizes.q1 * sizes.q2 * sizes.q3, sizes.q3 * sizes.padded2
    for i in range(first, end):
        prefix, p = pre.order[i], (i - first) * size
        for u in range(np.int64(pre.starts[prefix]), np.int64(pre.starts[prefix + 1])):
            digit = np.int64(pre.digits[u])
            g, dg = at.last + digit * wide, at.last_grads + digit * wide
            if not seen[digit]:
                seen[digit] = 1
                open_last(cores.last, digit * cores.last_step, sizes, buffer, g, dg)
            contract(grad, dim, given, np.int64(pre.indices[u]), np.int64(pre.indices[u + 1]), buffer, at.row)
            differentiate_row(sizes, buffer, at.products + p, at.grads + p, at.row, g, dg, u == pre.starts[prefix])


@jit
def backward(sizes, at, cores, pre, given, span, grad, into, buffer, seen_first, seen_last):
    """Gradients of the prefixes whose groups are span[0] to span[1].

    Args:
        grad: flat [bags, dim].
        into: `Cores`, of which the middle one is written, and only the slices of these groups.
        buffer: the thread's; at.first_grads and at.last_grads hold the sums for the other two cores at the end
        seen_first, seen_last: [p1], [p3] uint8, zeros; written: 1 where there is such a sum.
    """
    dim, columns = sizes.q1 * sizes.q2 * sizes.q3, sizes.q2 * sizes.padded2
    for g in range(span[0], span[1]):
        if pre.groups[g] == pre.groups[g + 1]:
            continue
        padded, right, right_at, target, target_at = sizes.padded2 != sizes.r2, cores.middle, 0, into.middle, 0
        right_at, target_at = g * cores.middle_step, g * into.middle_step
        if padded:
            pack_middle(cores.middle, right_at, sizes, buffer, at.middle)
            right, right_at, target, target_at = buffer, at.middle, buffer, at.middle_grads
            buffer[target_at : target_at + sizes.r1 * columns] = 0
        turn_middle(right, right_at, sizes, buffer, at.middle_turned)
        coming = next_group(pre, g, pre.groups[span[1]]) * cores.middle_step
        for first in range(pre.groups[g], pre.groups[g + 1], sizes.block):
            end = min(first + sizes.block, pre.groups[g + 1])
            fetch_rows(pre, given, first, end, grad, dim)
            for i in range(first, end):
                digit = np.int64(pre.parents[pre.order[i]])
                if not seen_first[digit]:
                    seen_first[digit] = 1
                    wide = sizes.q1 * sizes.padded1
                    buffer[at.first_grads + digit * wide : at.first_grads + (digit + 1) * wide] = 0
            soon = g * into.middle_step if first == pre.groups[g] else -1
            multiply_block(cores, pre, first, end, right, right_at, sizes, buffer, at.products, into.middle, soon)
            differentiate_rows(sizes, at, cores, pre, given, first, end, grad, buffer, seen_last)
            soon = coming if first == pre.groups[g] else -1
            differentiate_first(cores, sizes, at, buffer, pre, first, end, soon)
            differentiate_middle(cores, sizes, buffer, pre, first, end, at.grads, target, target_at)
        if padded:
            for i in range(sizes.r1 * sizes.q2):
                for k in range(sizes.r2):
                    into.middle[g * into.middle_step + i * sizes.r2 + k] += buffer[target_at + i * sizes.padded2 + k]


@jit
def collect(sizes, at, buffer, seen_first, seen_last, into):
    """Adds a thread's sums to the gradients of the first and of the last core."""
    wide = sizes.q1 * sizes.padded1
    for p in range(seen_first.size):
        if seen_first[p]:
            for q in range(sizes.q1):
                source, to = at.first_grads + p * wide + q * sizes.padded1, p * into.first_step + q * sizes.r1
                for k in range(sizes.r1):
                    into.first[to + k] += buffer[source + k]
    wide = sizes.q3 * sizes.padded2
    for p in range(seen_last.size):
        if seen_last[p]:
            for k in range(sizes.r2):
                source, to = at.last_grads + p * wide + k, p * into.last_step + k * sizes.q3
                for q in range(sizes.q3):
                    into.last[to + q] += buffer[source + q * sizes.padded2]
