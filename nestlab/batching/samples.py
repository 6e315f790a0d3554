"""The keys of each sample of a batch, and what an order of the samples costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nestlab.batch import Batch
from nestlab.batching import kernels
from nestlab.embedding.keys import deduplicate
from nestlab.errors import UserError


@dataclass(frozen=True, eq=False)
class SampleKeys:
    """The keys of B samples, sample by sample.

    A key is a pair (table, id): features that share a table share keys. Here it has a number of its own.

    Attributes:
        offsets: [B+1] int64; `keys[offsets[s]:offsets[s + 1]]` are those of sample s. Repeats are allowed.
        keys: [nnz] int64, numbers 0 … unique − 1.
        unique: U, distinct keys. The least that any order costs: each has to come once.

    Raises:
        ValueError: the offsets do not ascend from 0 to nnz, or a key lies outside.
    """

    offsets: np.ndarray
    keys: np.ndarray
    unique: int

    def __post_init__(self) -> None:
        ends = self.offsets
        if ends.size == 0 or ends[0] != 0 or ends[-1] != self.keys.size or (ends[1:] < ends[:-1]).any():
            raise ValueError(f"SampleKeys: offsets that do not ascend from 0 to {self.keys.size}")
        if self.keys.size and not 0 <= self.keys.min() <= self.keys.max() < self.unique:
            raise ValueError(f"SampleKeys: keys outside 0 … {self.unique - 1}")

    @property
    def size(self) -> int:
        """The number of samples, B."""
        return self.offsets.size - 1


def sample_keys(batch: Batch, tables: Mapping[str, str] | None = None) -> SampleKeys:
    """The keys of a batch's samples, from host memory.

    Args:
        tables: the table of each feature that counts; others are left out. None: every feature, a table each.

    Raises:
        UserError: `tables` names a feature that the batch lacks.
    """
    tables = {name: name for name in batch.features} if tables is None else tables
    if missing := [name for name in tables if name not in batch.features]:
        raise UserError(f"clustering: the batch lacks feature(s) {', '.join(missing)}; it has {list(batch.features)}")
    columns = np.array([c for c, name in enumerate(batch.features) if name in tables], dtype=np.int64)
    numbers = {table: number for number, table in enumerate(dict.fromkeys(tables.values()))}
    of_column = [numbers[tables[batch.features[c]]] for c in columns]
    ids, runs = batch.ids.numpy(), batch.offsets().numpy()
    starts, ends = runs[columns * batch.size], runs[(columns + 1) * batch.size]
    chosen = np.concatenate([ids[:0], *(ids[a:b] for a, b in zip(starts, ends, strict=True))])
    segments = np.concatenate(([0], np.cumsum(ends - starts)))
    unique, _, inverse = deduplicate(chosen, segments, of_column, len(numbers))
    lengths = np.ascontiguousarray(batch.feature_lengths().numpy()[columns])
    offsets = np.zeros(batch.size + 1, dtype=np.int64)
    np.cumsum(lengths.sum(axis=0), out=offsets[1:])
    return SampleKeys(offsets, kernels.by_sample(lengths, offsets, inverse), unique.size)


def bounds(size: int, parts: int) -> np.ndarray:
    """[parts + 1] int64: where each micro-batch starts among `size` samples, as `Batch.micro_batches` cuts them."""
    return np.arange(parts + 1, dtype=np.int64) * size // parts


def cost(samples: SampleKeys, parts: int, order: np.ndarray | None = None) -> int:
    """Σ|∪K(s)|: the unique keys of every micro-batch, added up; the rows that travel to this rank.

    Args:
        order: [B] int64, the sample at each place; None: as they are.
    """
    order = np.arange(samples.size) if order is None else order
    return int(kernels.cost(samples.offsets, samples.keys, order, bounds(samples.size, parts), samples.unique))


def reduction(samples: SampleKeys, parts: int, order: np.ndarray) -> float:
    """1 − (cost − bound)/(cost in time order − bound), bound the batch's unique keys.

    `cost − bound` is how many times a key comes again in another micro-batch, so this is also the share by which the
    duplicates between micro-batches shrink. 1 where time order has none.
    """
    duplicates = cost(samples, parts) - samples.unique
    return 1.0 if not duplicates else 1.0 - (cost(samples, parts, order) - samples.unique) / duplicates
