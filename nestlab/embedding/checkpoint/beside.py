"""What a training keeps with a save of the tables: tensors and facts of its own, valid by the same manifest."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from nestlab.embedding.checkpoint.durable import new_folder, put_in_place, write_file
from nestlab.embedding.checkpoint.loading import verify
from nestlab.embedding.checkpoint.manifest import BESIDE, Beside, FileEntry, digest_of
from nestlab.embedding.checkpoint.publishing import SCRATCH, told

_FILE = "state.safetensors"


def write_beside(folder: str | Path, number: int, content: dict[str, Any], tensors: Mapping[str, Tensor]) -> Beside:
    """Writes tensors that are to become valid with save `number`; nothing is valid before `publish` takes them.

    Args:
        folder: of the checkpoint.
        content: anything that JSON can hold; it goes into the manifest.
        tensors: of any dtype and device, by name.

    Raises:
        UserError: the folder cannot be written.
    """
    folder = Path(folder)
    with told(folder):
        scratch = new_folder(folder / f"{SCRATCH}{number:06d}.{BESIDE}")
        try:
            file = _write(scratch, tensors)
            name = f"{number:06d}.{BESIDE}.{digest_of(asdict(file))[:12]}"
            put_in_place(scratch, folder / name)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return Beside(content, (replace(file, path=f"{name}/{file.path}"),))


def read_beside(folder: str | Path, beside: Beside) -> dict[str, Tensor]:
    """The tensors, in host memory and by name, once their checksum is found right.

    Raises:
        UserError: the file is missing, damaged or cannot be read.
    """
    folder = Path(folder)
    verify(folder, beside.files)
    tensors: dict[str, Tensor] = {}
    for file in beside.files:
        tensors |= from_safetensors((folder / file.path).read_bytes())
    return dict(sorted(tensors.items()))  # safetensors gives them in another order in every process


def _write(scratch: Path, tensors: Mapping[str, Tensor]) -> FileEntry:
    # Copies, since tensors that share memory (tied weights) are stored one by one.
    content = to_safetensors({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()})
    return FileEntry(_FILE, BESIDE, (), 0, 0, len(content), write_file(scratch / _FILE, content))
