"""What ranks tell each other between two steps, over the step's own transport. Nothing is in flight meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor

from nestlab.errors import RankFailed, UserError
from nestlab.exchange import Channel, Transport


def gather_texts(transport: Transport, text: str) -> list[str]:
    """The text of every rank, by rank, on every rank."""
    own = torch.tensor(list(text.encode()), dtype=torch.uint8)
    sizes = transport.all_gather(Channel.KEYS, torch.tensor([own.numel()])).flatten().tolist()
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[: own.numel()] = own
    rows = transport.all_gather(Channel.KEYS, padded) if padded.numel() else torch.zeros(len(sizes), 0)
    return [bytes(row[:size].tolist()).decode() for row, size in zip(rows, sizes, strict=True)]


def together(transport: Transport, do: Callable[[], str]) -> list[str]:
    """Every rank does its part and tells the others what came of it; all go on, or none does.

    Raises:
        Exception: this rank's own.
        UserError, RankFailed: another rank's, which is named: it was the user's, or not.
            Either has an attribute `told_by_all`: every rank raises, so that one of them may speak for all.
    """
    told: dict[str, str | bool]
    own: Exception | None = None
    try:
        told = {"text": do()}
    except Exception as error:
        own = error
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        told = {"error": f"{kind}{error}", "users": not kind}
    answers = [json.loads(text) for text in gather_texts(transport, json.dumps(told))]
    if own is not None:
        own.told_by_all = True
        raise own
    for rank, answer in enumerate(answers):
        if "error" in answer:
            error = (UserError if answer["users"] else RankFailed)(f"rank {rank}: {answer['error']}")
            error.told_by_all = True
            raise error
    return [answer["text"] for answer in answers]


def to_first_shard(transport: Transport, rows: Tensor) -> Tensor | None:
    """Rows [n, …] of all shards of the first replica group, shard by shard, on rank 0; None on other ranks.

    Every rank of the world calls it; n may differ, what follows it may not.
    """
    mesh = transport.mesh
    sizes = transport.all_gather(Channel.KEYS, torch.tensor([rows.shape[0]])).flatten().tolist()
    if mesh.replica > 0:
        return None
    sizes = sizes[: mesh.shards]
    if sum(sizes) == 0 or 0 in rows.shape[1:]:  # nothing to send, known on every rank
        return rows.new_empty(sum(sizes), *rows.shape[1:]) if mesh.rank == 0 else None
    send_counts = [rows.shape[0], *[0] * (mesh.shards - 1)]
    counts = sizes if mesh.rank == 0 else [0] * mesh.shards
    came = transport.all_to_all(Channel.KEYS, rows.contiguous(), send_counts, counts)
    return came if mesh.rank == 0 else None
