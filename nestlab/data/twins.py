"""The raw files of a synthetic twin: truth.json beside them says what was planted, and that they are no real data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestlab.data.folders import build_folder
from nestlab.data.identity import sha256_file
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
        for path in (*(out / name for name in self.files), out / TRUTH):
            if path.exists() and not self._wrote(path):
                raise UserError(f"{path}: is there and was not written by this command; choose another folder")
        try:
            out.mkdir(parents=True, exist_ok=True)
            self._write(out)
        except OSError as error:
            raise UserError(f"{out}: cannot be written ({error.strerror or error}); choose another folder") from error
        return [*(out / name for name in self.files), out / TRUTH]

    def _wrote(self, path: Path) -> bool:
        if path.name != TRUTH:
            return is_twin(path)
        truth = read_truth(path)
        return truth is not None and truth.get("synthetic") is True and truth.get("files") == list(self.files)

    def _is_whole(self, folder: Path) -> bool:
        truth = read_truth(folder / TRUTH)
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
        facts["sha256"] = {name: sha256_file(_partial(folder, name)) for name in self.files}
        _partial(folder, TRUTH).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        for name in (*self.files, TRUTH):
            os.replace(_partial(folder, name), folder / name)


def is_twin(raw: Path) -> bool:
    """Whether a raw file is what `TwinFiles` wrote: by its content, since another may have taken its name.

    A call that was killed half-way leaves the newer truth.json under its temporary name.
    """
    truths = (read_truth(path) for path in (raw.parent / TRUTH, _partial(raw.parent, TRUTH)))
    return any(truth is not None and _tells_of(truth, raw) for truth in truths)


def _tells_of(truth: dict[str, Any], raw: Path) -> bool:
    if truth.get("synthetic") is not True or raw.name not in truth.get("files", ()):
        return False
    sizes, digests = truth.get("sizes", {}), truth.get("sha256")
    try:
        if raw.stat().st_size != sizes.get(raw.name):
            return False
        # Those of earlier versions say no more than the size.
        return digests is None or sha256_file(raw) == digests.get(raw.name)
    except OSError:
        return False


def read_truth(path: Path) -> dict[str, Any] | None:
    try:
        truth = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return truth if isinstance(truth, dict) else None


def _partial(folder: Path, name: str) -> Path:
    return folder / f"{name}.partial"
