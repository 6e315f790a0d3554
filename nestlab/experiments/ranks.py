"""What a rank of the study does around its part: join the others, gather figures, leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nestlab.exchange import Channel, Transport
from nestlab.exchange.collective import CollectiveTransport
from nestlab.launch import launch

TIMEOUT_S = 300.0  # of one collective: ranks that share few cores wait for each other


def on_ranks(function, *args: Any, world_size: int, logs: Path | None = None) -> Any:
    """`function(*args)` on so many ranks with one thread each; what rank 0 returns. `logs`: where they say what they
    do."""
    return launch(function, args, world_size=world_size, log_dir=logs)[0]


@contextmanager
def joined(device: str, place: str, replicas: int = 1) -> Iterator[Transport]:
    """The ranks connected; whatever happens, the others are told of it and the connection is closed."""
    torch.set_num_threads(1)
    transport = CollectiveTransport.connect(replicas, device, TIMEOUT_S)
    try:
        yield transport
    except BaseException as error:
        transport.fail(place, error)
        raise
    finally:
        transport.close()


def of_all(transport: Transport, figures: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Each figure of every rank, [ranks] float64; all ranks call it with the same names."""
    own = torch.tensor(list(figures.values()), dtype=torch.float64)
    every = transport.all_gather(Channel.KEYS, own).numpy()
    return {name: every[:, number] for number, name in enumerate(figures)}


def rows_of_all(transport: Transport, rows: Tensor) -> Tensor:
    """[n, k] of every rank, joined by rank; n may differ."""
    sizes = of_all(transport, {"rows": float(rows.shape[0])})["rows"].astype(int)
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: rows.shape[0]] = rows
    every = transport.all_gather(Channel.KEYS, padded)
    return torch.cat([each[:size] for each, size in zip(every, sizes, strict=True)])
