"""NestLab: run, see and trust the published mechanisms of recommender training systems.

The names below are loaded on first use, so that `import nestlab` costs nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

# Torch's threads spin while they wait for each other. Beside one other busy process on two cores that made a training
# step ten times slower (docs/log.md, 2026-11-29); threads that sleep cost nothing measurable on an idle machine. Only
# read when torch is loaded for the first time, and never stronger than what the user has set.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_PUBLIC = {
    "Batch": "nestlab.batch",
    "DLRM": "nestlab.models",
    "EmbeddingStore": "nestlab.embedding",
    "FitConfig": "nestlab.training",
    "Pipeline": "nestlab.pipeline",
    "RecModel": "nestlab.models",
    "Recorder": "nestlab.tracing",
    "TableConfig": "nestlab.embedding",
    "Techniques": "nestlab.techniques",
    "TrainOptions": "nestlab.training",
    "UserError": "nestlab.errors",
    "export_model": "nestlab.training",
    "fit": "nestlab.training",
    "open_dataset": "nestlab.data",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'nestlab' has no attribute '{name}'")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
