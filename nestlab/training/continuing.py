"""Where a training is saved and goes on from, and in what it must be the training that was saved."""

from __future__ import annotations

from typing import Any

from nestlab.data import Dataset
from nestlab.errors import UserError
from nestlab.techniques import Techniques
from nestlab.training.checkpoint import (
    Checkpoints,
    Trained,
    check_folder,
    content_of,
    restore,
    step_of,
)
from nestlab.training.facts import Facts, check_facts
from nestlab.training.fit import Report, Saving
from nestlab.training.gathering import together
from nestlab.training.options import SaveOptions, TrainOptions

_NAMES = ("batch_size", "optimizer", "lr", "dense_lr", "clip_norm", "dim", "seed")
# What every training had before checkpoints named it.
EVER_SINCE: Facts = {"model": "dlrm", "shuffle": "full", "reorder": "", "convention": "default"}


def facts_of(options: TrainOptions, dataset: Dataset) -> dict[str, Any]:
    """What a continued training must have in common with the one before. Executor, ranks, tiers, depth and
    micro-batches are none."""
    info, order = dataset.info, dataset.id_map
    told = {"model": options.model, "dataset": info.id, "rows": info.rows, "data_fingerprint": info.fingerprint}
    told["reorder"] = "" if order is None else order.manifest["fingerprint"]
    return told | _of_options(options)


def _of_options(options: TrainOptions) -> dict[str, Any]:
    """Those that need no data to be known."""
    told = {name: getattr(options, name) for name in ("model", "shuffle", *_NAMES, *options.own)}
    told["convention"] = options.named_convention or "default"
    return told | {"inexact": Techniques.parse(options.techniques).unlike_plain()}


def _check_wanted(saves: SaveOptions, step: int) -> None:
    if not saves.restart:
        raise UserError(
            f"checkpoint: '{saves.folder}' holds a training of {step} steps; add --restart to go on from it, or name "
            "another folder"
        )


def check_start(saves: SaveOptions | None, options: TrainOptions) -> None:
    """What can be told of a checkpoint before data are opened, which may take long, and before ranks meet.

    Raises:
        UserError: as `saving_of`.
    """
    content = None if saves is None else content_of(saves.folder)
    if content is None:
        return
    _check_wanted(saves, content["step"])
    mine = _of_options(options)
    saved = {**EVER_SINCE, **content["facts"]}
    check_facts({name: value for name, value in saved.items() if name in mine}, mine)


def saving_of(saves: SaveOptions | None, trained: Trained, facts: Facts, report: Report) -> Saving:
    """With what was saved put into `trained`; every rank calls it.

    Raises:
        UserError: a training is there that is not to be gone on with, or one that differs in `facts`; see `restore`.
    """
    if saves is None:
        return Saving()
    checkpoints = Checkpoints(saves.folder, trained, saves.every, saves.full_every, facts, saves.run)
    together(trained.transport, lambda: check_folder(saves.folder))
    step = step_of(saves.folder, trained.transport)
    if step is None:
        report(f"checkpoint: none in '{saves.folder}' yet; training starts")
        return Saving(checkpoints)
    _check_wanted(saves, step)
    report(f"checkpoint: training goes on after step {step} of '{saves.folder}'")
    return Saving(checkpoints, restore(saves.folder, trained, facts, EVER_SINCE))
