"""Benchmarks by name. Each module has `run(…) -> dict`: `{"bench", "how", "rows", "summary"}`, plain Python values."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from nestlab.errors import UserError

_MODULES = {
    "index": "nestlab.benchmarks.index",
    "disk": "nestlab.benchmarks.disk",
    "larger": "nestlab.benchmarks.larger",
    "buckets": "nestlab.benchmarks.buckets",
    "cache": "nestlab.benchmarks.cache",
    "clustering": "nestlab.benchmarks.clustering",
    "tt": "nestlab.benchmarks.tt",
    "tracing": "nestlab.benchmarks.tracing",
    "pipeline": "nestlab.benchmarks.pipeline",
    "data": "nestlab.benchmarks.data",
}


def names() -> tuple[str, ...]:
    """Every benchmark, in the order in which `make bench` runs them."""
    return tuple(_MODULES)


def run(name: str, **options: Any) -> dict:
    """Runs one benchmark; its module, and with it torch, is imported only now.

    Args:
        options: what its `run` takes by these names; most take none.

    Raises:
        UserError: no benchmark is called so, or it has no such option.
    """
    if name not in _MODULES:
        raise UserError(f"no benchmark is called '{name}'; there are {', '.join(_MODULES)}")
    function = importlib.import_module(_MODULES[name]).run
    taken = inspect.signature(function).parameters
    for option in options:
        if option not in taken:
            raise UserError(f"bench {name}: it takes no --{option}; leave it out")
    return function(**options)
