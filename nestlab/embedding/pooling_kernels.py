"""Numba kernels of pooling: bags of rows to sums or means, and gradients back.

torch's `embedding_bag` spends most of its backward pass on the CPU in adding to a dense gradient (docs/log.md). One
pass over the ids each way here, on one thread, without the GIL. Loops run over slices: they become vector code.
"""

from __future__ import annotations

from nestlab.jit import jit


@jit
def pool(rows, positions, starts, mean, out):
    """Writes the bag of every sample and feature to out [B, F, dim], in the order in which out lies in memory.

    rows [U, dim] float; positions [n] int64, feature-major; starts [F·B + 1] int64, where each bag begins in them;
    mean: bags are divided by their length. An empty bag is zeros.
    """
    size, features, dim = out.shape
    for b in range(size):
        for f in range(features):
            begin, end = starts[f * size + b], starts[f * size + b + 1]
            bag = out[b, f]
            if begin == end:
                for d in range(dim):
                    bag[d] = 0
                continue
            row = rows[positions[begin]]
            for d in range(dim):
                bag[d] = row[d]
            for i in range(begin + 1, end):
                row = rows[positions[i]]
                for d in range(dim):
                    bag[d] += row[d]
            if mean and end > begin + 1:
                for d in range(dim):
                    bag[d] /= end - begin


@jit
def spread(grads, positions, starts, mean, bags, strides):
    """Adds to grads [U, dim] what each bag's gradient gives its rows, in the order of the ids.

    bags is flat: with strides (s, t) the gradient of sample b of B and feature f begins at b·s + f·t; strides is
    (B, s, t). The others as in `pool`.
    """
    dim, (size, by_sample, by_feature) = grads.shape[1], strides
    for f in range((starts.size - 1) // size):
        for b in range(size):
            begin, end = starts[f * size + b], starts[f * size + b + 1]
            at = b * by_sample + f * by_feature
            bag = bags[at : at + dim]
            for i in range(begin, end):
                row = grads[positions[i]]
                if mean and end > begin + 1:
                    for d in range(dim):
                        row[d] += bag[d] / (end - begin)
                else:
                    for d in range(dim):
                        row[d] += bag[d]
