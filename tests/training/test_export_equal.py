"""`nestlab train --export` on two ranks: with any exact techniques the files of `plain`, byte for byte."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

pytestmark = pytest.mark.dist

FILES = ("tables.safetensors", "dense.safetensors", "model.json")
OPTIONS = ["--dataset", "criteo-synth", "--rows", "1000", "--batch-size", "50", "--steps", "16", "--device", "cpu"]
ORACLE = "device_tier=slot_cache,cache_slots=0.5,cache_policy=oracle,look_ahead=4,pipeline_depth=6"
# Each by name with the flags, further options, and whose bytes it has to have: fewer micro-batches are another sum.
RUNS = {
    "plain": ("", (), "plain"),
    "buffers": ("device_tier=dual_buffer,pipeline_depth=5,depth_schedule=ramp,ramp_over=7", (), "plain"),
    "oracle": (ORACLE, ("--executor", "lanes"), "plain"),
    "parts": ("micro_batches=4", ("--executor", "inline"), "parts"),
    "nested": ("device_tier=dual_buffer,pipeline_depth=4,micro_batches=4", ("--executor", "shuffled"), "parts"),
}
# A rank's process: the command line, once a run; every run meets at a port of its own.
PROCESS = """
import json, os, sys
from nestlab import cli
for port, argv in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"] = port
    status = cli.main(argv)
    if status:
        sys.exit(status)
"""


@pytest.fixture(scope="module")
def exports(tmp_path_factory) -> Path:
    """A folder an export."""
    from nestlab import data

    folder = tmp_path_factory.mktemp("exports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTLAB_PREPARED", str(folder / "prepared"))
        data.open_dataset("criteo-synth", rows=1000)
        _train(folder)
    return folder


def _train(folder: Path) -> None:
    calls = json.dumps([(str(port), _argv(folder, name)) for port, name in zip(_free_ports(), RUNS, strict=True)])
    processes = []
    for rank in ("0", "1"):
        place = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", PROCESS, calls]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        processes.append(subprocess.Popen(command, env={**os.environ, **place}, **streams))
    try:
        told = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], told


def _argv(folder: Path, name: str) -> list[str]:
    flags, more, _ = RUNS[name]
    written = ["--export", str(folder / name), "--results", str(folder / "results")]
    return ["train", *OPTIONS, *(("--techniques", flags) if flags else ()), *more, *written]


def _free_ports() -> list[int]:
    with ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in RUNS]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.mark.parametrize("name", [name for name, (_, _, other) in RUNS.items() if name != other])
def test_exact_techniques_export_the_bytes_of_the_plain_loop(exports, name):
    """Broken on purpose: a write-back that writes nothing."""
    for file in FILES:
        assert (exports / name / file).read_bytes() == (exports / RUNS[name][2] / file).read_bytes(), file


def test_the_comparison_sees_a_difference(exports):
    """Micro-batches only move the order of sums, and their tables differ in some bits."""
    tables = [(exports / name / FILES[0]).read_bytes() for name in ("plain", "parts")]
    assert tables[0] != tables[1] and len(tables[0]) == len(tables[1])
