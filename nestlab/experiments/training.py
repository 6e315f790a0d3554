"""`nestlab train`: one training run from the command line, on one rank or on each of many.

Rank 0 alone writes the run folder, prints and exports; the others are silent but for errors, which name their rank.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nestlab import paths, results
from nestlab.errors import RankFailed, UserError, interrupted
from nestlab.exchange import Transport
from nestlab.experiments.kept import train_and_keep
from nestlab.experiments.stopping import Stopping
from nestlab.launch import environment
from nestlab.launch.environment import tell_launcher
from nestlab.training import History, Recipe, SaveOptions, TrainOptions, assemble, check_target, connect, export_model
from nestlab.training.checkpoint import run_of
from nestlab.training.continuing import check_start
from nestlab.training.export import check_same
from nestlab.training.options import check_data
from nestlab.training.remarks import remarks

_FIRST_S = 0.3  # by which rank 0 comes first with an error that all ranks found


def train_from_options(options: dict[str, Any]) -> int:
    """Runs what the command line asked for; rank 0 leaves a run folder.

    Args:
        options: fields of `TrainOptions`; those that are None have the model's default. `checkpoint` (a folder),
            `checkpoint_every`, `checkpoint_full_every` and `restart` are those of `SaveOptions`. `export` is a folder
            for the trained model, or None; `results` is where the run goes.

    Returns:
        The exit status: 0 on success; where there are several ranks 1 after another rank's failure, 2 after an error of
        the user's, both told by then, and 130 after an interrupt. A signal may end the process: see `Stopping`.

    Raises:
        UserError: there is one rank, or the ranks have not met yet: then every rank raises it.
    """
    given = {name: value for name, value in options.items() if value is not None}
    export, results_dir = given.pop("export", None), given.pop("results", None) or paths.results_dir()
    saves = _save_options(given)
    train_options = TrainOptions.of(**given)
    check_data(train_options)  # before ranks meet
    check_start(saves, train_options)
    place = environment()
    rank, world_size = (0, 1) if place is None else (place.rank, place.world_size)
    with Stopping(rank, world_size) as stopping:
        try:
            with _connected(train_options, stopping) as transport:
                if rank == 0:
                    _lead(train_options, stopping, saves, export, results_dir)
                else:
                    _follow(train_options, transport, stopping, saves, export)
        except (UserError, RankFailed):
            if stopping.status is None:
                raise
            return stopping.status
    return 0


def _save_options(given: dict[str, Any]) -> SaveOptions | None:
    """Takes what belongs to it out of `given`."""
    folder = given.pop("checkpoint", None)
    rest = {"every": "checkpoint_every", "full_every": "checkpoint_full_every", "restart": "restart"}
    values = {name: given.pop(option) for name, option in rest.items() if option in given}
    if folder:
        return SaveOptions(Path(folder), **values)
    for name, value in values.items():
        if value:
            option = rest[name].replace("_", "-")
            raise UserError(f"train: --{option} is about a checkpoint; say where it lies with --checkpoint DIR")
    return None


def _lead(
    options: TrainOptions,
    stopping: Stopping,
    saves: SaveOptions | None,
    export: str | None,
    results_dir: str | Path,
) -> None:
    """Rank 0, or a process on its own."""
    transport = stopping.transport
    # Only a training that goes on replaces an export: its own, of before.
    target = check_target(export, replace=saves is not None and saves.restart) if export is not None else None
    params = options.parameters | {"world_size": transport.mesh.world_size}
    stated = {"seed": options.seed, "how": options.how, "via": "command line"}
    with results.start("train", params, results_dir=results_dir, **stated) as run, _ended(run, stopping):
        filed = None if saves is None else replace(saves, run=run.id)
        recipe = _watched(assemble(options, transport, filed, report=_say), stopping)
        description, (done, total) = _description(recipe), recipe.standing
        if target is not None:
            check_same(target, description)
        for line in remarks(recipe):
            _say(line)
        history, _, _ = train_and_keep(recipe, run)
        trained_by = run.id if done < total else run_of(saves.folder)
        if target is not None:
            _say(f"exported to {export_model(recipe.model, target, description, transport, trained_by)}")
            run.export(target)
        if done == total:  # beside the run that trained it another one would be a replicate of nothing
            run.discard()
            return
    if history.own_steps and history.train_seconds > 0:
        rate = history.samples / history.train_seconds
        _say(f"{history.samples:,} samples in {history.train_seconds:.1f} s: {rate:,.0f} samples/s")
    _say(f"run {run.path}")


@contextmanager
def _ended(run: results.Run, stopping: Stopping) -> Iterator[None]:
    """What the run says of an end before its time. One that never began, by the user's error, leaves no folder."""
    stopping.run = run
    try:
        yield
    except BaseException as error:
        if interrupted(error):
            run.finish("killed", exception=f"interrupted {stopping.standing}", exit_code=130)
        elif isinstance(error, RankFailed):
            run.finish("failed", exception=f"{_of_rank(error)}; stopped {stopping.standing}")
        elif isinstance(error, UserError) and (stopping.saving is None or not stopping.saving.history.own_steps):
            run.discard()
        raise
    finally:
        stopping.run = None


