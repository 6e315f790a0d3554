"""The traces of all ranks on rank 0, and how far each rank's clock is from rank 0's.

Imports torch, and is therefore imported when first asked for, not by `nestlab.tracing` itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from nestlab.exchange.transport import Channel, Transport
from nestlab.tracing.chrome import decode, encode
from nestlab.tracing.merging import merge
from nestlab.tracing.trace import Trace

ROUNDS = 32  # of the clocks' comparison: the quickest of them bounds the error


class Clock(NamedTuple):
    """A rank's `perf_counter_ns` against rank 0's: its time + `offset_ns` is rank 0's, to ± `error_ns`."""

    offset_ns: int
    error_ns: int


def clock_offset(transport: Transport, rounds: int = ROUNDS) -> Clock:
    """This rank's clock against rank 0's; all ranks call it, with nothing in flight.

    No rank leaves an all_gather before every rank has entered it. So of each round rank 0's entry lies before this
    rank's exit, and this rank's entry before rank 0's exit: two bounds on the offset, whatever the network does. The
    tightest of all rounds are taken, the offset is their middle, and the error, half of what is between them, is a
    bound and no guess: about the time of one all_gather, some 50 to 500 µs over gloo on one machine. Clocks that drift
    apart (some 10 µs a second) are taken as they are now.
    """
    times = np.empty((2, rounds), dtype=np.int64)
    token = torch.zeros(1, dtype=torch.int64)
    for number in range(rounds):
        times[0, number] = time.perf_counter_ns()
        transport.all_gather(Channel.KEYS, token)
        times[1, number] = time.perf_counter_ns()
    every = transport.all_gather(Channel.KEYS, torch.from_numpy(times)).numpy()
    rank = transport.mesh.rank
    return between(every[0], every[rank]) if rank else Clock(0, 0)


def between(first: np.ndarray, own: np.ndarray) -> Clock:
    """From the entries and exits, [2, rounds] int64 in ns, of rank 0 and of this rank."""
    least = int((first[0] - own[1]).max())
    most = int((first[1] - own[0]).min())
    return Clock((least + most) // 2, abs(most - least + 1) // 2)


def gather_traces(transport: Transport, trace: Trace) -> Trace | None:
    """Every rank's trace merged, on rank 0; None elsewhere. All ranks call it, with nothing in flight.

    The clocks' errors stand in `meta["clocks"]`, in ns. Where evaluations were cut out of the window (the trace's
    clock stands still meanwhile), times after one are off by as much as the ranks' evaluations differ in length:
    `nestlab.tracing.peers.contradiction_ns` finds the worst of it.
    """
    mesh = transport.mesh
    own = {str(mesh.rank): clock_offset(transport)._asdict()}
    bodies = _gather_bytes(transport, encode(replace(trace, meta={**trace.meta, "clocks": own})))
    return merge([decode(body) for body in bodies]) if mesh.rank == 0 else None


def _gather_bytes(transport: Transport, body: bytes) -> Sequence[bytes]:
    """Every rank's body, by rank; they travel padded to the longest."""
    sizes = transport.all_gather(Channel.KEYS, torch.tensor([len(body)])).reshape(-1).tolist()
    padded = np.zeros(max(sizes), dtype=np.uint8)
    padded[: len(body)] = np.frombuffer(body, dtype=np.uint8)
    every = transport.all_gather(Channel.KEYS, torch.from_numpy(padded)).numpy()
    return [row[:size].tobytes() for row, size in zip(every, sizes, strict=True)]
