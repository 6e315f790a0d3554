"""Emulated links, as fast as makes a step's transfers a given share of its computation.

This machine computes far more slowly than an accelerator; links slowed in proportion keep what matters, the ratio. So
shares and speed-ups mean something, and milliseconds do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from nestlab.exchange import Link, LinkModel, Transport
from nestlab.exchange.linked import Linked
from nestlab.tracing import Trace, breakdowns
from nestlab.tracing.trace import NS_PER_MS

ROWS = ("EMB_EXCHANGE", "GRAD_EXCHANGE")
HOST = ("PREPARE", "WRITEBACK")  # rows to the device, and back; one link carries both
LATENCY_US = 20.0
LOOPBACK, EMULATED = "loopback", "emulated link"


@dataclass(frozen=True)
class Links:
    """Bandwidths in 10⁹ bits a second, between ranks and between each rank's host and device; None: no link.

    `compute_ms`: the computation of a step that they were set by.
    """

    network: float | None = None
    host: float | None = None
    compute_ms: float | None = None

    @property
    def setting(self) -> str:
        return LOOPBACK if self.network is None and self.host is None else EMULATED

    @property
    def how(self) -> str:
        return "measured" if self.setting == LOOPBACK else EMULATED

    def between_ranks(self, transport: Transport) -> Transport:
        return transport if self.network is None else Linked(transport, _link(self.network))

    def to_device(self) -> Link | None:
        return None if self.host is None else _link(self.host)


def calibrated(trace: Trace, exchange: float, retrieval: float) -> Links:
    """Links on which the plain steps of `trace` need the shares `exchange` and `retrieval` of their computation.

    Each rank's quickest step says what computation takes: others on the machine only ever slow a step down.
    """
    steps = sum(event.stage == "PREPARE" for event in trace.events)  # of all ranks
    moved = [sum(e.nbytes for e in trace.events if e.stage in stages) / steps for stages in (ROWS, HOST)]
    compute_ms = _least_compute_ms(trace)
    bits_a_second = [8e-6 * nbytes / compute_ms for nbytes in moved]
    network = bits_a_second[0] / exchange
    return Links(
        network if network > 0 else None, bits_a_second[1] / retrieval, compute_ms
    )  # one rank alone sends nothing


def linked(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows under emulated links, by case."""
    return frame[frame["setting"] == EMULATED].set_index("case")


def loopback(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows without any link, by case."""
    return frame[frame["setting"] == LOOPBACK].set_index("case")


def _least_compute_ms(trace: Trace) -> float:
    """The mean over ranks of each one's quickest step."""
    quickest: dict[int, int] = {}
    for step in (part for number in trace.batches[1:] for part in breakdowns(trace, batch=number)):
        quickest[step.rank] = min(step.compute, quickest.get(step.rank, step.compute))
    return float(np.mean(list(quickest.values()))) / NS_PER_MS


def _link(gbit_s: float) -> Link:
    return Link(LinkModel(LATENCY_US, gbit_s))
