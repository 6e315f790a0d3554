"""Saving: each shard writes a folder of its own under a temporary name, and the manifest makes them valid at once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save as to_safetensors

from nestlab.embedding.checkpoint.durable import new_folder, put_in_place, write_file
from nestlab.embedding.checkpoint.manifest import (
    FileEntry,
    Header,
    Manifest,
    Save,
    TableEntry,
    digest_of,
    read_manifest,
)
from nestlab.embedding.checkpoint.parts import Piece, pieces
from nestlab.embedding.checkpoint.publishing import SCRATCH, ShardFiles, publish, told
from nestlab.embedding.saved import KeyLog, SavePoint
from nestlab.embedding.sharding import owner
from nestlab.embedding.store import EmbeddingStore
from nestlab.errors import UserError


def save(store: EmbeddingStore, folder: str | Path, incremental: bool = False) -> Save:
    """Saves a store that is the only shard, all of it or (`incremental`) what changed since its last save there.

    Whatever kills it, the checkpoint before stays loadable.

    Raises:
        RuntimeError: batches are in flight, whose keys would be among those saved, untrained.
        UserError: the folder cannot be written, `incremental` does not continue the save in it, or a table is a
            tensor train.
    """
    if store.whole.configs:
        raise UserError(
            f"save: table '{store.whole.configs[0].name}' is a tensor train, whose cores are no rows; save them with "
            "nestlab.embedding.checkpoint.tensor_train.save_cores, or the whole training with nestlab.training"
        )
    publish(folder, [save_shard(store, folder, incremental=incremental)])
    return confirm(store, folder)


def save_shard(
    store: EmbeddingStore, folder: str | Path, shard: int = 0, of: int = 1, incremental: bool = False
) -> ShardFiles:
    """Writes the part of one shard. Nothing is valid before all shards have written theirs and one of them publishes.

    On many ranks: `save_shard` on each, a barrier, `publish` on one, a barrier, `confirm` on each.

    Raises:
        RuntimeError, UserError: as `save`; also if the store holds keys of other shards (see `sharding.owner`).
    """
    if not 0 <= shard < of:
        raise UserError(f"save: shard {shard} of {of}; count from 0 to {of - 1}")
    store.require_quiet("save")
    begin, folder = time.perf_counter(), Path(folder)
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        base = read_manifest(folder)
        if incremental:
            _check_continues(store, base, folder)
        store.flush()
        number = base.last.number + 1 if base else 1
        since = store.save_point.batches if incremental else None
        files = _write(pieces(store, since), folder, number, (shard, of))
    result = Save(
        number=number,
        kind="increment" if incremental else "full",
        step=store.last_step,
        batches=store.counters.batches,
        shards=of,
        after=base.last.digest if incremental else "",
        seconds=round(time.perf_counter() - begin, 6),
        files=files,
    )
    return ShardFiles(shard, base.last.digest if base else "", header_of(store), result)


def confirm(store: EmbeddingStore, folder: str | Path) -> Save:
    """Tells a store that the save it took part in is published: the next increment begins here.

    Raises:
        UserError: the newest save in `folder` is not of this moment.
    """
    manifest = read_manifest(folder)
    if manifest is None or manifest.last.batches != store.counters.batches or manifest.last.step != store.last_step:
        raise UserError(f"save: the newest save in '{folder}' is not of this step; confirm right after publish")
    mark(store, manifest.last)
    return manifest.last


def mark(store: EmbeddingStore, saved: Save) -> None:
    """The store is now what this save says: changes count from here."""
    store.save_point = SavePoint(saved.digest, saved.batches)
    for host in store.hosts:
        host.removed = KeyLog(len(host.group.tables))


def header_of(store: EmbeddingStore) -> Header:
    rules = store.options.features
    tables = tuple(
        TableEntry(table.name, group.dim, group.state_width, float(table.bound), group.number)
        for group in store.groups
        for table in group.tables
    )
    dtype = str(store.dtype).removeprefix("torch.")
    return Header(dtype, store.optimizer.name, store.seed, {"admit": rules.admit, "evict": rules.evict}, tables)


def _write(content: Iterator[Piece], folder: Path, number: int, who: tuple[int, int]) -> tuple[FileEntry, ...]:
    """The folder's name says what is in it, so that a shard that writes twice before publishing overwrites nothing."""
    stem = f"{number:06d}.{who[0]}-of-{who[1]}"
    scratch = new_folder(folder / f"{SCRATCH}{stem}")
    try:
        files = [_write_piece(scratch, piece, i, who) for i, piece in enumerate(content)]
        name = f"{stem}.{digest_of([asdict(file) for file in files])[:12]}"
        put_in_place(scratch, folder / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return tuple(replace(file, path=f"{name}/{file.path}") for file in files)


def _write_piece(scratch: Path, piece: Piece, number: int, who: tuple[int, int]) -> FileEntry:
    if piece.role == "rows":
        _check_owner(piece, *who)
    file = f"{number:06d}-{piece.role}.safetensors"
    content = to_safetensors({key: np.ascontiguousarray(array) for key, array in piece.arrays.items()})
    return FileEntry(
        path=file,
        role=piece.role,
        tables=piece.tables,
        shard=who[0],
        rows=piece.rows,
        bytes=len(content),
        sha256=write_file(scratch / file, content),
    )


def _check_owner(piece: Piece, shard: int, of: int) -> None:
    ids = piece.arrays["ids"]
    owners = owner(ids, piece.tables[0], of)
    if (wrong := np.flatnonzero(owners != shard)).size:
        raise UserError(
            f"save: shard {shard} of {of} holds id {ids[wrong[0]]} of table '{piece.tables[0]}', which belongs to "
            f"shard {owners[wrong[0]]}; shard keys by nestlab.embedding.sharding.owner"
        )


def _check_continues(store: EmbeddingStore, base: Manifest | None, folder: Path) -> None:
    if base is None or store.save_point is None or base.last.digest != store.save_point.digest:
        raise UserError(
            f"save: an increment must follow this store's own last save, and that is not the newest one in '{folder}'; "
            "make a full save first (incremental=False)"
        )
    if base.header != header_of(store):
        raise UserError(f"save: the save in '{folder}' was made with other settings; make a full save first")
