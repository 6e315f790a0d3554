"""Runs as an experiment leaves them, without the experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from nestlab import results
from nestlab.results import manifest

TWIN = {"id": "criteo-synth", "kind": "synthetic", "rows": 100, "fingerprint": "f" * 64}
TWIN["title"] = "criteo-synth (SYNTHETIC, 100 rows)"
REAL = {"id": "criteo-1tb", "kind": "real", "rows": 5000, "fingerprint": "a" * 64, "title": "criteo-1tb (5,000 rows)"}


def finished(
    folder: Path, params: dict[str, Any], seed: int | None, dataset: Any = TWIN, **summary: Any
) -> results.Run:
    """An ok run of the experiment `quickstart` with key figures and a table."""
    run = results.start("quickstart", params | {"seed": seed}, results_dir=folder, seed=seed)
    run.dataset(dataset)
    run.table("steps", pd.DataFrame({"step": [1, 2], "seed": [seed, seed], "loss": [0.5, 0.25]}))
    run.summary(**summary)
    run.finish()
    return run


def amend(run: results.Run, **changes: Any) -> None:
    """Puts other values into a manifest than the run would."""
    content = json.loads((run.path / manifest.FILE).read_text())
    manifest.write(run.path, content | changes)


def two_settings(folder: Path) -> list[results.Run]:
    """Three seeds each of two settings; a seed moves both settings alike, and `lr` by about 0.1."""
    figures = {0.1: [0.50, 0.60, 0.70], 0.2: [0.61, 0.70, 0.79]}
    return [
        finished(folder, {"lr": lr, "scale": "smoke"}, seed, auc=auc, word="text", flag=True, nothing=None)
        for lr, values in figures.items()
        for seed, auc in enumerate(values)
    ]
