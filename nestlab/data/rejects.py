"""Lines that cannot be read: why, where, and the file that keeps them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

NAME = "rejects.tsv"


class BrokenLine(Exception):
    """A line that cannot be read: `reason` is one of a few fixed phrases, `column` the field at fault or ""."""

    def __init__(self, reason: str, column: str = "") -> None:
        super().__init__(f"{reason}: {column}" if column else reason)
        self.reason = reason
        self.column = column


@dataclass(frozen=True)
class Reject:
    """A line set aside. `line` counts from 1 within its file."""

    line: int
    reason: str
    column: str
    raw: bytes


class Rejects:
    """Counts what is set aside, and writes it down: file, line, reason, column, raw line, separated by tabs.

    Attributes:
        reasons: lines by reason.
        first: where the first of them stands and what is wrong with it, in words; "" while there is none.
    """

    def __init__(self, file: BinaryIO, state: dict[str, Any] | None = None) -> None:
        """`state`: what `state()` said when an earlier process had written as much as the file holds now."""
        self._file = file
        self.reasons: Counter[str] = Counter(state["reasons"] if state else {})
        self.first = state["first"] if state else ""

    def state(self) -> dict[str, Any]:
        """What another process needs to go on; everything is handed to the kernel."""
        self._file.flush()
        return {"reasons": dict(self.reasons), "first": self.first, "bytes": self._file.tell()}

    @property
    def total(self) -> int:
        return self.reasons.total()

    def add(self, path: Path, found: Iterable[Reject]) -> None:
        for reject in found:
            self.reasons[reject.reason] += 1
            self.first = self.first or f"{path.name} line {reject.line}: {reject.reason}"
            head = f"{path.name}\t{reject.line}\t{reject.reason}\t{reject.column}\t"
            self._file.write(head.encode() + reject.raw + b"\n")

    def facts(self) -> dict[str, object]:
        """For the manifest."""
        return {"rows_rejected": self.total, "rejected": dict(sorted(self.reasons.items()))}


@contextmanager
def reopened(folder: Path, entries: Sequence[dict[str, Any]]) -> Iterator[BinaryIO]:
    """The file in `folder`, as long as the last of a journal's entries says that has `rejects`; else empty."""
    known = [entry["rejects"]["bytes"] for entry in entries if "rejects" in entry]
    with open(folder / NAME, "r+b" if known else "wb") as file:
        file.truncate(known[-1] if known else 0)
        file.seek(0, 2)
        yield file
