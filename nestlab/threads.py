"""How torch's threads wait for each other: to be settled before torch is loaded, so nothing heavy is imported."""

from __future__ import annotations

import os


def short_spin() -> dict[str, str]:
    """Environment variables that keep threads from spinning for long; empty where the user has set some.

    GNU OpenMP's threads spin while they wait, which beside one other busy process on two cores makes a training step
    three to ten times slower. A short spin gives up about a sixth of the speed on an idle machine and keeps several
    runs at once from standing still (docs/log.md, 2026-11-29).
    """
    return {} if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ) else {"GOMP_SPINCOUNT": "1000"}
