"""The host: cores, memory, and how threads wait for each other. Nothing heavy is imported here."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def short_spin() -> dict[str, str]:
    """Environment variables that keep torch's threads from spinning for long; empty where the user has set some.

    They count only if they are set before torch is loaded.

    GNU OpenMP's threads spin while they wait, which beside one other busy process on two cores makes a training step
    three to ten times slower. A short spin gives up about a sixth of the speed on an idle machine and keeps several
    runs at once from standing still (docs/log.md, 2026-11-29).
    """
    return {} if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ) else {"GOMP_SPINCOUNT": "1000"}


def kept_buffers() -> dict[str, str]:
    """Environment variables by which glibc keeps freed buffers of up to 1 GiB; empty where the user has set some.

    They count only for a process that is started with them. A step allocates the same buffers as the one before; given
    back to the system, each page of them faults anew: a fifth of the CPU time of a step of HSTU (docs/log.md,
    2026-11-30). What a process holds at most does not grow; between steps it holds it longer.
    """
    settings = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(1 << 30))
    return {} if {*settings, "GLIBC_TUNABLES"} & set(os.environ) else settings


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.lower().startswith(("model name", "hardware", "cpu model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Host memory in bytes: the machine's, or the control group's limit if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        total = min(total, int(text))
    return total
