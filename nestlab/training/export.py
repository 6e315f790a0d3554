"""The trained model as files, in a canonical order: two runs that learnt the same write the same bytes.

`tables.safetensors` holds, a table, `<table>.ids` [n] int64 ascending, `<table>.weight` [n, dim] and `<table>.state`
[n, s]; `dense.safetensors` the dense part's parameters and buffers by name; `model.json` what they mean. Readable
without NestLab.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from nestlab.models import RecModel


def export_model(model: RecModel, folder: str | Path, description: dict[str, Any] | None = None) -> Path:
    """Writes the files into `folder`, which is replaced as a whole: it is never half new and half old.

    Args:
        description: anything JSON can hold that a reader should know; times and paths would break byte equality.
    """
    folder = Path(folder)
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    tables = _tables(model)
    save_file(tables, scratch / "tables.safetensors")
    dense = {name: tensor.detach().cpu().contiguous() for name, tensor in model.dense.state_dict().items()}
    save_file(dense, scratch / "dense.safetensors")
    shapes = {name: list(tensor.shape) for name, tensor in sorted({**tables, **dense}.items())}
    text = json.dumps({"format": 1, **(description or {}), "shapes": shapes}, indent=1, sort_keys=True)
    (scratch / "model.json").write_text(text + "\n")
    _replace(scratch, folder)
    return folder


def _tables(model: RecModel) -> dict[str, torch.Tensor]:
    tensors = {}
    for group in model.embedding.groups:
        for table in group.tables:
            for name, values in model.embedding.export(table.name).items():
                tensors[f"{table.name}.{name}"] = torch.as_tensor(values).contiguous()
    return tensors


def _replace(scratch: Path, folder: Path) -> None:
    """Puts the finished folder in place; an old export goes only once the new one is complete."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    if folder.exists():
        folder.rename(old)
    scratch.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
