"""The manifest of a run: its fields, plain JSON values, and writing it so that no reader ever sees half of it."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nestlab.files import write_atomic

SCHEMA_VERSION = 1
FILE = "manifest.json"
STATUSES = ("running", "ok", "failed", "killed", "timeout")
HOW = ("measured", "emulated link", "simulated cluster")

# Where a run is written does not change what is computed.
_NOT_CONFIGURATION = ("results",)


def read(folder: Path) -> dict[str, Any]:
    """The manifest in a run folder.

    Raises:
        OSError, ValueError: it is absent, or it is not a JSON object.
    """
    content = json.loads((folder / FILE).read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


def write(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replaces the manifest in one step."""
    text = json.dumps(plain(manifest), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(folder / FILE, text.encode("utf-8"))


def update(folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merges `changes` into the manifest on disk and returns the whole."""
    merged = read(folder) | dict(changes)
    write(folder, merged)
    return merged


def config_hash(experiment: str, params: Mapping[str, Any], seed: int | None) -> str:
    """Identifies a configuration: the same experiment, parameters and seed hash alike in any order and process."""
    kept = {name: value for name, value in params.items() if name not in _NOT_CONFIGURATION}
    text = json.dumps(plain([experiment, kept, seed]), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: numpy scalars become numbers, NaN and infinities null, the rest text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=str)
    if hasattr(value, "tolist"):  # numpy and torch scalars and arrays
        return plain(value.tolist())
    if isinstance(value, Iterable) and not isinstance(value, bytes | os.PathLike):
        return [plain(item) for item in value]
    return str(value)
