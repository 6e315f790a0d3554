"""Cores of tensor-train tables among the ranks: gathered for a save or an export, put in place after a restart."""

from __future__ import annotations

import torch
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from nestlab.embedding import EmbeddingStore
from nestlab.embedding.tensor_train.cores import require_like
from nestlab.errors import UserError
from nestlab.exchange import Channel, Transport
from nestlab.training.gathering import to_first_shard

Tensors = dict[str, Tensor]


def gather_whole(store: EmbeddingStore, transport: Transport) -> Tensors:
    """`<table>.core.<k>` and the rest of each table's state, of all tables, on rank 0; nothing on the others.

    A collective, with nothing in flight. Where several ranks have a table (replicated cores) the first one's is taken.
    """
    found: Tensors = {}
    for number, rank in enumerate(_holders(store, transport)):
        own = rank == transport.mesh.rank
        text = to_safetensors(store.whole.own[number].state_dict()) if own else b""
        came = to_first_shard(transport, torch.frombuffer(bytearray(text), dtype=torch.uint8) if own else _NOTHING)
        if came is not None:
            name = store.whole.configs[number].name
            found |= {f"{name}.{key}": value for key, value in from_safetensors(came.numpy().tobytes()).items()}
    return found


def check_whole(store: EmbeddingStore, tensors: Tensors) -> None:
    """
    Raises:
        UserError: the saved tables are not those of `store`.
    """
    mine = {
        f"{store.whole.configs[number].name}.{key}": value
        for number, table in store.whole.own.items()
        for key, value in table.state_dict().items()
    }
    saved, here = (sorted({name.partition(".")[0] for name in names}) for names in (tensors, mine))
    if saved != here:
        raise UserError(
            f"restart: the checkpoint has tensor-train tables {_names(saved)}, and this run has {_names(here)}; give "
            "it the table_kind, tt_from and reorder that it had"
        )
    require_like(tensors, mine, "restart: tensor-train tables, whose tt_rank must be the one saved")


def load_whole(store: EmbeddingStore, tensors: Tensors) -> None:
    """Puts what `gather_whole` gave in place; every rank has all tables until a pipeline places them."""
    for number, table in store.whole.own.items():
        start = f"{store.whole.configs[number].name}."
        table.load({name[len(start) :]: value for name, value in tensors.items() if name.startswith(start)})


def _names(tables: list[str]) -> str:
    return "none" if not tables else ", ".join(tables[:4]) + (f" and {len(tables) - 4} more" if len(tables) > 4 else "")


_NOTHING = torch.empty(0, dtype=torch.uint8)


def _holders(store: EmbeddingStore, transport: Transport) -> list[int]:
    """The first rank that has each table."""
    if not store.whole.configs:
        return []
    mine = torch.tensor([number in store.whole.own for number in range(len(store.whole.configs))]).to(torch.int64)
    return transport.all_gather(Channel.KEYS, mine).argmax(dim=0).tolist()
