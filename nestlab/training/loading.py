"""An exported model back in a model: to evaluate it, to score with it, or to train on from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from nestlab.embedding import EmbeddingStore
from nestlab.embedding.keyset import KeySet
from nestlab.embedding.records import write_records
from nestlab.errors import UserError
from nestlab.models import RecModel
from nestlab.training.export import FORMAT, Tensors
from nestlab.training.whole_tables import load_whole


def load_model(model: RecModel, folder: str | Path) -> dict[str, Any]:
    """Puts the export in `folder` into `model`, a new one of the same tables, dense part and seed, in one process.

    An export holds the ids that were met in training: a row of any other one comes from the seed. Tables come with the
    state of their optimizer. The dense part's optimizer is no part of an export: to go on with a
    training as if nothing had happened takes a checkpoint.

    Returns:
        What the export says of itself (`model.json`): model, data set, options, and the shapes of its tensors.

    Raises:
        UserError: there is no export, it is of another model, or `model` is not new; nothing is changed then.
    """
    folder, store = Path(folder), model.embedding
    description = _description(folder)
    tables, dense = (load_file(folder / f"{part}.safetensors") for part in ("tables", "dense"))
    if store.counters.batches or store.counters.inserts:
        raise UserError("load: the model's tables have rows already; give a new model")
    if (seed := description.get("seed", store.seed)) != store.seed:
        raise UserError(
            f"load: '{folder}' was trained with seed={seed}, and the model has seed={store.seed}, from which rows of "
            "ids never met in training come; build the model with that of the export"
        )
    _check_like(dense, model.dense.state_dict(), folder)
    _check_tables(store, tables, folder)
    for group in store.groups:
        for number, table in enumerate(group.tables):
            ids = tables[f"{table.name}.ids"]
            records = torch.cat([tables[f"{table.name}.weight"], tables[f"{table.name}.state"]], dim=1)
            offsets = np.zeros(len(group.tables) + 1, dtype=np.int64)
            offsets[number + 1 :] = len(ids)
            write_records(store, group.number, KeySet(ids, offsets), records)
    load_whole(store, tables)
    model.dense.load_state_dict(dense)
    return description


def _description(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"load: no exported model in '{folder}'; name the folder given to --export") from None
    if found.get("format") != FORMAT:
        raise UserError(f"load: '{folder}' has format {found.get('format')}, and this version reads {FORMAT}")
    return found


def _check_tables(store: EmbeddingStore, tables: Tensors, folder: Path) -> None:
    mine = {f"{table.name}.{name}": store.export(table.name)[name] for table in _rows(store) for name in _OF_ROWS}
    whole = {
        f"{store.whole.configs[number].name}.{name}": value
        for number, table in store.whole.own.items()
        for name, value in table.state_dict().items()
    }
    # Of rows any number fits.
    given = {name: value[:0] if name in mine else value for name, value in tables.items()}
    _check_like(given, {**mine, **whole}, folder)


def _check_like(given: Tensors, mine: Tensors, folder: Path) -> None:
    for name in sorted({*given, *mine}):
        saved, here = (_form(tensors.get(name)) for tensors in (given, mine))
        if saved != here:
            raise UserError(
                f"load: '{folder}': '{name}' is {saved} there and {here} in the model; build the model that was "
                "exported, whose options model.json names"
            )


def _form(tensor: torch.Tensor | None) -> str:
    return "absent" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _rows(store: EmbeddingStore) -> list[Any]:
    return [table for group in store.groups for table in group.tables]


_OF_ROWS = ("ids", "weight", "state")
