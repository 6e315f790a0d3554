"""Ids hashed into tables of a fixed size, as is done where no map is at hand: what a dynamic map is compared with."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from nestlab.batch import Batch
from nestlab.experiments.two_tier.one_pass import Stream, distinct_ids, ids_by_feature
from nestlab.splitmix import GOLDEN, mixed

FEWEST = 100  # distinct ids: a column with fewer is nobody's reason to hash, and keeps a row an id


def sizes(stream: Stream, share: float) -> list[int]:
    """[F]: rows of each column's table, `share` of its distinct training ids; 0 for a column that is not hashed."""
    counts = [len(ids) for ids in distinct_ids(stream.train)]
    return [math.ceil(share * count) if count >= FEWEST else 0 for count in counts]


def hash_ids(ids: np.ndarray, rows: int, column: int) -> np.ndarray:
    """[n] int64 in 0 … rows − 1: splitmix64's finaliser, salted with the column; any structure of the ids is gone."""
    salted = ids.astype(np.uint64) + np.uint64((column + 1) * int(GOLDEN) % (1 << 64))
    return (mixed(salted) % np.uint64(rows)).astype(np.int64)


def hashed(stream: Stream, rows: list[int]) -> Stream:
    """The same stream with the ids of hashed columns replaced by rows."""
    train, heldout = (tuple(_hashed(batch, rows) for batch in part) for part in (stream.train, stream.heldout))
    return replace(stream, train=train, heldout=heldout)


def _hashed(batch: Batch, rows: list[int]) -> Batch:
    columns = zip(ids_by_feature(batch), rows, strict=True)
    parts = [hash_ids(ids, n, column) if n else ids for column, (ids, n) in enumerate(columns)]
    return replace(batch, ids=torch.from_numpy(np.concatenate(parts)))


def sharing(stream: Stream, rows: list[int]) -> float:
    """The share of the distinct training ids, of all columns, whose row is another id's too."""
    ids = distinct_ids(stream.train)
    alone = 0
    for column, (distinct, n) in enumerate(zip(ids, rows, strict=True)):
        places = hash_ids(distinct, n, column) if n else distinct
        counts = np.unique(places, return_counts=True)[1]
        alone += int((counts == 1).sum())
    return 1 - alone / sum(map(len, ids))
