"""The trained model as files, in a canonical order: two runs that learnt the same write the same bytes.

`tables.safetensors` holds, a table, `<table>.ids` [n] int64 ascending, `<table>.weight` [n, dim] and `<table>.state`
[n, s], or of a tensor train its cores, `<table>.core.0` [p_0, width_0] and so on, with their states;
`dense.safetensors` the dense part's parameters and buffers by name; `model.json` what they mean. Readable without
NestLab; `load_model` puts them into a model. Beside them `run.json` names the run that they are of, where there is one:
the only file that differs between two runs that learnt the same.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from nestlab.errors import UserError
from nestlab.exchange import LocalTransport, Transport
from nestlab.models import RecModel
from nestlab.training.gathering import to_first_shard
from nestlab.training.whole_tables import gather_whole

Tensors = dict[str, torch.Tensor]

FORMAT = 1
FILES = ("tables.safetensors", "dense.safetensors", "model.json")
ORIGIN = "run.json"


def check_target(folder: str | Path, *, replace: bool = True) -> Path:
    """Where an export will go, as an absolute path; to be asked before a long training.

    Args:
        replace: an earlier export may be there.

    Raises:
        UserError: something other than an earlier export is there, or one that is not to be replaced, or the place
            cannot be written.
    """
    target = Path(folder).resolve()
    if target.exists() and not target.is_dir():
        raise UserError(f"export: '{folder}' is a file; name a new folder")
    if target.is_dir() and (others := sorted(p.name for p in target.iterdir() if p.name not in (*FILES, ORIGIN))):
        raise UserError(f"export: '{folder}' holds other things ({', '.join(others[:3])}); name a new or empty folder")
    if not replace and (found := _described(target)) is not None:
        raise UserError(f"export: '{folder}' holds {_told(target, found)}; name another folder, or remove it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"export: '{folder}' cannot be written ({error.strerror}); name another folder") from None
    if not os.access(target.parent, os.W_OK):
        raise UserError(f"export: '{folder}' cannot be written; name another folder")
    return target


def check_same(folder: str | Path, description: dict[str, Any]) -> None:
    """Before a training that was continued replaces what it exported earlier.

    Raises:
        UserError: the export there is of another model, data or options than `description`.
    """
    found = _described(target := Path(folder))
    if found is None:
        return
    mine = json.loads(json.dumps(description))
    # An export of a DLRM did not name its model once.
    differing = [name for name in mine if found.get(name, "dlrm" if name == "model" else None) != mine[name]]
    if differing:
        raise UserError(
            f"export: '{folder}' holds {_told(target, found)}, of another {differing[0]}; name another folder"
        )


def export_model(
    model: RecModel,
    folder: str | Path,
    description: dict[str, Any] | None = None,
    transport: Transport | None = None,
    run: str = "",
) -> Path | None:
    """Writes the files into `folder`; an earlier export there is replaced as a whole, never half new and half old.

    With several ranks every rank calls it, with nothing in flight: rank 0 gathers the shards, table by table, and
    writes what one rank with the same tables would write. The others write nothing and return None. Of replica groups
    the first one's tables are written.

    Args:
        description: anything JSON can hold that a reader should know; times and paths would break byte equality.
        run: the run that trained it, for `run.json`; empty: none is named.

    Raises:
        UserError: see `check_target`.
        RankFailed: another rank failed.
    """
    transport = transport or LocalTransport()
    tables = _tables(model, transport)
    if transport.mesh.rank != 0:
        return None
    folder = check_target(folder)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write(model, tables, scratch, description or {})
        if run:
            (scratch / ORIGIN).write_text(json.dumps({"run": run}) + "\n")
        _replace(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _write(model: RecModel, tables: Tensors, scratch: Path, description: dict[str, Any]) -> None:
    save_file(tables, scratch / "tables.safetensors")
    dense = {name: tensor.detach().cpu().contiguous() for name, tensor in model.dense.state_dict().items()}
    save_file(dense, scratch / "dense.safetensors")
    shapes = {name: list(tensor.shape) for name, tensor in sorted({**tables, **dense}.items())}
    text = json.dumps({"format": FORMAT, **description, "shapes": shapes}, indent=1, sort_keys=True)
    (scratch / "model.json").write_text(text + "\n")


def _tables(model: RecModel, transport: Transport) -> Tensors:
    """All tables on rank 0, ids ascending; nothing on the other ranks."""
    tensors = gather_whole(model.embedding, transport)
    for group in model.embedding.groups:
        for table in group.tables:
            own = model.embedding.export(table.name)
            found = {name: to_first_shard(transport, values) for name, values in own.items()}
            if found["ids"] is None:
                continue
            order = torch.argsort(found["ids"])  # each shard's ids are ascending, and none is in two of them
            tensors |= {f"{table.name}.{name}": values[order].contiguous() for name, values in found.items()}
    return tensors


def _described(folder: Path) -> dict[str, Any] | None:
    """What the export there says of itself; None: there is none that says anything."""
    try:
        return json.loads((folder / "model.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _told(folder: Path, found: dict[str, Any]) -> str:
    try:
        of = f" of run {json.loads((folder / ORIGIN).read_text(encoding='utf-8'))['run']}"
    except (OSError, ValueError, KeyError):
        of = f" of a {found['model']}" if "model" in found else ""
    return f"an exported model{of}"


def _replace(scratch: Path, folder: Path) -> None:
    """Puts the finished folder in place; an old export goes only once the new one is complete."""
    scratch.chmod(0o755)  # mkdtemp's folder is for its maker alone
    old = scratch.with_name(scratch.name + ".old")
    if folder.exists():
        folder.rename(old)
    scratch.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
