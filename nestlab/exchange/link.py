"""An emulated link: on one machine a transfer takes at least as long as on the link described.

Every number obtained under it is labelled `emulated link`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nestlab.errors import UserError

_TERM = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?) *([a-zµ]+)(?:/s)?")
_MICROSECONDS = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_GIGABITS = {"kbit": 1e-6, "mbit": 1e-3, "gbit": 1.0, "tbit": 1e3}
_FORM = "write it as latency and bandwidth, for example 100us,16gbit"


@dataclass(frozen=True)
class LinkModel:
    """A link by its two figures.

    Args:
        latency_us: microseconds that every transfer takes before its first byte, 0 or more.
        gbit_s: bandwidth, 10⁹ bits a second, above 0.

    Raises:
        UserError: a figure out of range.
    """

    latency_us: float
    gbit_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.latency_us < float("inf"):
            raise UserError(f"link: latency {self.latency_us} us: it must be 0 or more")
        if not 0 < self.gbit_s < float("inf"):
            raise UserError(f"link: bandwidth {self.gbit_s} gbit/s: it must be above 0")

    @classmethod
    def parse(cls, text: str) -> LinkModel:
        """From `100us,16gbit`: latency in ns, us, ms or s, bandwidth in kbit, mbit, gbit or tbit a second.

        Raises:
            UserError: not one latency and one bandwidth.
        """
        found: dict[str, float] = {}
        for item in text.lower().split(","):
            name, value = _term(item.strip(), text)
            if name in found:
                raise UserError(f"link: '{text}' gives its {name} twice; {_FORM}")
            found[name] = value
        if len(found) < 2:
            missing = "bandwidth" if "latency" in found else "latency"
            raise UserError(f"link: '{text}' gives no {missing}; {_FORM}")
        return cls(found["latency"], found["bandwidth"])

    @property
    def latency_s(self) -> float:
        return self.latency_us * 1e-6

    def wire_s(self, nbytes: int) -> float:
        """Seconds that so many bytes occupy the link, without latency."""
        return nbytes * 8e-9 / self.gbit_s

    def __str__(self) -> str:
        return f"{self.latency_us:.12g}us,{self.gbit_s:.12g}gbit"


def _term(item: str, text: str) -> tuple[str, float]:
    match = _TERM.fullmatch(item)
    unit = match[2] if match else ""
    for name, units in (("latency", _MICROSECONDS), ("bandwidth", _GIGABITS)):
        if unit in units:
            try:
                return name, float(match[1]) * units[unit]
            except ValueError:
                break
    within = f" in '{text}'" if "," in text else ""
    raise UserError(f"link: '{item}'{within} is no latency and no bandwidth; {_FORM}")


@dataclass
class LinkCounters:
    """What went over a link: transfers, bytes, and the seconds from each request to its end, summed.

    Transfers that wait for each other count their waiting too, so `seconds` can be more than the time that passed.
    """

    transfers: int = 0
    nbytes: int = 0
    seconds: float = 0.0


class Link:
    """One link, which any number of threads use: its bytes are one queue.

    A transfer's bytes occupy the link from the moment the bytes before them are through; its latency comes on top and
    overlaps with other transfers, as on a wire. Whoever waits sleeps, so that the CPU is free; a sleep may last some
    tens of microseconds longer than asked for. Where the copy itself takes longer than the link would, the copy counts.

    Args:
        model: None for a link that is only counted.
    """

    def __init__(self, model: LinkModel | None = None) -> None:
        self.model = model
        self.counters = LinkCounters()
        self._lock = threading.Lock()
        self._free_at = 0.0  # when the last byte accepted so far is through

    @contextmanager
    def transfer(self, nbytes: int) -> Iterator[None]:
        """The copy of `nbytes` happens in the body; the block ends when it would be through on the link.

        An error in the body is raised at once and nothing is counted. The link stays occupied for the bytes announced.
        """
        begin = time.perf_counter()
        end = self._accept(nbytes, begin)
        yield
        while (left := end - time.perf_counter()) > 0:  # again where a sleep ended early
            time.sleep(left)
        with self._lock:
            self.counters.transfers += 1
            self.counters.nbytes += nbytes
            self.counters.seconds += time.perf_counter() - begin

    def _accept(self, nbytes: int, now: float) -> float:
        """Takes the transfer into the queue; the moment at which it ends."""
        if nbytes < 0:
            raise ValueError(f"link: a transfer of {nbytes} bytes")
        if self.model is None:
            return now
        with self._lock:
            self._free_at = max(now, self._free_at) + self.model.wire_s(nbytes)
            return self._free_at + self.model.latency_s
