"""The fit loop, metrics, checkpoints, and the trained model as files."""

from nestlab.training.checkpoint import Checkpoints, State, Trained, restore, save
from nestlab.training.export import check_target, export_model
from nestlab.training.fit import FitConfig, Saving, fit
from nestlab.training.history import History
from nestlab.training.metrics import binary_metrics
from nestlab.training.recipe import Recipe, SaveOptions, TrainOptions, assemble, connect

__all__ = [
    "Checkpoints",
    "FitConfig",
    "History",
    "Recipe",
    "SaveOptions",
    "Saving",
    "State",
    "TrainOptions",
    "Trained",
    "assemble",
    "binary_metrics",
    "check_target",
    "connect",
    "export_model",
    "fit",
    "restore",
    "save",
]
