"""Everything here compares with torchrec: skipped, with the reason, where it is absent."""

from __future__ import annotations

import pytest
import torch

from nestlab.interop import torchrec as bridge


@pytest.fixture(scope="session", autouse=True)
def torchrec():
    usable, reason = bridge.available()
    if not usable:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def one_thread():
    """Sums in one order, and no threads that spin beside other work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