def _follow(
    options: TrainOptions, transport: Transport, stopping: Stopping, saves: SaveOptions | None, export: str | None
) -> None:
    """What the other ranks do: their part of every collective that rank 0 enters."""
    recipe = _watched(assemble(options, transport, saves, report=lambda line: None), stopping)
    recipe.fit()
    recipe.trace_of_all_ranks(recipe.trace())
    if export is not None:
        export_model(recipe.model, export, transport=transport)


def _watched(recipe: Recipe, stopping: Stopping) -> Recipe:
    """A recipe whose curve can be seen while it grows."""
    stopping.saving = replace(recipe.saving, history=recipe.saving.history or History())
    return replace(recipe, saving=stopping.saving)


@contextmanager
def _connected(options: TrainOptions, stopping: Stopping) -> Iterator[Transport]:
    """The ranks joined; whatever happens is told at once, here and to the others, and the connection is closed."""
    try:
        transport = connect(options)
    except RankFailed as error:
        _tell(error, stopping)
        raise
    stopping.transport = transport
    try:
        yield transport
    except BaseException as error:
        _tell(error, stopping)
        if not isinstance(error, RankFailed):
            transport.fail("nestlab train", error)
        raise
    finally:
        transport.close()
        stopping.transport = None


def _tell(error: BaseException, stopping: Stopping) -> None:
    """One line, before anything is waited for: a launcher leaves little time once one rank has ended."""
    rank = stopping.rank
    if interrupted(error):
        if rank is not None:
            stopping.status = 130
            _complain(f"nestlab: interrupted {stopping.standing}", rank == 0)
    elif isinstance(error, RankFailed):
        stopping.status = 1
        of_rank = "" if rank is None else f"rank {rank}: "
        _complain(f"nestlab: error: {of_rank}{_of_rank(error)}; stopped {stopping.standing}")
    elif isinstance(error, UserError) and rank is not None:
        stopping.status = 2
        everyones = getattr(error, "told_by_all", False)
        if rank > 0 and not everyones:
            time.sleep(_FIRST_S)
            everyones = str(error).splitlines()[0] in stopping.failure
        _complain(f"nestlab: error: rank {rank}: {error}", rank == 0 or not everyones)


def _of_rank(error: RankFailed) -> str:
    """The message, and where this rank noticed, which the pipeline notes as `rank 0, in ROUTE(7) on lane …`."""
    notes = [note.partition(" on lane ")[0] for note in getattr(error, "__notes__", []) if " on lane " in note]
    return f"{error}, here in {notes[0].partition(', in ')[2]}" if notes else str(error)


def _complain(line: str, aloud: bool = True) -> None:
    line = " ".join(line.split())
    tell_launcher(line)
    if aloud:
        print(line, file=sys.stderr, flush=True)


def _say(line: str) -> None:
    print(line, flush=True)


def _description(recipe: Recipe) -> dict[str, Any]:
    """What the export says of itself: only what decides the result, so that equal results are equal bytes."""
    info, options = recipe.dataset.info, recipe.options
    own = {name: getattr(options, name) for name in ("model", *options.own)}
    if options.named_convention:
        own["convention"] = info.convention
    return {
        "dataset": {"id": info.id, "kind": info.kind, "rows": info.rows, "fingerprint": info.fingerprint},
        "optimizer": options.optimizer,
        "dim": options.dim,
        "seed": options.seed,
        **own,
    }
