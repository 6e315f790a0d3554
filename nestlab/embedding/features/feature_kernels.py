"""Numba kernels of admission and eviction: counts a key, the count-min sketch, shows and clicks a row.

All are single-threaded and release the GIL.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from nestlab.embedding._prefetch import prefetch
from nestlab.jit import jit
from nestlab.splitmix import GOLDEN, mix

BLOCK = 32  # keys hashed ahead of the look at their counters
AHEAD = 8  # rows whose counters are prefetched ahead


@jit
def tally(positions, lengths, labels, counts, clicks):
    """Adds to counts [U] int64 how often each key occurs, to clicks [U] float64 the labels of those samples.

    positions: [nnz] int64, feature-major; lengths: [F·B] int64, bags in the same order; labels: [B] float32.
    """
    at, sample = 0, 0
    for bag in range(lengths.size):
        label = np.float64(labels[sample])
        for _ in range(lengths[bag]):
            counts[positions[at]] += 1
            clicks[positions[at]] += label
            at += 1
        sample = sample + 1 if sample + 1 < labels.size else 0


@jit
def sketch_admit(sketch, width, ids, offsets, counts, thresholds, admitted):
    """Writes to admitted [n] bool which keys reach their table's threshold; the others' counts go into the sketch.

    Count-min (Cormode, Muthukrishnan 2005) with conservative update (Estan, Varghese 2002): a counter is raised only
    as far as the new estimate. Row r looks at counter (h₁ + r·h₂) of its own (Kirsch, Mitzenmacher 2006).

    Args:
        sketch: [rows·width] uint8 or uint32, row after row; width a power of two.
        ids, offsets, counts: [n], [T+1], [n] int64; thresholds: [T] float64, at most 1 + the most a counter can hold.
    """
    rows, mask = sketch.size // width, uint64(width - 1)
    hashes = np.empty(BLOCK, np.uint64)
    for table in range(offsets.size - 1):
        salt = uint64(table + 1) * GOLDEN
        for begin in range(offsets[table], offsets[table + 1], BLOCK):
            size = min(BLOCK, offsets[table + 1] - begin)
            for i in range(size):
                x = mix(uint64(ids[begin + i]) + salt)
                hashes[i] = x
                for r in range(rows):
                    prefetch(sketch, uint64(r * width) + ((x + uint64(r) * ((x >> uint64(32)) | uint64(1))) & mask))
            for i in range(size):
                x, step = hashes[i], (hashes[i] >> uint64(32)) | uint64(1)
                least = np.int64(sketch[x & mask])
                for r in range(1, rows):
                    least = min(least, np.int64(sketch[uint64(r * width) + ((x + uint64(r) * step) & mask)]))
                total = least + counts[begin + i]
                admitted[begin + i] = total >= thresholds[table]
                if not admitted[begin + i]:
                    for r in range(rows):
                        at = uint64(r * width) + ((x + uint64(r) * step) & mask)
                        if np.int64(sketch[at]) < total:
                            sketch[at] = total


@jit
def add_rows(stats, rows, counts, clicks):
    """stats[row, 0] += counts[i], stats[row, 1] += clicks[i] for rows [n] int64 (unique); negative ones are passed by.

    stats: [N, 3] float64.
    """
    flat = stats.reshape(-1)
    for i in range(rows.size):
        if i + AHEAD < rows.size and rows[i + AHEAD] >= 0:
            prefetch(flat, rows[i + AHEAD] * 3)
        if rows[i] >= 0:
            stats[rows[i], 0] += counts[i]
            stats[rows[i], 1] += clicks[i]


@jit
def close_round(stats, show_weight, click_weight, decay):
    """score = (score + show_weight·shows + click_weight·clicks)·decay; shows and clicks start at 0 again.

    stats: [n, 3] float64, shows, clicks, score.
    """
    for row in range(stats.shape[0]):
        gained = show_weight * stats[row, 0] + click_weight * stats[row, 1]
        stats[row, 2] = (stats[row, 2] + gained) * decay
        stats[row, 0] = 0.0
        stats[row, 1] = 0.0
