"""`nestlab train`: one training run from the command line."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nestlab import paths, results
from nestlab.experiments.kept import train_and_keep
from nestlab.training import Recipe, TrainOptions, assemble, check_target, export_model


def train_from_options(options: dict[str, Any]) -> int:
    """Runs what the command line asked for and leaves a run folder; 0 on success.

    Args:
        options: fields of `TrainOptions`; those that are None keep their default. `export` is a folder for the trained
            model, or None; `results` is where the run goes.
    """
    given = {name: value for name, value in options.items() if value is not None}
    export, results_dir = given.pop("export", None), given.pop("results", None) or paths.results_dir()
    train_options = TrainOptions(**given)
    if export is not None:
        export = check_target(export)
    stated = {"seed": train_options.seed, "how": "emulated link" if train_options.link else "measured"}
    with results.start("train", asdict(train_options), results_dir=results_dir, **stated) as run:
        recipe = assemble(train_options)
        history, _, _ = train_and_keep(recipe, run)
        if export is not None:
            print(f"exported to {export_model(recipe.model, export, _description(recipe))}", flush=True)
    rate = history.samples / history.train_seconds
    print(f"{history.samples:,} samples in {history.train_seconds:.1f} s: {rate:,.0f} samples/s", flush=True)
    print(f"run {run.path}", flush=True)
    return 0


def _description(recipe: Recipe) -> dict[str, Any]:
    """What the export says of itself: only what decides the result, so that equal results are equal bytes."""
    info = recipe.dataset.info
    return {
        "dataset": {"id": info.id, "kind": info.kind, "rows": info.rows, "fingerprint": info.fingerprint},
        "optimizer": recipe.options.optimizer,
        "dim": recipe.options.dim,
        "seed": recipe.options.seed,
    }
