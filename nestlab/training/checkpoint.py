"""Checkpoint and restart of a training, on any number of ranks, between two steps.

A folder as `nestlab.embedding.checkpoint` writes it: the tables in shards, and beside the newest save the training's
own state (`beside`), both made valid by one manifest that is replaced as a whole. Whatever kills a save, the folder
holds the checkpoint before or the new one, never the tables of one with the weights of the other.

The state: dense parameters and their optimizer's state, cores of tensor-train tables, each rank's random generator and
buffers, the position of the first batch not trained, the curve so far, and the facts that a continued run must share.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors

from nestlab.embedding import EmbeddingStore
from nestlab.embedding import checkpoint as tables
from nestlab.embedding.checkpoint.manifest import Manifest, parse_save, require_manifest
from nestlab.embedding.checkpoint.saving import mark
from nestlab.errors import UserError
from nestlab.exchange import Channel, LocalTransport, Transport
from nestlab.models import RecModel
from nestlab.training import dense_state
from nestlab.training.dense_state import Tensors, under
from nestlab.training.facts import Facts, check_facts
from nestlab.training.gathering import together
from nestlab.training.state import State, curve_of, state_of
from nestlab.training.whole_tables import check_whole, gather_whole, load_whole

FORMAT = 1
FULL_EVERY = 10


@dataclass(frozen=True)
class Trained:
    """What a checkpoint holds the state of. No pipeline may have been made of them yet when it is restored: a pipeline
    asks the tables for their step number once, at its start."""

    model: RecModel
    optimizer: torch.optim.Optimizer
    transport: Transport = field(default_factory=LocalTransport)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


@dataclass(frozen=True)
class Checkpoints:
    """Where a training is saved, and how often.

    Args:
        every: steps from one save to the next. Before a save the pipeline runs empty.
        full_every: saves from one that holds all rows to the next; those between hold what changed since the one
            before. 1: each holds all.
        facts: what a continued run must agree in; see `restore`.
        run: the run that is filed meanwhile, which `run_of` names; need be known to rank 0 alone.
    """

    folder: Path
    trained: Trained
    every: int = 100
    full_every: int = FULL_EVERY
    facts: Facts = field(default_factory=dict)
    run: str = ""

    def __post_init__(self) -> None:
        for name in ("every", "full_every"):
            if getattr(self, name) < 1:
                raise UserError(f"checkpoint: {name}={getattr(self, name)}: it must be at least 1")

    def save(self, state: State) -> dict[str, Any]:
        """As the function `save`; a row for the history."""
        started = time.perf_counter()
        saved = save(self.folder, self.trained, state, self.facts, self.full_every, self.run)
        told = {"step": state.history.step, "number": saved.number, "kind": saved.kind}
        return {**told, "seconds": time.perf_counter() - started, "bytes": saved.nbytes}


def save(
    folder: str | Path,
    trained: Trained,
    state: State,
    facts: Facts | None = None,
    full_every: int = FULL_EVERY,
    run: str = "",
) -> tables.Save:
    """Saves between two steps; every rank calls it. The folder is one that all ranks see. See `Checkpoints`.

    With replica groups the tables are those of the first one: right after a synchronisation they are everyone's.

    Raises:
        RuntimeError: batches are in flight; drain first.
        UserError: the folder cannot be written; on every rank, and the checkpoint before is still there.
        RankFailed: another rank failed.
    """
    folder, transport, mesh = Path(folder), trained.transport, trained.transport.mesh
    store, owns = trained.model.embedding, trained.transport.mesh.replica == 0

    def write() -> str:
        incremental = _goes_on(folder, store, full_every)
        return tables.save_shard(store, folder, mesh.shard, mesh.shards, incremental).to_json() if owns else ""

    parts = together(transport, write)[: mesh.shards]
    own_of_ranks = _gather_own(trained)
    whole = gather_whole(store, transport)

    def publish() -> str:
        if mesh.rank != 0:
            return ""
        shards = [tables.ShardFiles.from_json(part) for part in parts]
        tensors, content = _pack(trained, state, facts or {}, own_of_ranks)
        content["run"] = run
        tensors |= {f"whole.{name}": value for name, value in whole.items()}
        beside = tables.write_beside(folder, shards[0].save.number, content, tensors)
        return json.dumps(asdict(tables.publish(folder, shards, beside)))

    saved = parse_save(json.loads(together(transport, publish)[0]))
    if owns:
        mark(store, saved)  # what `confirm` does, without asking a shared disk that may lag behind
    return saved


def check_folder(folder: str | Path) -> str:
    """Whether a checkpoint can be written, asked before a long training; leaves nothing behind. An empty text.

    Raises:
        UserError: the place is no folder, or nothing can be written there.
    """
    folder = Path(folder).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"checkpoint: '{there}' is a file, so that '{folder}' cannot be a folder; name another one")
    try:
        with tempfile.TemporaryFile(dir=there):
            return ""
    except OSError as error:
        raise UserError(
            f"checkpoint: nothing can be written to '{folder}' ({error.strerror}); name a folder that can be written"
        ) from None


def step_of(folder: str | Path, transport: Transport | None = None) -> int | None:
    """The step of the training in `folder`, as rank 0 sees it; None where there is no checkpoint. All ranks call it.

    Raises:
        UserError: the manifest is damaged, or it is of tables alone.
    """

    def look() -> str:
        content = content_of(folder) if transport.mesh.rank == 0 else None
        return "" if content is None else str(content["step"])

    transport = transport or LocalTransport()
    found = together(transport, look)[0]
    return int(found) if found else None


def content_of(folder: str | Path) -> dict[str, Any] | None:
    """What the newest checkpoint in `folder` says of its training (`step`, `facts`, `run` …), as this process sees it;
    None where there is none.

    Raises:
        UserError: the manifest is damaged, or it is of tables alone.
    """
    manifest = tables.read_manifest(folder)
    return None if manifest is None else _content(manifest, folder)


def run_of(folder: str | Path) -> str:
    """The run that saved the newest checkpoint in `folder`; empty where it names none, or there is no checkpoint."""
    return (content_of(folder) or {}).get("run", "")


def restore(folder: str | Path, trained: Trained, facts: Facts | None = None, ever_since: Facts | None = None) -> State:
    """Puts the newest checkpoint in `folder` into `trained`, whose tables are new; every rank calls it.

    The number of ranks may be another than at the save: the rows go where their keys belong now. Each rank then takes
    the random generator and the buffers that the rank of its number had; one that has no such predecessor takes rank
    0's buffers, and a generator seeded by its rank and the step.

    Args:
        facts: of this run; what was saved must have the same.
        ever_since: what a checkpoint had that does not name the fact, being older than it. Of `facts`, those that
            neither names are not compared.

    Raises:
        UserError: there is no checkpoint, it is damaged, of another model, or of a run that differs in one of `facts`.
            Tables, parameters and optimizer are as they were then, unless the records did not fit into memory.
        RankFailed: another rank failed.
    """
    folder, transport, mesh = Path(folder), trained.transport, trained.transport.mesh
    found: list[State] = []

    def read() -> str:
        manifest = require_manifest(folder)
        content = _content(manifest, folder)
        check_facts({**(ever_since or {}), **content["facts"]}, facts or {})
        tensors = tables.read_beside(folder, manifest.beside)
        dense = trained.model.dense
        dense_state.check_dense(dense, tensors)
        dense_state.check_optimizer(trained.optimizer, dense, content["optimizer"])
        check_whole(trained.model.embedding, under("whole", tensors))
        tables.load(trained.model.embedding, folder, mesh.shard, mesh.shards)
        load_whole(trained.model.embedding, under("whole", tensors))
        dense_state.load_dense(dense, tensors)
        dense_state.load_optimizer(trained.optimizer, tensors, content["optimizer"])
        dense_state.load_rank_tensors(dense, trained.device, _own(tensors, mesh.rank, content))
        found.append(state_of(content, tensors))
        return ""

    together(transport, read)
    return found[0]


def _goes_on(folder: Path, store: EmbeddingStore, full_every: int) -> bool:
    """Whether the next save is an increment: this store made or loaded the newest one, and the chain is short."""
    point, manifest = store.save_point, tables.read_manifest(folder)
    if point is None or manifest is None or manifest.last.digest != point.digest:
        return False
    return len(manifest.saves) < full_every


def _gather_own(trained: Trained) -> list[Tensors]:
    """What each rank has of its own, by rank. Equal shapes everywhere: one collective."""
    own = torch.frombuffer(
        bytearray(to_safetensors(dense_state.rank_tensors(trained.model.dense, trained.device))), dtype=torch.uint8
    )
    rows = trained.transport.all_gather(Channel.KEYS, own)
    return [from_safetensors(row.numpy().tobytes()) for row in rows]


def _pack(trained: Trained, state: State, facts: Facts, own_of_ranks: list[Tensors]) -> tuple[Tensors, dict[str, Any]]:
    dense, history = trained.model.dense, state.history
    tensors, scalars = dense_state.optimizer_state(trained.optimizer, dense)
    tensors |= dense_state.dense_tensors(dense)
    for rank, own in enumerate(own_of_ranks):
        tensors |= {f"rank.{rank}.{name}": value for name, value in own.items()}
    tensors |= curve_of(history)
    content = {
        "format": FORMAT,
        "step": history.step,
        "position": {"epoch": state.position.epoch, "batch": state.position.batch},
        "world_size": trained.transport.mesh.world_size,
        "samples": history.samples,
        "looks": list((history.evaluations or [{}])[0]),
        "train_seconds": history.train_seconds,
        "optimizer": scalars,
        "facts": dict(facts),
    }
    return tensors, content


def _own(tensors: Tensors, rank: int, content: dict[str, Any]) -> Tensors:
    """What this rank takes of what the ranks of the save had."""
    if rank < content["world_size"]:
        return under(f"rank.{rank}", tensors)
    seed = int(np.random.SeedSequence([content["step"], rank]).generate_state(1, np.uint64)[0] >> 1)
    buffers = {name: value for name, value in under("rank.0", tensors).items() if name.startswith("buffer.")}
    return {**buffers, "rng.cpu": torch.Generator().manual_seed(seed).get_state()}


def _content(manifest: Manifest, folder: str | Path) -> dict[str, Any]:
    if manifest.beside is None:
        raise UserError(f"checkpoint: '{folder}' holds tables alone, no training; name another folder")
    content = manifest.beside.content
    if content.get("format") != FORMAT:
        raise UserError(
            f"checkpoint: the training in '{folder}' has format {content.get('format')}, and this version reads "
            f"{FORMAT}; use its version"
        )
    return content
