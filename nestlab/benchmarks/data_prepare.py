"""The preparation half of `bench data`: the twin of KuaiRand-27K as files, prepared in a process of its own.

`prepare_rows_s`: rows of the log a second by the clock, from the identity of the files to the open data set, feature
tables included, imports not. `prepare_rss_gib`: the most that was resident at either size; it must not grow with the
rows of the log. The files were just written, so they are read from the page cache; where all cores are busy with other
work, `cpu_us_a_row` says more than the clock.

Prediction: 1.6 million rows a second on two free cores and 0.9 GiB (0.27 million and 0.9 GiB at 2 million rows before;
that grew with the rows).
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from nestlab.errors import UserError

_NAME = "kuairand-27k"


@dataclass(frozen=True)
class Scale:
    """`rows` of the twin, one preparation each; needs about 0.4 GB of disk a million rows. `folder`: where."""

    rows: tuple[int, ...] = (2_000_000, 20_000_000)
    folder: str = ""  # empty: the system's folder for temporary files

    def __post_init__(self) -> None:
        if not self.rows or min(self.rows) < 1:
            raise UserError(f"rows={self.rows}: choose numbers of 1 or more")


def run_prepare(scale: Scale | None = None) -> tuple[list[dict], dict]:
    """Rows, one a size and stage ("all" first), and the summary."""
    scale = scale or Scale()
    measured = [_one(rows, scale.folder) for rows in scale.rows]
    rows = [
        {"rows": said["rows"], "stage": stage, **facts}
        for said in measured
        for stage, facts in ({"all": said["all"]} | said["stages"]).items()
    ]
    largest = max(measured, key=lambda said: said["rows"])
    return rows, {
        "prepare_rows_s": largest["all"]["rows_s"],
        "prepare_rss_gib": max(said["all"]["rss_gib"] for said in measured),
        "prepare_rss_gib_by_rows": {said["rows"]: said["all"]["rss_gib"] for said in measured},
    }


def _one(rows: int, within: str) -> dict:
    with tempfile.TemporaryDirectory(prefix="nestlab-prepare-", dir=within or None) as folder:
        for step in ("synth", "prepare"):
            ran = subprocess.run(
                [sys.executable, "-m", __spec__.name if __spec__ else __name__, step, folder, str(rows)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        return json.loads(ran.stdout.splitlines()[-1])


def _prepare(folder: Path) -> dict:
    from nestlab.data import commands

    started, cpu = time.perf_counter(), time.process_time()
    dataset = commands.prepare(_NAME, folder, prepared=folder / "prepared")
    seconds, counts = time.perf_counter() - started, dataset.info.counts
    if counts["rows_in"] != counts["rows_out"] + counts["rows_dropped"] + counts["rows_rejected"]:
        raise AssertionError(f"rows went missing: {counts}")
    rows = counts["rows_in"]
    facts = {
        "seconds": round(seconds, 3),
        "rows_s": round(rows / seconds),
        "cpu_us_a_row": round((time.process_time() - cpu) / rows * 1e6, 3),
        "rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3),
        "cores": len(os.sched_getaffinity(0)),
    }
    return {"rows": rows, "all": facts, "stages": dataset.manifest["stages"]}


def _main(step: str, folder: str, rows: str) -> None:
    if step == "synth":
        from nestlab.data import commands

        commands.synth(_NAME, folder, int(rows))
    else:
        print(json.dumps(_prepare(Path(folder))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
