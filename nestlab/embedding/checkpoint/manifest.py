"""`manifest.json`: what a checkpoint consists of. Written last, replaced as a whole: it alone says what is valid.

    {"format": 1, "dtype": "float32", "optimizer": "adagrad", "seed": 0,
     "features": {"admit": "none", "evict": "none"},
     "tables": [{"name", "dim", "state_width", "bound", "group"}, …],
     "saves": [{"number", "kind": "full" | "increment", "step", "batches", "shards", "after", "seconds", "digest",
                "files": [{"path", "role", "tables", "shard", "rows", "bytes", "sha256"}, …]}, …],
     "beside": {"content": {…}, "files": […]},
     "checksum": sha256 of the rest as JSON with sorted keys and without spaces}

`saves` is a full save and the increments upon it, in order. `after` is the digest of the save before. A file's role is
`rows`, `removed`, `scores` or `admission`; see `parts`. `beside`, where it is there, is what a training keeps with the
newest save (see `beside`): one file makes both valid, so that they never disagree.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from nestlab.errors import UserError

FORMAT = 1
NAME = "manifest.json"
BESIDE = "beside"
FOLDER = re.compile(rf"\d{{6}}\.(?:\d+-of-\d+|{BESIDE})\.[0-9a-f]{{12}}")  # save, shard and what is in it
_PATH = re.compile(FOLDER.pattern + r"/[a-z0-9.-]+")

Role = Literal["rows", "removed", "scores", "admission", "beside"]


@dataclass(frozen=True)
class FileEntry:
    """One file: `path` from the manifest's folder; `rows`: keys in it; `tables`: whose; `shard`: who wrote it."""

    path: str
    role: Role
    tables: tuple[str, ...]
    shard: int
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class TableEntry:
    """One table: `bound` of its initial weights; `group`: number of the tables it shares an address space with."""

    name: str
    dim: int
    state_width: int
    bound: float
    group: int


@dataclass(frozen=True)
class Header:
    """What all saves of a chain have in common.

    Attributes:
        features: `admit` and `evict` of the rules.
    """

    dtype: str
    optimizer: str
    seed: int
    features: dict[str, str]
    tables: tuple[TableEntry, ...]


@dataclass(frozen=True)
class Save:
    """One full or incremental save.

    Attributes:
        number: from 1, counting on with every save into the folder.
        step, batches: of the store: number of the last update, and its count of training batches.
        shards: how many wrote it.
        after: digest of the save before it in the chain; empty for a full one.
        seconds: the longest that a shard took to write it.
    """

    number: int
    kind: Literal["full", "increment"]
    step: int
    batches: int
    shards: int
    after: str
    seconds: float
    files: tuple[FileEntry, ...]

    @property
    def digest(self) -> str:
        """What was saved and upon what, the time it took left out: equal for equal stores."""
        content = asdict(self)
        del content["seconds"]
        return digest_of(content)

    def count(self, role: Role) -> int:
        """Keys in the files of a role."""
        return sum(file.rows for file in self.files if file.role == role)

    @property
    def nbytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Beside:
    """What whoever trains the tables keeps with the newest save, and only with it.

    Attributes:
        content: anything that JSON can hold.
        files: of role `beside`, of no table.
    """

    content: dict[str, Any]
    files: tuple[FileEntry, ...]


@dataclass(frozen=True)
class Manifest:
    header: Header
    saves: tuple[Save, ...]
    beside: Beside | None = None

    @property
    def last(self) -> Save:
        return self.saves[-1]

    @property
    def folders(self) -> list[str]:
        """The sub-folders it names."""
        files = [file for save in self.saves for file in save.files] + list(self.beside.files if self.beside else ())
        return sorted({file.path.split("/")[0] for file in files})

    def to_bytes(self) -> bytes:
        saves = [{**asdict(save), "digest": save.digest} for save in self.saves]
        content = {"format": FORMAT, **asdict(self.header), "saves": saves}
        if self.beside is not None:
            content["beside"] = asdict(self.beside)
        return (json.dumps({**content, "checksum": digest_of(content)}, indent=1) + "\n").encode()

    @staticmethod
    def from_bytes(content: bytes, path: Path) -> Manifest:
        """
        Raises:
            UserError: the content is no manifest of this format, or damaged; `path` is for the message.
        """
        try:
            tree = json.loads(content)
            form, checksum = tree.pop("format"), tree.pop("checksum")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise UserError(f"checkpoint: '{path}' is damaged or no manifest; use another checkpoint") from None
        if form != FORMAT:
            raise UserError(f"checkpoint: '{path}' has format {form}, and this version reads {FORMAT}; use its version")
        if checksum != digest_of({"format": form, **tree}):
            raise UserError(f"checkpoint: '{path}' is damaged (its checksum differs); use another copy or checkpoint")
        try:
            return _parse(tree)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"checkpoint: '{path}' is no manifest that NestLab wrote ({error})") from None


def read_manifest(folder: str | Path) -> Manifest | None:
    """None where the folder has none.

    Raises:
        UserError: it is damaged, or cannot be read.
    """
    path = Path(folder) / NAME
    try:
        return Manifest.from_bytes(path.read_bytes(), path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"checkpoint: '{path}' cannot be read ({error.strerror})") from None


def require_manifest(folder: str | Path) -> Manifest:
    """As `read_manifest`.

    Raises:
        UserError: also where there is none.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise UserError(f"checkpoint: there is none in '{folder}' ({NAME} is not there); name a folder with one")
    return manifest


def digest_of(content: Any) -> str:
    """sha256 of the content as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _parse(tree: dict[str, Any]) -> Manifest:
    header = {name: tree[name] for name in (field.name for field in fields(Header))}
    header["tables"] = tuple(TableEntry(**table) for table in header["tables"])
    saves = tuple(parse_save(save) for save in tree["saves"])
    if not saves:
        raise ValueError("it names no save")
    beside = tree.get("beside")
    if beside is not None:
        beside = Beside(dict(beside["content"]), _parse_files(beside["files"]))
    return Manifest(Header(**header), saves, beside)


def parse_save(tree: dict[str, Any]) -> Save:
    """What `asdict` made of a save, or its JSON."""
    files = _parse_files(tree["files"])
    return Save(**{**{name: tree[name] for name in (field.name for field in fields(Save))}, "files": files})


def _parse_files(trees: list[dict[str, Any]]) -> tuple[FileEntry, ...]:
    files = tuple(FileEntry(**{**file, "tables": tuple(file["tables"])}) for file in trees)
    for file in files:
        if not _PATH.fullmatch(file.path):
            raise ValueError(f"the path '{file.path}' is none of a part")
    return files
