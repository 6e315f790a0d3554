"""The raw files of a synthetic twin: truth.json beside them says what was planted, and that they are no real data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestlab.data.folders import build_folder
from nestlab.errors import UserError

TRUTH = "truth.json"


@dataclass(frozen=True)
class TwinFiles:
    """How one twin's raw files come to be, whole or not at all.

    Attributes:
        name: of the twin.
        files: the names of its raw files.
        wanted: version, rows and seed: what tells one twin from another.
        write: writes `files`, each under the name that it is given for it, and returns what truth.json says.
    """

    name: str
    files: Sequence[str]
    wanted: dict[str, int]
    write: Callable[[Callable[[str], Path]], dict[str, Any]]

    def __post_init__(self) -> None:
        rows, seed = self.wanted["rows"], self.wanted["seed"]
        if rows < 1 or seed < 0:
            raise UserError(f"{self.name}: rows={rows}, seed={seed}: choose at least 1 row and a seed of 0 or more")

    def cached(self, prepared: Path) -> Path:
        """Their folder below the prepared folder; made if it is not there whole.

        Raises:
            UserError: the place cannot be written.
        """
        version, rows, seed = (self.wanted[key] for key in ("version", "rows", "seed"))
        folder = prepared / f"raw-{self.name}-v{version}-rows{rows}-seed{seed}"
        if not self._is_whole(folder):
            build_folder(folder, self._write, self._is_whole)
        return folder

    def publish(self, out: Path) -> list[Path]:
        """Writes them and truth.json into the folder `out`, replacing only what an earlier call wrote.

        Raises:
            UserError: a file is in the way, or `out` cannot be written.
        """
        for name in self.files:
            if (out / name).exists() and not is_twin(out / name):
                raise UserError(f"{out / name}: is there and was not written by this command; choose another folder")
        try:
            out.mkdir(parents=True, exist_ok=True)
            self._write(out)
        except OSError as error:
            raise UserError(f"{out}: cannot be written ({error.strerror or error}); choose another folder") from error
        return [*(out / name for name in self.files), out / TRUTH]

    def _is_whole(self, folder: Path) -> bool:
        truth = read_truth(folder)
        if truth is None or any(truth.get(key) != value for key, value in self.wanted.items()):
            return False
        sizes = truth.get("sizes", {})
        return all(
            (folder / name).is_file() and (folder / name).stat().st_size == sizes.get(name) for name in self.files
        )

    def _write(self, folder: Path) -> None:
        """Each file under a temporary name first; truth.json last, since its presence says that the rest is whole."""
        facts = self.write(lambda name: _partial(folder, name))
        facts = {"synthetic": True, "files": list(self.files), **self.wanted, **facts}
        facts["sizes"] = {name: _partial(folder, name).stat().st_size for name in self.files}
        _partial(folder, TRUTH).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        for name in (*self.files, TRUTH):
            os.replace(_partial(folder, name), folder / name)


def is_twin(raw: Path) -> bool:
    """Whether a raw file was written by `TwinFiles`."""
    truth = read_truth(raw.parent)
    return truth is not None and truth.get("synthetic") is True and raw.name in truth.get("files", ())


def read_truth(folder: Path) -> dict[str, Any] | None:
    try:
        truth = json.loads((folder / TRUTH).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return truth if isinstance(truth, dict) else None


def _partial(folder: Path, name: str) -> Path:
    return folder / f"{name}.partial"
