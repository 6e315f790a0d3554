"""The fit loop, metrics, and the trained model as files."""

from nestlab.training.export import check_target, export_model
from nestlab.training.fit import FitConfig, History, fit
from nestlab.training.metrics import binary_metrics
from nestlab.training.recipe import Recipe, TrainOptions, assemble

__all__ = [
    "FitConfig",
    "History",
    "Recipe",
    "TrainOptions",
    "assemble",
    "binary_metrics",
    "check_target",
    "export_model",
    "fit",
]
