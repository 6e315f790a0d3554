"""What every rank has to have alike, asked once before the first batch: else ranks wait for each other, or drift apart.

Each rank writes it down as lines of text and tells the others a checksum; where those differ, the texts themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import zip_longest

import torch
from torch import Tensor

from nestlab.embedding import EmbeddingStore
from nestlab.errors import UserError
from nestlab.exchange import Channel, Transport
from nestlab.pipeline.dense import Clipped
from nestlab.pipeline.executors import Executor
from nestlab.pipeline.rows import gather_samples
from nestlab.pipeline.schedule import Schedule
from nestlab.techniques import Techniques

# What a rank may have of its own: where and how its share of the tables is kept.
_OWN = frozenset(("cache_slots", "disk", "host_capacity", "host_rows", "index_buckets", "index_threads"))


class RanksDisagree(UserError):
    """Every rank raises it, with the same message: none has to be told."""


def agree(transport: Transport, lines: Sequence[str]) -> None:
    """A collective on KEYS, with nothing in flight.

    Raises:
        RanksDisagree: the lines differ; the message names the first that does, and who has which.
        RankFailed: see `Transport`.
    """
    text = "\n".join(lines)
    sums = transport.all_gather(Channel.KEYS, torch.tensor([_checksum(text.encode())])).reshape(-1).tolist()
    other = next((rank for rank, each in enumerate(sums) if each != sums[0]), None)
    if other is None:
        return
    texts = _gather_texts(transport, text)
    pairs = zip_longest(texts[0].split("\n"), texts[other].split("\n"), fillvalue="nothing")
    one, two = next(pair for pair in pairs if pair[0] != pair[1])
    raise RanksDisagree(
        f"ranks disagree: rank 0 has {one}, rank {other} has {two}; give every rank the same techniques, tables, "
        "optimizers and start weights"
    )


def of_techniques(techniques: Techniques, schedule: Schedule, executor: Executor) -> Iterator[str]:
    """The flags, the schedule and who carries it out; entries in list order, edges in any."""
    for each in fields(techniques):
        if each.name not in _OWN:
            yield f"{each.name}={getattr(techniques, each.name)}"
    carried_out = repr(executor)
    yield f"executor {type(executor).__name__ if ' at 0x' in carried_out else carried_out}"
    yield f"schedule '{schedule.name}'"
    yield from (f"the schedule's entry {entry.stage}({entry.part}){entry.ahead:+d}" for entry in schedule.entries)
    yield from sorted(f"the schedule's edge {edge}" for edge in schedule.edges)


def of_tables(store: EmbeddingStore) -> Iterator[str]:
    """Tables, their optimizer and what their tiers ask of the ranks together."""
    for group in store.groups:
        yield from map(str, group.tables)
    yield from map(str, store.whole.configs)
    yield f"{store.dtype} tables of seed {store.seed}, trained for {store.last_step} steps"
    yield f"row optimizer {store.optimizer.name}: {_simple(vars(store.optimizer))}"
    yield f"look_ahead of the tables: {store.options.looks_ahead}"
    yield f"rules of the tables: {store.options.features}"


def of_dense(dense: torch.nn.Module, optimizer: torch.optim.Optimizer | Clipped) -> Iterator[str]:
    """Shapes and start weights of the dense part, its optimizer and what that has kept so far."""
    for name, parameter in dense.named_parameters():
        learns = "" if parameter.requires_grad else ", frozen"
        yield f"dense parameter {name} {list(parameter.shape)} {parameter.dtype}{learns}"
    for name, parameter in dense.named_parameters():
        yield f"start weights of {name} with checksum {_of_tensor(parameter):016x}"
    inner = optimizer.optimizer if isinstance(optimizer, Clipped) else optimizer
    yield f"clipping at {optimizer.max_norm if isinstance(optimizer, Clipped) else 'no norm'}"
    kept = inner.state_dict()
    for number, group in enumerate(kept["param_groups"]):
        yield f"dense optimizer {type(inner).__name__}, group {number}: {_simple(group)}"
    for number, state in kept["state"].items():
        sums = [f"{name} {_of_tensor(torch.as_tensor(value)):016x}" for name, value in state.items()]
        yield f"dense optimizer's state of parameter {number} with checksums {', '.join(sums)}"


def _gather_texts(transport: Transport, text: str) -> list[str]:
    joined = gather_samples(transport, torch.tensor(list(text.encode() + b"\0"), dtype=torch.uint8))
    return bytes(joined.tolist()).decode().split("\0")


def _simple(values: Mapping[str, object]) -> str:
    """Numbers and words; other objects have no form that is the same in every process."""
    plain = (bool, int, float, str, tuple, type(None))
    told = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in values.items()}
    return " ".join(
        f"{name}={value}" for name, value in told.items() if isinstance(value, (*plain, list)) and name != "params"
    )


def _of_tensor(values: Tensor) -> int:
    """Of the bits, in 0 … 2⁶⁴ − 1."""
    return _checksum(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()) % 2**64


def _checksum(content: object) -> int:
    """64 bits, as a signed number: what an int64 tensor takes."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)
