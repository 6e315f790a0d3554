"""Publishing: one manifest makes what all shards have written valid at once."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nestlab.embedding.checkpoint.durable import sync_folder
from nestlab.embedding.checkpoint.manifest import (
    BESIDE,
    FOLDER,
    NAME,
    Beside,
    FileEntry,
    Header,
    Manifest,
    Save,
    TableEntry,
    parse_save,
    read_manifest,
)
from nestlab.errors import UserError
from nestlab.files import write_atomic

SCRATCH = ".tmp-"
_OURS = re.compile(rf"{FOLDER.pattern}|{re.escape(SCRATCH)}\d{{6}}\.(?:\d+-of-\d+|{BESIDE})")
_MANIFEST_SCRATCH = re.compile(rf"\.{re.escape(NAME)}\..*\.tmp")


@dataclass(frozen=True)
class ShardFiles:
    """What one shard has written, not yet valid. Plain data: `to_json` and `from_json` take it from rank to rank.

    Attributes:
        shard: which one, from 0.
        base: digest of the newest save in the folder when this was written; empty: there was none.
        save: the save as far as this shard knows it.
    """

    shard: int
    base: str
    header: Header
    save: Save

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> ShardFiles:
        tree = json.loads(text)
        tables = tuple(TableEntry(**table) for table in tree["header"].pop("tables"))
        return ShardFiles(
            tree["shard"], tree["base"], Header(**tree["header"], tables=tables), parse_save(tree["save"])
        )


def publish(folder: str | Path, shards: Sequence[ShardFiles], beside: Beside | None = None) -> Save:
    """Makes what all shards have written the checkpoint in `folder`, then removes what no manifest names any more.

    Args:
        beside: what else becomes valid with it, in place of what the save before had (see `write_beside`).

    Raises:
        UserError: shards are missing or do not fit together, or another save was published since they were written.
    """
    folder, shards = Path(folder), sorted(shards, key=lambda part: part.shard)
    base = read_manifest(folder)
    _check_together(folder, shards, base)
    for file in beside.files if beside else ():
        _check_written(folder, file, "it was written")
    files = tuple(file for part in shards for file in part.save.files)
    saved = replace(shards[0].save, files=files, seconds=max(part.save.seconds for part in shards))
    before = base.saves if saved.kind == "increment" else ()
    manifest = Manifest(shards[0].header, (*before, saved), beside)
    with told(folder):
        write_atomic(folder / NAME, manifest.to_bytes())
        sync_folder(folder)
        _tidy(folder, manifest.folders)
    return saved


def _check_together(folder: Path, shards: list[ShardFiles], base: Manifest | None) -> None:
    first = shards[0] if shards else None
    if first is None or [part.shard for part in shards] != list(range(first.save.shards)):
        of = first.save.shards if first else "no"
        raise UserError(f"publish: {[part.shard for part in shards]} given of {of} shards; give each shard once")
    for part in shards:
        same = replace(part.save, files=(), seconds=0.0) == replace(first.save, files=(), seconds=0.0)
        if not same or (part.header, part.base) != (first.header, first.base):
            raise UserError(f"publish: shard {part.shard} was not saved together with shard 0; save all of them again")
        for file in part.save.files:
            _check_written(folder, file, f"shard {part.shard} wrote it")
    if first.base != (base.last.digest if base else ""):
        raise UserError(f"publish: another save into '{folder}' was published meanwhile; save again")


def _check_written(folder: Path, file: FileEntry, how: str) -> None:
    path = folder / file.path
    if not path.is_file() or path.stat().st_size != file.bytes:
        raise UserError(f"publish: '{path}' is not as {how}; save again, into a folder that all ranks share")


def _tidy(folder: Path, named: Sequence[str]) -> None:
    """Removes what killed saves and older chains left: only what bears a name that a save gives. The save is valid by
    now, whether this succeeds or not."""
    for name in sorted(os.listdir(folder)):
        if _OURS.fullmatch(name) and name not in named:
            shutil.rmtree(folder / name, ignore_errors=True)
        elif _MANIFEST_SCRATCH.fullmatch(name):
            with suppress(OSError):
                (folder / name).unlink()


@contextmanager
def told(folder: Path) -> Iterator[None]:
    """What the system refuses becomes one line."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"checkpoint: '{folder}' cannot be written ({why}); make room or name another folder") from None
