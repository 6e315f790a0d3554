"""Benchmarks by name. Each module has `run() -> dict`: `{"bench", "how", "rows", "summary"}`, plain Python values."""

from __future__ import annotations

import importlib

from nestlab.errors import UserError

_MODULES = {
    "index": "nestlab.benchmarks.index",
    "disk": "nestlab.benchmarks.disk",
    "larger": "nestlab.benchmarks.larger",
    "buckets": "nestlab.benchmarks.buckets",
    "cache": "nestlab.benchmarks.cache",
    "clustering": "nestlab.benchmarks.clustering",
    "tracing": "nestlab.benchmarks.tracing",
}


def names() -> tuple[str, ...]:
    """Every benchmark, in the order in which `make bench` runs them."""
    return tuple(_MODULES)


def run(name: str) -> dict:
    """Runs one benchmark; its module, and with it torch, is imported only now.

    Raises:
        UserError: no benchmark is called so.
    """
    if name not in _MODULES:
        raise UserError(f"no benchmark is called '{name}'; there are {', '.join(_MODULES)}")
    return importlib.import_module(_MODULES[name]).run()
