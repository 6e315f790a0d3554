"""What a user should know of a training before it begins: what the options come to with these data."""

from __future__ import annotations

from nestlab.training.checkpoint import run_of
from nestlab.training.recipe import Recipe


def remarks(recipe: Recipe) -> list[str]:
    """One line each; most trainings have few."""
    options, mesh = recipe.options, recipe.transport.mesh
    ranks = "1 rank" if mesh.world_size == 1 else f"{mesh.world_size} ranks"
    lines = [f"{ranks}, techniques {options.techniques or 'plain'}", *_of_samples(recipe)]
    if options.rows is not None and options.rows > recipe.dataset.info.rows:
        lines.append(f"rows: there are {recipe.dataset.info.rows:,}, fewer than the {options.rows:,} asked for")
    if options.batch_size < mesh.world_size:
        idle = mesh.world_size - options.batch_size
        lines.append(f"batches of {options.batch_size}: {idle} of {mesh.world_size} ranks have no sample to compute")
    if options.reorder and not recipe.model.embedding.whole.configs:
        lines.append(f"reorder={options.reorder} has no effect on tables of rows: it is for table_kind=tt")
    return lines + _of_saves(recipe)


def _of_samples(recipe: Recipe) -> list[str]:
    """How much is to be trained, on what, how fast, and what is kept from it."""
    options, batches = recipe.options, len(recipe.train)
    steps = options.fit.steps(batches)
    epochs = "1 epoch" if steps == batches else f"{steps / max(batches, 1):.4g} epochs"
    return [
        f"training: {recipe.train.samples:,} samples in {batches:,} batches; {epochs}, {steps:,} steps; learning rates "
        f"{options.lr:g} ({options.optimizer}, tables), {options.dense_lr:g} (Adam, dense part)",
        f"held out: {recipe.heldout}",
    ]


def _of_saves(recipe: Recipe) -> list[str]:
    checkpoints, (done, total) = recipe.saving.checkpoints, recipe.standing
    if done == total:
        by = f", which run {run} trained" if (run := run_of(checkpoints.folder)) else ""
        return [f"nothing left to train: '{checkpoints.folder}' holds step {done} of {total}{by}; no new run is filed"]
    if checkpoints is None or total // checkpoints.every > done // checkpoints.every:
        return []
    return [f"checkpoint: every {checkpoints.every} steps, and {total - done} to come: saved at the end only"]
