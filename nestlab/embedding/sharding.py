"""Which shard owns a key: by a hash of the table's name and the id."""

from __future__ import annotations

import hashlib

import numpy as np
from numba import uint64

from nestlab.embedding.keyset import int64_array
from nestlab.errors import UserError
from nestlab.jit import jit
from nestlab.splitmix import mix

MAX_SHARDS = 1 << 31


def owner(ids: np.ndarray, table: str, world: int) -> np.ndarray:
    """[n] int64: the shard, 0 … world−1, of each id [n] of the table called `table`.

    The salt comes from the table's name, so that keys do not move when tables are regrouped, added or taken away. The
    shard comes from the upper half of splitmix64's finaliser (Steele, Lea, Flood 2014), by multiplication and shift
    (Lemire 2019), never by a remainder: ids with a structure, such as multiples of the number of shards, spread all the
    same. The key index inside a shard hashes with another salt and looks at the lower bits, so that the keys of one
    shard do not crowd in it.

    Raises:
        UserError: world is not 1 … 2^31.
    """
    if not 1 <= world <= MAX_SHARDS:
        raise UserError(f"owner: {world} shards; give 1 … 2^31")
    ids = int64_array(ids)
    owners = np.empty(ids.size, dtype=np.int64)
    spread(ids, _salt(table), world, owners)
    return owners


def _salt(table: str) -> np.uint64:
    digest = hashlib.blake2b(table.encode(), digest_size=8, person=b"nestlab-owner").digest()
    return np.uint64(int.from_bytes(digest, "little"))


@jit
def spread(ids, salt, world, owners):
    """Writes to owners [n] int64 the shard of ids [n] int64; salt uint64, world int64."""
    for i in range(ids.size):
        owners[i] = ((mix(uint64(ids[i]) + salt) >> uint64(32)) * uint64(world)) >> uint64(32)
