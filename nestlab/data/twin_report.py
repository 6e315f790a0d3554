"""Twin beside real sample, statistic by statistic: the values, what they may differ by, and whether they do.

KuaiRand: the twin of Pure is made at the published number of rows, and of it the days that the real sample has are
compared, so that counts of users and videos mean the same. Criteo: as many rows as the sample has, of a twin that is
made for many more, so that its columns' cardinalities are those of a large file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.csv as pcsv

from nestlab.data import kuairand_synth, synthetic
from nestlab.data.criteo_twin_shape import SHAPES as CRITEO
from nestlab.data.kuairand_files import PURE, STANDARD, survey
from nestlab.data.opening import open_dataset
from nestlab.data.twin_statistics import Statistic, criteo_statistics, kuairand_statistics
from nestlab.errors import UserError

FIRST_REAL_MS = 1_650_816_000_000  # 2022-04-25 in Beijing: from here on the sample has every row


@dataclass(frozen=True)
class Compared:
    """One statistic. `tolerance`: the largest |twin − real|; `why` says what a larger one comes from."""

    statistic: str
    real: float
    twin: float
    tolerance: float
    within: bool
    why: str


def twin_report(name: str, root: str | Path, rows: int | None = None, seed: int = 0) -> list[Compared]:
    """Compares a twin with the real sample of `name` (kuairand-pure, criteo-kaggle or criteo-1tb) under `root`.

    Args:
        rows: of the twin; None: those published for KuaiRand-Pure; for Criteo 50 times the sample's.

    Raises:
        UserError: no such comparison, or the real sample is absent.
    """
    if name == "kuairand-pure":
        real, twin = _kuairand_real(Path(root)), _kuairand_twin(rows or PURE.rows[STANDARD], seed)
        return list(_compared(kuairand_statistics(real), kuairand_statistics(twin)))
    shapes = dict(zip(("criteo-kaggle", "criteo-1tb"), CRITEO, strict=True))
    if name not in shapes:
        raise UserError(f"twin-report '{name}': choose kuairand-pure, {', '.join(shapes)}: these have a real sample")
    real = _criteo_real(name, root)
    twin = _criteo_twin(synthetic.Twin(rows or 50 * len(real), seed, shapes[name]), len(real))
    return list(_compared(criteo_statistics(real), criteo_statistics(twin)))


def table(report: list[Compared]) -> pd.DataFrame:
    return pd.DataFrame([asdict(line) for line in report])


def to_json(report: list[Compared]) -> str:
    return json.dumps([asdict(line) for line in report], indent=1, ensure_ascii=False)


def figure(report: list[Compared]):
    """Deviations in units of the tolerance, one bar a statistic: within −1 … 1 is within it."""
    import matplotlib.pyplot as plt

    frame = table(report)
    off = (frame["twin"] - frame["real"]) / frame["tolerance"]
    drawn, axes = plt.subplots(figsize=(7, 0.22 * len(frame) + 1))
    axes.barh(frame["statistic"], off.clip(-3, 3), color=np.where(frame["within"], "tab:blue", "tab:red"))
    axes.axvspan(-1, 1, alpha=0.15)
    axes.invert_yaxis()
    axes.set_xlabel("(twin − real) / tolerance")
    drawn.tight_layout()
    return drawn


def _compared(real: list[Statistic], twin: list[Statistic]) -> Iterator[Compared]:
    for one, other in zip(real, twin, strict=True):
        a, b = (one.value, other.value) if one.against is None else (0.0, one.against(other.sample, one.sample))
        within = bool(abs(a - b) <= one.tolerance)
        yield Compared(one.name, a, b, one.tolerance, within, "" if within else one.why)


def _kuairand_real(root: Path) -> pd.DataFrame:
    look = survey(PURE, root)
    if not look.found[STANDARD]:
        raise UserError(f"kuairand-pure: no standard log under '{root}'; name the folder with --data-root")
    frames = [pcsv.read_csv(path).to_pandas() for path in look.found[STANDARD]]
    return _window(pd.concat(frames, ignore_index=True))


def _kuairand_twin(rows: int, seed: int) -> pd.DataFrame:
    made = kuairand_synth.Twin(rows, seed)
    return pd.concat([_window(pd.DataFrame(columns)) for columns, _ in made.blocks(made.logs[0])], ignore_index=True)


def _window(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["time_ms"] >= FIRST_REAL_MS]


def _criteo_real(name: str, root: str | Path) -> pd.DataFrame:
    import tempfile

    with tempfile.TemporaryDirectory() as prepared:
        return open_dataset(name, root, prepared=prepared).table.to_pandas()


def _criteo_twin(made: synthetic.Twin, rows: int) -> pd.DataFrame:
    frames, have = [], 0
    for table_, _ in made.blocks():
        frames.append(table_.to_pandas())
        have += len(frames[-1])
        if have >= rows:
            break
    return pd.concat(frames, ignore_index=True).iloc[:rows]
