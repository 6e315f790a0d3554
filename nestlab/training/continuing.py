"""Where a training is saved and goes on from, and in what it must be the training that was saved."""

from __future__ import annotations

from typing import Any

from nestlab.data import Dataset
from nestlab.errors import UserError
from nestlab.training.checkpoint import Checkpoints, Facts, Trained, check_folder, restore, step_of
from nestlab.training.fit import Report, Saving
from nestlab.training.gathering import together
from nestlab.training.options import SaveOptions, TrainOptions

_NAMES = ("batch_size", "optimizer", "lr", "dense_lr", "clip_norm", "dim", "seed")
# What every training had before checkpoints named it.
EVER_SINCE: Facts = {"model": "dlrm", "shuffle": "full", "reorder": "", "convention": "default"}


def facts_of(options: TrainOptions, dataset: Dataset) -> dict[str, Any]:
    """What a continued training must have in common with the one before. Executor, ranks, tiers and depth are none."""
    info, order = dataset.info, dataset.id_map
    told = {"model": options.model, "dataset": info.id, "rows": info.rows, "data_fingerprint": info.fingerprint}
    told["reorder"] = "" if order is None else order.manifest["fingerprint"]
    told["shuffle"], told["convention"] = options.shuffle, options.named_convention or "default"
    return told | {name: getattr(options, name) for name in (*_NAMES, *options.own)}


def saving_of(saves: SaveOptions | None, trained: Trained, facts: Facts, report: Report) -> Saving:
    """With what was saved put into `trained`; every rank calls it.

    Raises:
        UserError: a training is there that is not to be gone on with, or one that differs in `facts`; see `restore`.
    """
    if saves is None:
        return Saving()
    checkpoints = Checkpoints(saves.folder, trained, saves.every, saves.full_every, facts)
    together(trained.transport, lambda: check_folder(saves.folder))
    step = step_of(saves.folder, trained.transport)
    if step is None:
        report(f"checkpoint: none in '{saves.folder}' yet; training starts")
        return Saving(checkpoints)
    if not saves.restart:
        raise UserError(
            f"checkpoint: '{saves.folder}' holds a training of {step} steps; add --restart to go on from it, or name "
            "another folder"
        )
    report(f"checkpoint: training goes on after step {step} of '{saves.folder}'")
    return Saving(checkpoints, restore(saves.folder, trained, facts, EVER_SINCE))
