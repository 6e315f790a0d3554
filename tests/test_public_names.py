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


def test_import_loads_nothing_heavy():
    code = "import nestlab, sys; assert not {'torch', 'numpy', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
