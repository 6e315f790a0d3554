"""What each tensor-train table costs its owner, measured while it trains, and tables on their way to another rank."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nestlab.batching.placement import Placement
from nestlab.batching.rebalancing import Drift
from nestlab.embedding.tensor_train.whole import WholeTables
from nestlab.exchange import Transport
from nestlab.exchange.table_wise_moving import move_tables, share_costs


class Loads:
    """Seconds that a rank's tables took in forward and backward, and what follows from those of all ranks.

    On an accelerator it is the time of the calls, not of the kernels.
    """

    def __init__(self, tables: int, transport: Transport, placement: Placement) -> None:
        self._transport = transport
        self._seconds = [0.0] * tables
        self._drift = Drift(placement.owner, transport.mesh.world_size, newest=0.5)

    @property
    def costs(self) -> Sequence[float]:
        """[T] seconds between two looks, the mean over them."""
        return self._drift.costs

    @property
    def ratio(self) -> float:
        """Largest over mean load, at the last look."""
        return self._drift.ratio

    @contextmanager
    def timed(self, table: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._seconds[table] += time.perf_counter() - start

    def proposal(self) -> tuple[int, ...] | None:
        """Owners under which the loads would be more equal; None: they are equal enough. A collective on KEYS."""
        self._drift.measure(share_costs(self._transport, self._seconds, self._drift.owner))
        self._seconds = [0.0] * len(self._seconds)
        return self._drift.propose()

    def moved(self, owner: tuple[int, ...]) -> None:
        self._drift.moved(owner)


def move(whole: WholeTables, transport: Transport, old: Placement, new: Placement) -> None:
    """Tables to their new owners, with the state of their optimizers; the same bits. A collective on KEYS."""
    rank = transport.mesh.rank
    coming = {t: whole.make(whole.configs[t]) for t in new.of_rank(rank) if t not in whole.own}
    going = {t: table for t, table in whole.own.items() if new.owner[t] != rank}
    states = {t: table.state_dict() for t, table in (coming | going).items()}
    told = [list(states[t].values()) if t in states else [] for t in range(len(whole.configs))]
    for number, values in move_tables(transport, told, old, new).items():
        coming[number].load(dict(zip(states[number], values, strict=True)))
    tables = whole.own | coming
    whole.own = {number: tables[number] for number in new.of_rank(rank)}
    whole.owners = (new.owner, transport.mesh.world_size)
