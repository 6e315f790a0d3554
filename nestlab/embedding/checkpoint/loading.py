"""Loading: everything is checked before anything changes; then a full save and its increments, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import load as from_safetensors

from nestlab.embedding.checkpoint.durable import sha256_of
from nestlab.embedding.checkpoint.fitting import check_fits, reorder, takes_admission
from nestlab.embedding.checkpoint.manifest import FileEntry, Save, require_manifest
from nestlab.embedding.checkpoint.parts import keys_of
from nestlab.embedding.checkpoint.saving import header_of, mark
from nestlab.embedding.host.tier import HostTier
from nestlab.embedding.keyset import KeySet
from nestlab.embedding.sharding import owner
from nestlab.embedding.store import EmbeddingStore
from nestlab.errors import UserError

Arrays = dict[str, np.ndarray]


def load(store: EmbeddingStore, folder: str | Path, shard: int = 0, of: int = 1) -> Save:
    """Fills an empty store with the keys of the checkpoint in `folder` that belong to `shard` of `of`.

    Whatever number of shards saved it, and whatever tiers they had. Training then goes on as if there had been no save:
    records, optimizer states, batch and step counts, last uses, and what admission and eviction count are as they were.
    (`Counters` are not: they count what this store did.) Rules of admission and eviction may differ from the saved
    ones: a warning says what is dropped then. Records of another dtype are refused, not converted.

    Returns:
        The newest save of the chain.

    Raises:
        RuntimeError: batches are in flight.
        UserError: a file is missing or damaged, or tables, widths, optimizer or dtype differ; the store was not changed
            then. Also if the records do not fit into host memory: the store is empty then, as before.
    """
    if not 0 <= shard < of:
        raise UserError(f"load: shard {shard} of {of}; count from 0 to {of - 1}")
    store.require_quiet("load")
    if store.counters.batches or any(len(host.index) for host in store.hosts):
        raise UserError("load: the store has been used already; load into a new one")
    folder = Path(folder)
    manifest = require_manifest(folder)
    check_fits(manifest.header, header_of(store))
    wanted = [_needed(save, shard, of) for save in manifest.saves]
    verify(folder, [file for files in wanted for file in files])
    filling = _Filling(store, folder, shard, of)
    try:
        filling.fill(wanted)
        if takes_admission(manifest.header, header_of(store)):
            filling.admission([file for file in wanted[-1] if file.role == "admission"])
    except BaseException:
        filling.empty()
        raise
    store.counters.batches, store.last_step = manifest.last.batches, manifest.last.step
    mark(store, manifest.last)
    return manifest.last


def _needed(save: Save, shard: int, of: int) -> list[FileEntry]:
    """A save by as many shards has this one's keys in this one's files, and nowhere else."""
    return [file for file in save.files if save.shards != of or file.shard == shard]


def verify(folder: Path, files: Iterable[FileEntry]) -> None:
    """
    Raises:
        UserError: a file is missing, damaged or cannot be read.
    """
    for file in files:
        path, remedy = folder / file.path, "use another copy or checkpoint"
        try:
            if (size := path.stat().st_size) != file.bytes:
                raise UserError(f"checkpoint: '{path}' has {size:,} bytes, not {file.bytes:,}; {remedy}")
            if sha256_of(path) != file.sha256:
                raise UserError(f"checkpoint: '{path}' is damaged (its checksum differs); {remedy}")
        except FileNotFoundError:
            raise UserError(f"checkpoint: '{path}' is missing; {remedy}") from None
        except OSError as error:
            raise UserError(f"checkpoint: '{path}' cannot be read ({error.strerror}); {remedy}") from None


class _Filling:
    """A store, and which part of which files is put into it."""

    def __init__(self, store: EmbeddingStore, folder: Path, shard: int, of: int) -> None:
        self._store, self._folder, self._shard, self._of = store, folder, shard, of
        self._places = {t.name: (host, i) for host in store.hosts for i, t in enumerate(host.group.tables)}

    def fill(self, saves: list[list[FileEntry]]) -> None:
        """Records and scores. Within a save, keys are removed first: those that came back are among its rows."""
        for files in saves:
            for file in _of_role(files, "removed"):
                host, arrays = self._read(file)
                host.drop(self._keys(file, arrays["ids"]))
            for file in _of_role(files, "rows"):
                self._put(file)
        for file in _of_role(saves[-1], "scores"):
            host, arrays = self._read(file)
            if host.eviction is not None and host.eviction.stats is not None:
                host.eviction.stats.load_state(host.find(self._keys(file, arrays["ids"])), arrays)

    def admission(self, files: list[FileEntry]) -> None:
        """Of what all shards counted, what belongs here."""
        for host in self._store.hosts:
            names = [table.name for table in host.group.tables]
            parts = [file for file in files if set(file.tables) == set(names)]
            states = [reorder(self._arrays(file), file.tables, names) for file in parts]
            rule = type(host.admission)
            host.admission.load_state(rule.select(rule.merge(states), lambda ids, t, n=names: self._owned(ids, n[t])))

    def empty(self) -> None:
        for host in self._store.hosts:
            keys = keys_of(host)
            host.drop(KeySet(keys.ids, keys.offsets))

    def _put(self, file: FileEntry) -> None:
        host, arrays = self._read(file)
        for part in _chunks(arrays, len(host.memory.records)):
            records = np.concatenate((part["weight"], part["state"]), axis=1)
            host.put(self._keys(file, part["ids"]), records, part["last_seen"])

    def _read(self, file: FileEntry) -> tuple[HostTier, Arrays]:
        """The keys in a file that belong here."""
        arrays = self._arrays(file)
        owned = self._owned(arrays["ids"], file.tables[0])
        host, _ = self._places[file.tables[0]]
        return host, {name: array[owned] for name, array in arrays.items()}

    def _arrays(self, file: FileEntry) -> Arrays:
        return from_safetensors((self._folder / file.path).read_bytes())

    def _owned(self, ids: np.ndarray, table: str) -> np.ndarray:
        """[n] bool."""
        return owner(ids, table, self._of) == self._shard

    def _keys(self, file: FileEntry, ids: np.ndarray) -> KeySet:
        host, number = self._places[file.tables[0]]
        offsets = np.zeros(len(host.group.tables) + 1, dtype=np.int64)
        offsets[number + 1 :] = ids.size
        return KeySet(ids, offsets)


def _of_role(files: list[FileEntry], role: str) -> list[FileEntry]:
    return [file for file in files if file.role == role]


def _chunks(arrays: Arrays, most: int) -> Iterator[Arrays]:
    for begin in range(0, arrays["ids"].size, most):
        yield {name: array[begin : begin + most] for name, array in arrays.items()}
