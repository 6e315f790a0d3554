"""NestLab: run, see and trust the published mechanisms of recommender training systems.

The names below are loaded on first use, so that `import nestlab` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "Batch": "nestlab.batch",
    "DLRM": "nestlab.models",
    "EmbeddingStore": "nestlab.embedding",
    "FitConfig": "nestlab.training",
    "Pipeline": "nestlab.pipeline",
    "RecModel": "nestlab.models",
    "Recorder": "nestlab.tracing",
    "TableConfig": "nestlab.embedding",
    "Tiers": "nestlab.embedding",
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
