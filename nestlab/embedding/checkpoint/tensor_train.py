"""Tensor-train tables as files, one a table, on whatever ranks they lie; readable without NestLab.

`<table>.tt.safetensors` (the name percent-encoded) holds `core.0` [p_1, q_1·r_1], `core.1` [p_2, r_1·q_2·r_2] … with
the optimizer's `state.0` …, hot rows as `hot.…` where there are some, and as metadata what they mean. Each file is
written under a temporary name and renamed, so that it is the old one or the new one. Files of one save carry one step:
loading refuses a mixture, such as a save leaves that was killed between two tables.

A training keeps cores with its own checkpoint (`nestlab.training.checkpoint`); this is for tables used without one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from nestlab.embedding.checkpoint.durable import sync_folder
from nestlab.embedding.checkpoint.publishing import told
from nestlab.embedding.tensor_train.cores import require_like
from nestlab.embedding.tensor_train.table import TTTable
from nestlab.errors import UserError
from nestlab.files import write_atomic

FORMAT = 1
_META = "nestlab"


def save_cores(folder: str | Path, tables: Iterable[TTTable], step: int = 0) -> list[Path]:
    """Writes tables, between two steps, in place of what `folder` has of them; each rank writes its own.

    Args:
        step: number of the last update, the same for all tables of a save.

    Raises:
        UserError: the folder cannot be written.
    """
    folder, paths = Path(folder), []
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for table in tables:
            tensors = {name: tensor.cpu() for name, tensor in sorted(table.state_dict().items())}
            facts = {**_facts(table), "step": step, "checksum": _checksum(tensors)}
            content = to_safetensors(tensors, {_META: json.dumps(facts, sort_keys=True)})
            paths.append(write_atomic(_path(folder, table), content))
        sync_folder(folder)
    return paths


def load_cores(folder: str | Path, tables: Iterable[TTTable]) -> int:
    """Fills tables with what `folder` has of them, whichever ranks wrote it; the step that it was saved at.

    Everything is checked before a table is changed. Ranks that each load some of the tables compare their steps.

    Raises:
        UserError: a file is missing or damaged, or its table is another one: its shape, ids, hot rows, optimizer or
            dtype. Or the files are of different steps.
    """
    tables, folder = list(tables), Path(folder)
    read = [_read(_path(folder, table)) for table in tables]
    for table, (facts, tensors) in zip(tables, read, strict=True):
        _check(_path(folder, table), facts, tensors, table)
    steps = {facts["step"]: table.config.name for table, (facts, _) in zip(tables, read, strict=True)}
    if len(steps) > 1:
        told_of = ", ".join(f"'{name}' of step {step}" for step, name in steps.items())
        raise UserError(f"load: '{folder}' holds {told_of}; a save did not end, use another one")
    for table, (_, tensors) in zip(tables, read, strict=True):
        table.load(tensors)
    return next(iter(steps), 0)


def _path(folder: Path, table: TTTable) -> Path:
    return folder / f"{quote(table.config.name, safe='')}.tt.safetensors"


def _facts(table: TTTable) -> dict[str, Any]:
    """What must be the same where the cores are to mean the same rows."""
    kind = table.config.tensor_train
    return {
        "format": FORMAT,
        "table": table.config.name,
        "rows": kind.rows,
        "ids": kind.ids,
        "hot_rows": kind.hot_rows,
        "optimizer": table.optimizer.name,
        "dtype": str(table.cores.dtype).removeprefix("torch."),
        **{name: list(value) for name, value in asdict(table.shape).items()},
    }


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over the tensors' bytes in the order of their names."""
    digest = hashlib.sha256()
    for _, tensor in sorted(tensors.items()):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise UserError(f"load: there is no '{path}'; name a folder that holds the table, or leave the table out")
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})[_META])
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise UserError(f"load: '{path}' is damaged or no tensor-train table ({error}); use another copy") from None
    if facts.get("format") != FORMAT:
        raise UserError(f"load: '{path}' has format {facts.get('format')}, and this version reads {FORMAT}")
    if facts.get("checksum") != _checksum(tensors):
        raise UserError(f"load: '{path}' is damaged (its checksum differs); use another copy")
    return facts, tensors


def _check(path: Path, facts: Mapping[str, Any], tensors: Mapping[str, Tensor], table: TTTable) -> None:
    for name, mine in _facts(table).items():
        if facts.get(name) != mine:
            raise UserError(
                f"load: '{path}' was saved with {name}={facts.get(name)}, and table '{table.config.name}' has "
                f"{name}={mine}; give what was saved"
            )
    require_like(tensors, table.state_dict(), f"load: '{path}'")
