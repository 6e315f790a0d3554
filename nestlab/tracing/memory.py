"""How many bytes a training holds, by kind: readings beside the events, and their peaks as a table.

The kinds are those of docs/design.md 4.5. Readings are taken in the recorder's window, after the stages at which
much comes or goes: what lives only inside one action (a temporary of the backward pass) is in none of them, and is in
the totals of the process and of the allocator. Peaks of several kinds need not coincide: they sum to the total or more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

    from nestlab.tracing.trace import Trace

COUNTER = "memory"
KINDS = ("tables", "buffers", "batches in flight", "activations", "exchange")
ON_DEVICE = KINDS[1:]  # tables lie in the host tier
# Counting what autograd keeps costs about a hundredth of a small step; every so many batches of the window will do.
COUNT_EVERY = 16


class InUse(NamedTuple):
    """Bytes in use at one moment, by kind.

    `tables`: index and records of the host tier, and cores. `buffers`: the device tier's. `batches_in_flight`: loaded
    samples. `activations`: what autograd keeps for the backward pass. `exchange`: rows and gradients on their way.
    """

    tables: int
    buffers: int
    batches_in_flight: int
    activations: int
    exchange: int

    @property
    def by_kind(self) -> tuple[tuple[str, int], ...]:
        return tuple(zip(KINDS, self, strict=True))


class Usage(NamedTuple):
    """A line of the memory table."""

    kind: str
    peak_bytes: int
    how_obtained: str


def peaks(trace: Trace) -> dict[str, int]:
    """Kind → the highest reading of any rank; 0 where nothing was read."""
    highest = dict.fromkeys(KINDS, 0)
    for values in _readings(trace):
        for kind in KINDS:
            highest[kind] = max(highest[kind], values.get(kind, 0))
    return highest


def device_peak(trace: Trace) -> int:
    """The highest sum, at one moment, of the kinds that lie on the compute device."""
    return max((sum(values.get(kind, 0) for kind in ON_DEVICE) for values in _readings(trace)), default=0)


def _readings(trace: Trace) -> Iterable[Mapping[str, int]]:
    return (dict(sample.values) for sample in trace.counters if sample.name == COUNTER)


def host_peak() -> int:
    """The highest resident size of this process so far, in bytes: everything it ever did, imports included."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


_TRACED = "accounted: sizes of tensors in the traced steps"
_HOW = {
    "tables": "accounted: index and records of the host tier, cores of tensor-train tables, at the end",
    "buffers": "accounted: the device tier's own figure",
    "batches in flight": f"{_TRACED}; samples, their keys and places",
    "activations": f"estimated: what autograd saves in FORWARD, each storage once, every {COUNT_EVERY}th traced step",
    "exchange": f"{_TRACED}; rows, their gradients, the dense gradients being reduced",
}
DENSE, DEVICE, HOST = "dense part", "device, all", "host, all"


class Ends(NamedTuple):
    """What is read once, at the end of a run, in bytes."""

    tables: int
    dense: int  # weights, gradients and the optimizer's state
    allocator: int | None  # the device allocator's peak; None where the compute device is the CPU


def account(trace: Trace, ends: Ends) -> pd.DataFrame:
    """Columns kind, peak_bytes, how_obtained: a row a kind, then the dense part and the totals of device and host."""
    import pandas as pd

    highest = peaks(trace) | {"tables": ends.tables}
    rows = [Usage(kind, highest[kind], _HOW[kind]) for kind in KINDS]
    rows.append(Usage(DENSE, ends.dense, "accounted: weights, gradients and optimizer state at the end"))
    if ends.allocator is None:
        how = "accounted, on the CPU: the highest sum of the kinds but tables, which a device would have to hold"
        rows.append(Usage(DEVICE, device_peak(trace) + ends.dense, how))
    else:
        rows.append(Usage(DEVICE, ends.allocator, "measured: the device allocator's peak in this process"))
    rows.append(Usage(HOST, host_peak(), "measured: peak resident size of this process, all it ever did"))
    return pd.DataFrame(rows, columns=Usage._fields).astype({"peak_bytes": "int64"})


def totals(memory: pd.DataFrame) -> dict[str, int]:
    """The key figures of a run: `peak_host_bytes` and `peak_device_bytes`, from an account."""
    by_kind = memory.set_index("kind")["peak_bytes"]
    return {"peak_host_bytes": int(by_kind[HOST]), "peak_device_bytes": int(by_kind[DEVICE])}
