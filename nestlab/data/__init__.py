"""Data sets by name: raw files are prepared once, then read as batches. See `open_dataset`."""

from __future__ import annotations

from nestlab.data import commands, criteo, kuairand
from nestlab.data.criteo_reading import CriteoOptions
from nestlab.data.dataset import Dataset, DatasetInfo
from nestlab.data.kuairand_prepare import KuaiRandOptions
from nestlab.data.loader import Loader, Position
from nestlab.data.opening import open_dataset
from nestlab.data.prepare import PrepareOptions
from nestlab.data.registry import Found, available, names

__all__ = [
    "CriteoOptions",
    "Dataset",
    "DatasetInfo",
    "Found",
    "KuaiRandOptions",
    "Loader",
    "Position",
    "PrepareOptions",
    "available",
    "commands",
    "names",
    "open_dataset",
]

criteo.register_all()
kuairand.register_all()
