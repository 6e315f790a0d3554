"""Shared fixtures: the real rows (skipped where absent) and a quiet, single-threaded machine."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from ranks import ranks  # noqa: F401  (a fixture for every test below here)

# Before torch is loaded: its threads would spin while they wait for each other, and tests run beside other work.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every process they start: those
# whose answer to Ctrl-C is tested must be able to hear it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROJECT = Path(__file__).resolve().parent.parent
REAL_DATA = Path(os.environ.get("NESTLAB_TEST_DATA", PROJECT.parent / "shared" / "data"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """On a fresh checkout two workers compile different kernels, which all find in numba's cache from then on.

    Else both would compile the same ones at the same time, since files that need the same kernels lie side by side.
    """
    if (worker := os.environ.get("PYTEST_XDIST_WORKER")) not in ("gw0", "gw1"):
        return
    with contextlib.suppress(Exception):  # what is broken the tests say
        import torch

        torch.set_num_threads(1)
        if worker == "gw0":
            import rank_imports  # noqa: F401
        else:
            from nestlab.embedding.tensor_train import ecorec_numba

            for dtype in (torch.float32, torch.float64):
                ecorec_numba.warm_up(dtype)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real KuaiRand and Criteo rows."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"real data absent: no folder {REAL_DATA.name} beside the project (set NESTLAB_TEST_DATA)")
    return REAL_DATA


@pytest.fixture
def project() -> Path:
    return PROJECT
