"""Index deduplication of torchrec's EmbeddingCollection on the CPU: the one operator of it that fbgemm 1.8 has no CPU
kernel for, on NestLab's own deduplication. What torchrec does with its results is torchrec's."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from nestlab.embedding import deduplicate


@functools.cache
def provide() -> torch.library.Library:
    """Registers the kernel, once a process, where there is none; it stays for the life of the process."""
    import fbgemm_gpu  # noqa: F401  (defines the operator)

    library = torch.library.Library("fbgemm", "IMPL")
    if not torch._C._dispatch_has_kernel_for_dispatch_key("fbgemm::jagged_unique_indices", "CPU"):
        library.impl("jagged_unique_indices", unique_indices, "CPU")
    return library


def unique_indices(
    hash_size_cumsum: Tensor, hash_size_offsets: Tensor, offsets: Tensor, indices: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unique ids per table, in order of first appearance (the CUDA kernel sorts them; nobody counts on that).

    F features of B bags; the features of one table follow each other.

    Args:
        hash_size_cumsum: not needed here: ids of several tables are not mixed.
        hash_size_offsets: [F + 1] int64: a table's first feature has the run of its features here, its others an empty
            one.
        offsets: [F·B + 1] int64, of the bags.
        indices: [n] int64.

    Returns:
        lengths [F·B] int64 that sum to U, a table's unique ids dealt out evenly over its bags, since the exchange only
        needs their sums; their offsets [F·B + 1]; the unique ids [U], table by table; and for each id its place there.
    """
    runs = np.diff(hash_size_offsets.numpy())
    features, runs = runs.size, runs[runs > 0]
    bags = (offsets.numel() - 1) // features
    tables = np.repeat(np.arange(runs.size), runs)
    bounds = offsets[::bags] if bags else offsets.repeat(features + 1)
    unique, ends, places = deduplicate(indices, bounds, tables)
    lengths = _dealt(np.diff(ends), runs * bags)
    new_offsets = np.zeros(lengths.size + 1, dtype=np.int64)
    np.cumsum(lengths, out=new_offsets[1:])
    return tuple(map(torch.from_numpy, (lengths, new_offsets, unique, places)))


def _dealt(counts: np.ndarray, bags: np.ndarray) -> np.ndarray:
    """Each table's count over its bags, the first ones taking one more where it does not divide."""
    each, left = np.divmod(counts, np.maximum(bags, 1))
    starts = np.repeat(np.concatenate(([0], np.cumsum(bags)[:-1])), bags)
    place = np.arange(starts.size) - starts
    return np.repeat(each, bags) + (place < np.repeat(left, bags))
