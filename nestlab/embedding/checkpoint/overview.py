"""What lies in a checkpoint, in numbers: for people and for tables of a notebook."""

from __future__ import annotations

from pathlib import Path

from nestlab.embedding.checkpoint.manifest import require_manifest


def describe(folder: str | Path) -> list[dict[str, str | int | float]]:
    """A dict a save, in order: number, kind, step, batches, shards, rows (records in it), removed (keys), files, bytes,
    seconds (to write it). Only the manifest is read.

    Raises:
        UserError: there is no checkpoint, or its manifest is damaged.
    """
    return [
        {
            "number": save.number,
            "kind": save.kind,
            "step": save.step,
            "batches": save.batches,
            "shards": save.shards,
            "rows": save.count("rows"),
            "removed": save.count("removed"),
            "files": len(save.files),
            "bytes": save.nbytes,
            "seconds": save.seconds,
        }
        for save in require_manifest(folder).saves
    ]
