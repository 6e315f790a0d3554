"""Numba kernels over records `[weight | optimizer state]`: initial values and row-optimizer steps.

Each optimizer does torch's operations in torch's order, so that float64 agrees to rounding. Scalars are computed in
float64 by the caller, once a step, and rounded here to the records' dtype, as torch does. Division checks are off
(`error_model="numpy"`): with them, row-wise Adagrad took five times as long.

Records lie scattered in DRAM: each step asks for the records of a few rows ahead (row-wise Adagrad over 23,000 rows of
0.5 GB: 6.5 ms without, 2.9 ms with; docs/log.md).
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from nestlab.embedding._prefetch import prefetch
from nestlab.jit import inlined, jit
from nestlab.splitmix import GOLDEN, mix

AHEAD = 4  # records prefetched ahead; 2 … 8 measured alike
_LINE = 64  # bytes of a cache line


@inlined
def _ask_ahead(flat, rows, i, width, line):
    """Prefetches the record of the row AHEAD places later; `line` is the number of elements in a cache line."""
    if i + AHEAD < rows.size:
        start = rows[i + AHEAD] * width
        for column in range(0, width, line):
            prefetch(flat, start + column)


@jit
def initialise(records, rows, ids, tables, salts, bounds, dim, state):
    """Writes initial records to records[rows[i]]: a pure function of (table's salt, id, column).

    Counter-based, so it depends on no order, rank or tier: a splitmix64 stream whose start is the mixed key. The value
    is computed in float64 and rounded to the records' dtype.

    Args:
        records: [N, width ≥ dim]; rows, ids, tables: [n] int64; salts: [T] uint64; bounds: [T] float64.
        dim: weights a record; the columns after it are set to `state`.
    """
    for i in range(rows.size):
        record = records[rows[i]]
        bound = bounds[tables[i]]
        start = mix(uint64(ids[i]) ^ salts[tables[i]])
        for column in range(dim):
            bits = mix(start + uint64(column + 1) * GOLDEN) >> uint64(11)
            record[column] = (2.0 * (np.float64(bits) * 2.0**-53) - 1.0) * bound
        record[dim:] = state


@jit
def sgd(records, rows, grads, lr):
    """w −= lr·g (torch.optim.SGD). records [N, ≥ dim], rows [U], grads [U, dim] of the records' dtype."""
    step = records.dtype.type(-lr)
    flat, width, line = records.reshape(-1), records.shape[1], _LINE // records.itemsize
    for i in range(rows.size):
        _ask_ahead(flat, rows, i, width, line)
        record, grad = records[rows[i]], grads[i]
        for c in range(grad.size):
            record[c] += step * grad[c]


@jit
def adagrad(records, rows, grads, lr, eps):
    """s += g²; w −= lr·g/(√s + ε) (torch.optim.Adagrad, no decay). records [N, 2·dim]."""
    step, epsilon = records.dtype.type(-lr), records.dtype.type(eps)
    dim = grads.shape[1]
    flat, width, line = records.reshape(-1), records.shape[1], _LINE // records.itemsize
    for i in range(rows.size):
        _ask_ahead(flat, rows, i, width, line)
        weight, state, grad = records[rows[i], :dim], records[rows[i], dim:], grads[i]
        for c in range(dim):
            state[c] += grad[c] * grad[c]
            weight[c] += step * grad[c] / (np.sqrt(state[c]) + epsilon)


@jit
def rowwise_adagrad(records, rows, grads, lr, eps, scale):
    """s += mean(g²); w −= lr/(√(s/c) + ε)·g (fbgemm's exact row-wise Adagrad at c = scale = 1). records [N, dim + 1].

    The mean is summed in float64, in four strands so that it vectorises and is the same on every machine.
    """
    rate, epsilon, divisor = records.dtype.type(lr), records.dtype.type(eps), records.dtype.type(scale)
    dim = grads.shape[1]
    whole = dim - dim % 4
    flat, width, line = records.reshape(-1), records.shape[1], _LINE // records.itemsize
    for i in range(rows.size):
        _ask_ahead(flat, rows, i, width, line)
        record, grad = records[rows[i]], grads[i]
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        for k in range(0, whole, 4):
            a += np.float64(grad[k]) * np.float64(grad[k])
            b += np.float64(grad[k + 1]) * np.float64(grad[k + 1])
            c += np.float64(grad[k + 2]) * np.float64(grad[k + 2])
            d += np.float64(grad[k + 3]) * np.float64(grad[k + 3])
        for k in range(whole, dim):
            a += np.float64(grad[k]) * np.float64(grad[k])
        record[dim] += records.dtype.type(((a + b) + (c + d)) / dim)
        step = rate / (np.sqrt(record[dim] / divisor) + epsilon)
        for k in range(dim):
            record[k] -= step * grad[k]


@jit
def lazy_adam(records, rows, grads, step_size, beta1, beta2, eps):
    """torch.optim.SparseAdam: moments of the touched rows only. records [N, 3·dim] = [w | m | v].

    `step_size` is lr·√(1 − β₂^t)/(1 − β₁^t) with the global step number t.
    """
    step, epsilon = records.dtype.type(-step_size), records.dtype.type(eps)
    rest1, rest2 = records.dtype.type(1.0 - beta1), records.dtype.type(1.0 - beta2)
    dim = grads.shape[1]
    flat, width, line = records.reshape(-1), records.shape[1], _LINE // records.itemsize
    for i in range(rows.size):
        _ask_ahead(flat, rows, i, width, line)
        row, grad = rows[i], grads[i]
        weight, mean, square = records[row, :dim], records[row, dim : 2 * dim], records[row, 2 * dim :]
        for c in range(dim):
            mean[c] += (grad[c] - mean[c]) * rest1
            square[c] += (grad[c] * grad[c] - square[c]) * rest2
            weight[c] += step * (mean[c] / (np.sqrt(square[c]) + epsilon))


@jit
def stamp(last_seen, rows, number):
    """last_seen[row] = number for rows [n] int64; negative rows are passed by."""
    for i in range(rows.size):
        if rows[i] >= 0:
            last_seen[rows[i]] = number
