"""`import nestlab` is cheap, and every public name is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import nestlab

pytestmark = pytest.mark.core


@pytest.mark.parametrize("name", nestlab.__all__)
def test_name_is_there(name):
    assert getattr(nestlab, name).__name__ == name


def test_unknown_name():
    with pytest.raises(AttributeError, match="'nestlab' has no attribute 'Nest'"):
        _ = nestlab.Nest


def test_import_loads_nothing_heavy_and_lets_torch_threads_sleep():
    code = "import nestlab, os, sys; assert 'torch' not in sys.modules; print(os.environ['OMP_WAIT_POLICY'])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "PASSIVE"


def test_the_user_has_the_last_word():
    code = "import os; os.environ['OMP_WAIT_POLICY'] = 'ACTIVE'; import nestlab; print(os.environ['OMP_WAIT_POLICY'])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "ACTIVE"
