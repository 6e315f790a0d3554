"""Shared fixtures: the real rows (skipped where absent) and a quiet, single-threaded machine."""

from __future__ import annotations

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


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real KuaiRand and Criteo rows."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"real data absent: no folder {REAL_DATA.name} beside the project (set NESTLAB_TEST_DATA)")
    return REAL_DATA


@pytest.fixture
def project() -> Path:
    return PROJECT
