"""Ragged batches, and key routing once more in plain Python: dicts and lists, a key at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from nestlab.batch import Batch
from nestlab.embedding import KeyLayout, TableConfig
from nestlab.embedding.config import group_tables
from nestlab.embedding.sharding import owner

TABLES = (
    TableConfig("user", 2, ("u", "friends")),
    TableConfig("item", 2, ("i",)),
    TableConfig("word", 3, ("w",)),
)
FEATURES = ("i", "u", "w", "friends")  # not in the tables' order, one table twice
INT64 = np.iinfo(np.int64)
IDS = st.one_of(st.integers(-3, 12), st.sampled_from([INT64.min, INT64.max, 1 << 44]))
MESHES = ((1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (2, 2))  # ranks, replica groups


def layout() -> KeyLayout:
    return KeyLayout(group_tables(TABLES, lambda dim: 0))


@st.composite
def batches(draw, max_size: int = 6) -> Batch:
    """0 … max_size samples, 0 … 3 ids a feature, whole-numbered labels and weights."""
    size = draw(st.integers(0, max_size))
    bags = draw(st.lists(st.lists(IDS, max_size=3), min_size=4 * size, max_size=4 * size))
    ids = [i for bag in bags for i in bag]
    whole = st.integers(0, 4).map(float)
    listed = lambda n: torch.tensor(draw(st.lists(whole, min_size=n, max_size=n)), dtype=torch.float32)  # noqa: E731
    return Batch(
        dense=torch.zeros(size, 1),
        features=FEATURES,
        ids=torch.tensor(ids, dtype=torch.int64),
        lengths=torch.tensor([len(bag) for bag in bags], dtype=torch.int64),
        labels=listed(size),
        weights=listed(size) if draw(st.booleans()) else None,
        id_weights=listed(len(ids)) if draw(st.booleans()) else None,
    )


@st.composite
def worlds(draw) -> tuple[tuple[int, int], list[Batch]]:
    """A mesh (ranks, replicas) and a batch a rank."""
    mesh = draw(st.sampled_from(MESHES))
    return mesh, draw(st.lists(batches(), min_size=mesh[0], max_size=mesh[0]))


def of_feature(batch: Batch, feature: str) -> list[list[int]]:
    """The bags [B] of one feature."""
    at, ends, ids = batch.features.index(feature), batch.offsets().tolist(), batch.ids.tolist()
    return [ids[ends[at * batch.size + b] : ends[at * batch.size + b + 1]] for b in range(batch.size)]


def occurrences(batch: Batch, group) -> list[tuple[int, int, int]]:
    """(table's number, id, sample) of every id of the group, feature-major."""
    numbers = {feature: n for n, table in enumerate(group.tables) for feature in table.features}
    return [
        (numbers[feature], i, b)
        for feature in batch.features
        if feature in numbers
        for b, bag in enumerate(of_feature(batch, feature))
        for i in bag
    ]


@dataclass
class Asked:
    """What one rank asks for: its keys owner by owner, and what is known of each."""

    by_owner: list[list[tuple[int, int]]]  # [S], (table, id)
    parts: dict[tuple[int, int], list[int]]  # ascending
    counts: dict[tuple[int, int], int]
    clicks: dict[tuple[int, int], float]


def asked(batch: Batch, group, parts: int, shards: int) -> Asked:
    part_of = {b: p for p in range(parts) for b in range(p * batch.size // parts, (p + 1) * batch.size // parts)}
    seen = occurrences(batch, group)
    unique = list(dict.fromkeys((table, i) for table, i, _ in seen))
    unique.sort(key=lambda key: key[0])  # stable: table-major, first appearance within a table
    where = {key: int(owner(np.array([key[1]]), group.tables[key[0]].name, shards)[0]) for key in unique}
    samples = {key: [b for table, i, b in seen if (table, i) == key] for key in unique}
    return Asked(
        [[key for key in unique if where[key] == shard] for shard in range(shards)],
        {key: sorted({part_of[b] for b in samples[key]}) for key in unique},
        {key: len(samples[key]) for key in unique},
        {key: sum(float(batch.labels[b]) for b in samples[key]) for key in unique},
    )


def owned_keys(requests: list[Asked], shard: int) -> list[tuple[int, int]]:
    """The keys of a shard in the order promised: table, then requester, then first appearance."""
    found = dict.fromkeys(key for request in requests for key in request.by_owner[shard])
    return sorted(found, key=lambda key: key[0])
