"""From ids to the row numbers of a tensor-train table, which has M of them and no more."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numba import uint64
from torch import Tensor

from nestlab.embedding.keyset import int64_array
from nestlab.embedding.tensor_train.config import TensorTrain
from nestlab.errors import UserError
from nestlab.jit import jit
from nestlab.splitmix import mix


def row_numbers(ids: np.ndarray | Tensor, tensor_train: TensorTrain, table: str) -> Tensor:
    """[n] int64 in [0, M), in host memory, of ids [n].

    `range`: the id itself. `hash`: splitmix64's finaliser (Steele, Lea, Flood 2014) of the id plus a salt from the
    table's name, modulo M: any int64, negative ones too, the same row in every process. By the salt, ids that share a
    row in one table do not in another.

    Raises:
        UserError: under `range`, an id is not in [0, M).
    """
    ids = int64_array(ids)
    rows = np.empty(ids.size, dtype=np.int64)
    if tensor_train.ids == "hash":
        hashed(ids, _salt(table), tensor_train.rows, rows)
    elif (bad := checked(ids, tensor_train.rows, rows)) >= 0:
        raise UserError(
            f"table '{table}': id {ids[bad]} is not in 0 … {tensor_train.rows - 1}; give tensor_train more rows, or "
            "ids='hash'"
        )
    return torch.from_numpy(rows)


def warm_up() -> None:
    """Compiles the kernels, or loads them."""
    none = np.zeros(0, dtype=np.int64)
    hashed(none, _salt(""), 1, none)
    checked(none, 1, none)


def _salt(table: str) -> np.uint64:
    digest = hashlib.blake2b(table.encode(), digest_size=8, person=b"nestlab-tt-row").digest()
    return np.uint64(int.from_bytes(digest, "little"))


@jit
def hashed(ids, salt, count, rows):
    """Writes to rows [n] the row, 0 … count − 1, of each id [n] int64; salt uint64."""
    for i in range(ids.size):
        rows[i] = mix(uint64(ids[i]) + salt) % uint64(count)


@jit
def checked(ids, count, rows):
    """Copies ids [n] to rows [n]; returns the place of the first that is not in [0, count), or −1."""
    for i in range(ids.size):
        if ids[i] < 0 or ids[i] >= count:
            return i
        rows[i] = ids[i]
    return -1
