"""The cache of compiled kernels: two processes that compile for two types at once leave each type its own code."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

fcntl = pytest.importorskip("fcntl", reason="this system locks no files that way")

KERNEL = """
from nestlab.jit import jit

@jit
def first(values):
    return values[0]
"""

# In the order that does the damage: both have seen an empty index, float64 writes it last, int64 writes its code last.
# A process waits a second for the other one, which under a lock cannot come as far.
COMPILE = """
import os, pathlib, sys, time
import numpy as np
from numba.core.caching import IndexDataCacheFile
dtype, other = sys.argv[1:]
save_index, save_data = IndexDataCacheFile._save_index, IndexDataCacheFile._save_data

def slow_index(self, overloads):
    pathlib.Path(dtype).touch()
    end = time.monotonic() + 1
    while not os.path.exists(other) and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.2 if dtype == "float64" else 0)
    save_index(self, overloads)

def slow_data(self, name, data):
    time.sleep(0.6 if dtype == "int64" else 0)
    save_data(self, name, data)

IndexDataCacheFile._save_index, IndexDataCacheFile._save_data = slow_index, slow_data
from kernel import first
pathlib.Path(dtype + "-ready").touch()
while not os.path.exists(other + "-ready"):
    time.sleep(0.01)
assert first(np.ones(1, dtype)) == 1
"""

LOAD = """
import numpy as np
from kernel import first
for dtype in ("int64", "float64"):
    assert first(np.array([3], dtype)) == 3, dtype
assert sum(first.stats.cache_hits.values()) == 2, first.stats
"""


def test_two_processes_compile_for_two_types_at_once(tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def start(code: str, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)

    def finish(process: subprocess.Popen) -> None:
        error = process.communicate(timeout=60)[1]
        assert process.returncode == 0, error

    for process in [start(COMPILE, "int64", "float64"), start(COMPILE, "float64", "int64")]:
        finish(process)
    finish(start(LOAD))


def test_a_child_forked_meanwhile_holds_no_lock(tmp_path):
    """It has the lock's file open for as long as it lives."""
    from nestlab.jit import _lock

    with _lock(str(tmp_path), alone=True):
        ready, done = os.pipe(), os.pipe()
        if (child := os.fork()) == 0:
            os.write(ready[1], b".")
            os.read(done[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
    descriptor = os.open(tmp_path / "numba.lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.write(done[1], b".")
        os.waitpid(child, 0)
        for each in (descriptor, *ready, *done):
            os.close(each)


def test_where_nothing_can_be_kept_each_process_compiles(tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL)
    code = "from numba.core.caching import CacheImpl; CacheImpl._locator_classes = []\n"
    code += "import numpy as np; from kernel import first; assert first(np.ones(1)) == 1; print(first.stats.cache_path)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "None\n", done.stderr


def test_who_reads_waits_for_who_writes(tmp_path):
    from nestlab.jit import _Files, _lock

    files, read = _Files(str(tmp_path), "kernel", test_who_reads_waits_for_who_writes), threading.Event()
    reader = threading.Thread(target=lambda: (files.load("signature"), read.set()))
    with _lock(str(tmp_path), alone=True):
        reader.start()
        assert not read.wait(0.3)
    assert read.wait(10)
    reader.join()


CALLER = """
from callee import double
from constants import STEP
from nestlab.jit import jit

@jit
def both(value):
    return double(value) + STEP
"""

CALLEE = """
from nestlab.jit import inlined, jit

@inlined
def part(value):
    return {factor} * value

@jit
def double(value):
    return part(value)
"""


def test_code_is_compiled_anew_when_what_it_uses_of_another_file_changes(tmp_path):
    (tmp_path / "caller.py").write_text(CALLER)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    code = "from caller import both; print(both(10), sum(both.stats.cache_hits.values()))"

    def told(step: int, factor: int) -> str:
        (tmp_path / "constants.py").write_text(f"STEP = {step}")
        (tmp_path / "callee.py").write_text(CALLEE.format(factor=factor))
        os.utime(tmp_path / "callee.py", (0, factor))
        return subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=environment, text=True)

    assert [told(5, 2), told(5, 2), told(7, 2), told(7, 3)] == ["25 0\n", "25 1\n", "27 0\n", "37 0\n"]
