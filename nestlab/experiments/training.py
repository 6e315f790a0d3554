"""`nestlab train`: one training run from the command line, on one rank or on each of many.

Rank 0 alone writes the run folder, prints and exports; the others are silent but for errors, which name their rank.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nestlab import paths, results
from nestlab.errors import RankFailed, UserError
from nestlab.exchange import Transport
from nestlab.experiments.kept import train_and_keep
from nestlab.launch import environment
from nestlab.training import Recipe, SaveOptions, TrainOptions, assemble, check_target, connect, export_model


def train_from_options(options: dict[str, Any]) -> int:
    """Runs what the command line asked for; rank 0 leaves a run folder. 0 on success, 1 where another rank failed.

    Args:
        options: fields of `TrainOptions`; those that are None keep their default. `checkpoint` (a folder),
            `checkpoint_every`, `checkpoint_full_every` and `restart` are those of `SaveOptions`. `export` is a folder
            for the trained model, or None; `results` is where the run goes.

    Raises:
        UserError: names the rank where there are several.
    """
    given = {name: value for name, value in options.items() if value is not None}
    export, results_dir = given.pop("export", None), given.pop("results", None) or paths.results_dir()
    saves = _save_options(given)
    train_options = TrainOptions(**given)
    place = environment()
    rank = f"rank {place.rank}: " if place is not None and place.world_size > 1 else ""
    try:
        with _connected(train_options) as transport:
            if transport.mesh.rank == 0:
                _lead(train_options, transport, saves, export, results_dir)
            else:
                _follow(train_options, transport, saves, export)
    except UserError as error:
        raise UserError(f"{rank}{error}") from error
    except RankFailed as error:
        print(f"nestlab: error: {rank}{' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def _save_options(given: dict[str, Any]) -> SaveOptions | None:
    """Takes what belongs to it out of `given`."""
    folder = given.pop("checkpoint", None)
    rest = {"every": "checkpoint_every", "full_every": "checkpoint_full_every", "restart": "restart"}
    values = {name: given.pop(option) for name, option in rest.items() if option in given}
    if folder:
        return SaveOptions(Path(folder), **values)
    if values.get("restart"):
        raise UserError("train: --restart goes on from a checkpoint; say where it lies with --checkpoint DIR")
    return None


def _lead(
    options: TrainOptions, transport: Transport, saves: SaveOptions | None, export: str | None, results_dir: str | Path
) -> None:
    """Rank 0, or a process on its own."""
    target = check_target(export) if export is not None else None
    params = asdict(options) | {"world_size": transport.mesh.world_size}
    with results.start("train", params, results_dir=results_dir, seed=options.seed, how=options.how) as run:
        recipe = assemble(options, transport, saves, report=_say)
        history, _, _ = train_and_keep(recipe, run)
        if target is not None:
            _say(f"exported to {export_model(recipe.model, target, _description(recipe), transport)}")
    if history.train_seconds > 0:
        rate = history.samples / history.train_seconds
        _say(f"{history.samples:,} samples in {history.train_seconds:.1f} s: {rate:,.0f} samples/s")
    _say(f"run {run.path}")


def _follow(options: TrainOptions, transport: Transport, saves: SaveOptions | None, export: str | None) -> None:
    """What the other ranks do: their part of every collective that rank 0 enters."""
    recipe = assemble(options, transport, saves, report=lambda line: None)
    recipe.fit()
    recipe.trace_of_all_ranks(recipe.trace())
    if export is not None:
        export_model(recipe.model, export, transport=transport)


@contextmanager
def _connected(options: TrainOptions) -> Iterator[Transport]:
    """The ranks joined; whatever happens, the others are told of it and the connection is closed."""
    transport = connect(options)
    try:
        yield transport
    except BaseException as error:
        if not isinstance(error, RankFailed):
            transport.fail("nestlab train", error)
        raise
    finally:
        transport.close()


def _say(line: str) -> None:
    print(line, flush=True)


def _description(recipe: Recipe) -> dict[str, Any]:
    """What the export says of itself: only what decides the result, so that equal results are equal bytes."""
    info = recipe.dataset.info
    return {
        "dataset": {"id": info.id, "kind": info.kind, "rows": info.rows, "fingerprint": info.fingerprint},
        "optimizer": recipe.options.optimizer,
        "dim": recipe.options.dim,
        "seed": recipe.options.seed,
    }
