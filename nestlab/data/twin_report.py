"""Twin beside real sample, statistic by statistic: the values, what they may differ by, and whether they do.

KuaiRand: the twin of Pure is made at the published number of rows, and of it the days that the real sample has are
compared, so that counts of users and videos mean the same. Criteo: as many rows as the sample has, of a twin that is
made for many more, so that its columns' cardinalities are those of a large file. What the real sample does not hold
(the random log; KuaiRand-27K as a whole) is compared with published figures, and labelled so.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.csv as pcsv

from nestlab.data import kuairand_synth, synthetic
from nestlab.data.criteo_twin_shape import SHAPES as CRITEO
from nestlab.data.kuairand_files import PURE, STANDARD, USERS, VIDEOS, Survey, survey
from nestlab.data.kuairand_synth_shape import K27_SHAPE
from nestlab.data.kuairand_synth_tables import video_lines
from nestlab.data.kuairand_tables import VIDEO_TABLE
from nestlab.data.opening import open_dataset
from nestlab.data.twin_criteo import criteo_published, criteo_statistics
from nestlab.data.twin_kuairand import kuairand_statistics, table_statistics
from nestlab.data.twin_published import Pair, published
from nestlab.data.twin_statistics import Compared, compare
from nestlab.errors import UserError

FIRST_REAL_MS = 1_650_816_000_000  # 2022-04-25 in Beijing: from here on the sample has every row
K27_ROWS = 2_000_000


def twin_report(name: str, root: str | Path, rows: int | None = None, seed: int = 0) -> list[Compared]:
    """Compares a twin with the real sample of `name` under `root`, and with published figures; as `statistics_of`."""
    return [compare(*pair) for pair in statistics_of(name, root, rows, seed)]


def statistics_of(name: str, root: str | Path, rows: int | None = None, seed: int = 0) -> list[Pair]:
    """Every statistic of the real sample, or as published, and of the twin.

    Args:
        name: kuairand-pure, criteo-kaggle or criteo-1tb; kuairand-27k: published figures alone, `root` is not read.
        rows: of the twin; None: those published for KuaiRand-Pure; 2 million for 27K; for Criteo 50 times the sample's.

    Raises:
        UserError: no such comparison, or the real sample is absent.
    """
    if name not in _REPORTS:
        raise UserError(f"twin-report '{name}': choose {', '.join(_REPORTS)}")
    return _REPORTS[name](name, Path(root), rows, seed)


def _pure(name: str, root: Path, rows: int | None, seed: int) -> list[Pair]:
    look = survey(PURE, root)
    if not look.found[STANDARD]:
        raise UserError(f"{name}: no standard log under '{root}'; name the folder with --data-root")
    made = kuairand_synth.Twin(rows or PURE.rows[STANDARD], seed)
    log = pd.concat([_window(pd.DataFrame(c)) for c, _ in made.blocks(made.logs[0])], ignore_index=True)
    return [
        *zip(kuairand_statistics(_kuairand_real(look)), kuairand_statistics(log), strict=True),
        *_tables(look, made),
        *published(made),
    ]


def _k27(name: str, root: Path, rows: int | None, seed: int) -> list[Pair]:
    return published(kuairand_synth.Twin(rows or K27_ROWS, seed, K27_SHAPE))


def _criteo(name: str, root: Path, rows: int | None, seed: int) -> list[Pair]:
    real, shape = _criteo_real(name, root), _CRITEO[name]
    made = synthetic.Twin(rows or 50 * len(real), seed, shape)
    frame, p = _criteo_twin(made, len(real))
    pairs = zip(criteo_statistics(real), criteo_statistics(frame.iloc[: len(real)]), strict=True)
    told = criteo_published(shape, frame["label"].to_numpy(), p, made.cardinality)
    return [*pairs, *told]


_CRITEO = dict(zip(("criteo-kaggle", "criteo-1tb"), CRITEO, strict=True))
_REPORTS: dict[str, Callable[[str, Path, int | None, int], list[Pair]]] = {
    "kuairand-pure": _pure,
    "kuairand-27k": _k27,
    **dict.fromkeys(_CRITEO, _criteo),
}


def table(report: list[Compared]) -> pd.DataFrame:
    return pd.DataFrame(_records(report))


def to_json(report: list[Compared]) -> str:
    return json.dumps(_records(report), indent=1, ensure_ascii=False)


def counted(report: list[Compared]) -> str:
    """How many are within their tolerance, in words."""
    compared = [line.within for line in report if line.within is not None]
    apart = len(report) - len(compared)
    return f"{sum(compared)} of {len(compared)} within their tolerance" + (f", {apart} not comparable" if apart else "")


def _records(report: list[Compared]) -> list[dict[str, object]]:
    """In the order of the columns: the tolerance after its two parts."""
    fields = [{**asdict(line), "tolerance": line.tolerance} for line in report]
    names = ("statistic", "source", "real", "twin", "miss", "chance", "tolerance", "within", "why")
    return [{name: values[name] for name in names} for values in fields]


def figure(report: list[Compared]):
    """Deviations in units of the tolerance, one bar a statistic: within −1 … 1 is within it."""
    import matplotlib.pyplot as plt

    frame = table([line for line in report if line.within is not None])
    off = (frame["twin"] - frame["real"]) / frame["tolerance"].clip(lower=1e-9)
    drawn, axes = plt.subplots(figsize=(7, 0.22 * len(frame) + 1))
    axes.barh(frame["statistic"], off.clip(-3, 3), color=np.where(frame["within"].astype(bool), "tab:blue", "tab:red"))
    axes.axvspan(-1, 1, alpha=0.15)
    axes.invert_yaxis()
    axes.set_xlabel("(twin − real) / tolerance")
    drawn.tight_layout()
    return drawn


def _kuairand_real(look: Survey) -> pd.DataFrame:
    frames = [pcsv.read_csv(path).to_pandas() for path in look.found[STANDARD]]
    return _window(pd.concat(frames, ignore_index=True))


def _tables(look: Survey, made: kuairand_synth.Twin) -> zip | tuple[()]:
    """Nothing where one of the two real tables is absent."""
    if not look.found[USERS] or not look.found[VIDEOS]:
        return ()
    real = [pd.read_csv(path) for path in look.paths(USERS, VIDEOS)]
    text = b"".join([VIDEO_TABLE.header.encode() + b"\n", *video_lines(made.seed, made.facts)])
    return zip(table_statistics(*real), table_statistics(made.users, pd.read_csv(io.BytesIO(text))), strict=True)


def _window(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["time_ms"] >= FIRST_REAL_MS]


def _criteo_real(name: str, root: str | Path) -> pd.DataFrame:
    import tempfile

    with tempfile.TemporaryDirectory() as prepared:
        return open_dataset(name, root, prepared=prepared).table.to_pandas()


def _criteo_twin(made: synthetic.Twin, rows: int) -> tuple[pd.DataFrame, np.ndarray]:
    """(at least `rows` rows where it has them, in whole blocks; their planted click probabilities)."""
    frames, probabilities, have = [], [], 0
    for table_, p_n in made.blocks():
        frames.append(table_.to_pandas())
        probabilities.append(p_n)
        have += len(p_n)
        if have >= rows:
            break
    return pd.concat(frames, ignore_index=True), np.concatenate(probabilities)
