"""The data sets by name: where each is looked for, what to do when it is absent, and how it is opened.

Another data set is one more `register(Source(...))`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from nestlab.data.dataset import Dataset
from nestlab.data.prepare import PrepareOptions, Progress
from nestlab.errors import UserError


@dataclass(frozen=True)
class Request:
    """What a caller of `open_dataset` asked for. `rows`: None stands for all, or the twin's default."""

    root: Path
    rows: int | None
    seed: int
    options: PrepareOptions
    prepared: Path
    file: Path | None = None
    progress: Progress = lambda message: None

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise UserError(f"rows={self.rows}: choose 1 or more, or None")
        if self.seed < 0:
            raise UserError(f"seed={self.seed}: choose 0 or more")


@dataclass(frozen=True)
class Source:
    """A data set that can be opened by name.

    Attributes:
        kind: `real` or `synthetic`.
        places: paths below the root, in words, for messages.
        remedy: what the user can do where it is absent.
        find: root -> the raw files in the order of time, empty where there are none.
        open: opens it; raises UserError.
        without: root -> what the data set has and this copy lacks, by file name.
        twin: a real data set's: the name of its synthetic twin.
        write: a twin's: (out, rows, seed, progress) -> the raw files that it wrote, its truth.json last.
        histories: whether it has the events of users, in the order of time.
        conventions: names of the ways in which raw values may become inputs, the default first; empty: there is one.
    """

    name: str
    kind: str
    places: str
    remedy: str
    find: Callable[[Path], list[Path]]
    open: Callable[[Source, Request], Dataset]
    without: Callable[[Path], list[str]] = lambda root: []
    twin: str = ""
    write: Callable[[Path, int, int, Progress], list[Path]] | None = None
    histories: bool = False
    conventions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """One line of `nestlab doctor`: a data set, where it was looked for, and what was found."""

    name: str
    kind: str
    found: bool
    path: str
    detail: str


_SOURCES: dict[str, Source] = {}
_FAMILIES: dict[str, tuple[str, ...]] = {}


def register(source: Source) -> None:
    _SOURCES[source.name] = source


def register_family(name: str, members: Iterable[str]) -> None:
    """`name` opens the first of `members` that is there; the last one, a synthetic twin, always is."""
    _FAMILIES[name] = tuple(members)


def names() -> list[str]:
    """Every name that `resolve` takes, each family before its members."""
    grouped = [name for family, members in _FAMILIES.items() for name in (family, *members)]
    return list(dict.fromkeys([*grouped, *_SOURCES]))


def twin(name: str) -> Source | None:
    """The synthetic twin called `name`, or of the data set or family `name`; None where there is none."""
    source = _SOURCES.get(_FAMILIES[name][-1] if name in _FAMILIES else name)
    if source is not None and source.twin:
        source = _SOURCES[source.twin]
    return source if source is not None and source.write is not None else None


def resolve(name: str, root: Path) -> Source:
    """The source that `name` stands for, given what lies under `root`.

    Raises:
        UserError: there is no such name.
    """
    if name in _FAMILIES:
        *real, twin = (_SOURCES[member] for member in _FAMILIES[name])
        return next((source for source in real if source.find(root)), twin)
    if name not in _SOURCES:
        raise UserError(f"data set '{name}' is unknown: choose one of {', '.join(names())}")
    return _SOURCES[name]


def available(root: str | Path = "datasets") -> list[Found]:
    """What was found under `root` and what was not, one record a data set."""
    return [_look(source, Path(root)) for source in _SOURCES.values()]


def _look(source: Source, root: Path) -> Found:
    if source.kind == "synthetic":
        return Found(source.name, source.kind, True, "made on demand", source.remedy)
    files = source.find(root)
    if not files:
        return Found(source.name, source.kind, False, f"{root}: {source.places}", source.remedy)
    detail = f"{len(files)} file(s), {sum(file.stat().st_size for file in files):,} bytes"
    if without := source.without(root):
        detail += f": {', '.join(file.name for file in files)}; without {', '.join(without)}"
    return Found(source.name, source.kind, True, str(files[0]), detail)
