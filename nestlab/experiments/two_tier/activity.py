"""How few rows are hot: the share of look-ups that the hottest ones get, and of the ids that a window of batches uses.

Predicted before the first run: Criteo's 26 columns together are far more skewed than KuaiRand-Pure, whose videos were
chosen for their number of plays; a batch uses a few per cent of the ids, a day a third or more of so small a log.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments import claims
from nestlab.experiments.tables import answer
from nestlab.experiments.two_tier import key_streams
from nestlab.experiments.two_tier.key_streams import KeyStream
from nestlab.experiments.two_tier.settings import Settings

HOTTEST = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # shares of the distinct ids, the most used first
WINDOWS = (1, 2, 6, 20, 60)  # batches
_MOST_WINDOWS = 200  # of one length that are counted, evenly spread
_BAGPIPE, _ACTIVE = "RL-P-048", "RS-A-001"


def measure(settings: Settings) -> pd.DataFrame:
    """A row a stream and point.

    Returns:
        columns label, data, kind, keys, batch_size, distinct; what: `hottest`, `window` or `day`; at: a share of the
        distinct ids, or batches; share: of the look-ups, or the median share of the distinct ids that a window uses.
    """
    return pd.DataFrame([row for stream in key_streams.logs(settings) for row in _of_stream(stream)])


def _of_stream(stream: KeyStream) -> list[dict]:
    about = {name: getattr(stream, name) for name in ("label", "data", "kind", "batch_size", "distinct")}
    about["keys"] = stream.name
    cumulated = np.concatenate(([0], np.cumsum(np.sort(stream.uses)[::-1])))
    rows = [
        {**about, "what": "hottest", "at": share, "share": cumulated[round(share * stream.distinct)] / cumulated[-1]}
        for share in HOTTEST
    ]
    for length in WINDOWS:
        if length <= len(stream.batches):
            rows.append({**about, "what": "window", "at": length, "share": _active(stream, _windows(stream, length))})
    if stream.days:
        median = float(np.median([end - begin for begin, end in stream.days]))
        rows.append({**about, "what": "day", "at": median, "share": _active(stream, stream.days)})
    return rows


def _windows(stream: KeyStream, length: int) -> list[tuple[int, int]]:
    last = len(stream.batches) - length
    begins = np.unique(np.linspace(0, last, min(_MOST_WINDOWS, last + 1)).astype(int)).tolist()
    return [(begin, begin + length) for begin in begins]


def _active(stream: KeyStream, windows: list[tuple[int, int]]) -> float:
    """The median share of the distinct ids that the batches begin … end − 1 use."""
    counts = []
    for begin, end in windows:
        used = np.zeros(stream.distinct, dtype=bool)
        used[np.concatenate(stream.batches[begin:end])] = True
        counts.append(np.count_nonzero(used))
    return float(np.median(counts)) / stream.distinct


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Left: how many of the look-ups the hottest ids get. Right: how many of the ids a window uses, a day marked."""
    with plotting.style():
        figure = plotting.new_figure(10.0, 4.2)
        hot, active = figure.subplots(1, 2)
        for number, (label, lines) in enumerate(frame.groupby("label", sort=False)):
            look = {"markersize": 4, "linewidth": 1.2, **plotting.series_style(number)}
            for axes, what, scale in ((hot, "hottest", 100), (active, "window", 1)):
                part = lines[lines["what"] == what]
                axes.plot(part["at"] * scale, part["share"] * 100, label=label, **look)
            day = lines[lines["what"] == "day"]
            day_look = look | {"linestyle": "", "markersize": 9, "markerfacecolor": plotting.PAPER}
            active.plot(day["at"], day["share"] * 100, **day_look)
        _published(hot, _BAGPIPE, at=1)
        _published(active, _ACTIVE)
        hot.set(xlabel="the hottest ids, in % of the distinct ones", ylabel="their share of the look-ups in %")
        active.set(xlabel="batches in the window (large, hollow: a day)", ylabel="distinct ids in use, in % of all")
        for axes in (hot, active):
            axes.set_xscale("log")
            axes.set_ylim(0, 102)
        hot.set_xticks([100 * share for share in HOTTEST], [f"{100 * share:g}" for share in HOTTEST])
        active.set_xticks([*WINDOWS, 200], [str(n) for n in (*WINDOWS, 200)])
        for axes in (hot, active):
            axes.minorticks_off()
        figure.legend(*hot.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _published(axes, claim_id: str, at: float | None = None) -> None:
    """The published figure: a point where it names one, else a line."""
    value = float(claims.claim(claim_id).value)
    if at is None:
        axes.axhline(value, color=plotting.INK, linewidth=0.8, linestyle=":")
        axes.annotate(
            f"published: {value:g} %", (200, value), (0, 3), textcoords="offset points", ha="right", fontsize=8
        )
        return
    axes.plot(at, value, marker="*", markersize=11, color=plotting.INK, linestyle="", label=f"published: {value:g} %")


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a stream: look-ups that the hottest 1 % get, and ids in use in a batch, in two, in six, in a day."""
    rows = []
    for label, lines in frame.groupby("label", sort=False):
        shares = {(row["what"], row["at"]): 100 * row["share"] for _, row in lines.iterrows()}
        day = [value for (what, _), value in shares.items() if what == "day"]
        row = {"stream": label, "distinct_ids": lines["distinct"].iloc[0]}
        row["look-ups_of_the_hottest_1_%"] = shares["hottest", 0.01]
        row |= {f"ids_in_{n}_batches_%": shares.get(("window", n)) for n in WINDOWS[:3]}
        rows.append(row | {"ids_in_a_day_%": day[0] if day else None})
    return pd.DataFrame(rows)


def answers(frame: pd.DataFrame) -> list[dict]:
    """RL-P-048 on Criteo, Bagpipe's own data set; RS-A-001 by the day, with the share of a batch beside it."""
    real = frame[frame["kind"] == "real"]
    found = []
    criteo = real[real["keys"].str.startswith("C")]
    if not criteo.empty:
        hottest = criteo[(criteo["what"] == "hottest") & (criteo["at"] == 0.01)].iloc[0]
        note = f"{hottest['data']}, all columns together; a short log: most ids are seen once"
        found.append(_answer(_BAGPIPE, 100 * hottest["share"], note))
    days = real[(real["what"] == "day") & (real["keys"] == "video_id")]
    if not days.empty:
        one = real[(real["what"] == "window") & (real["at"] == 1)]
        batches = ", ".join(f"{100 * row['share']:.1f} % of {row['keys']}" for _, row in one.iterrows())
        note = f"{days['data'].iloc[0]}, video ids of a day (median over the days). A batch uses {batches}"
        found.append(_answer(_ACTIVE, 100 * days["share"].iloc[0], note))
    return found


def _answer(claim_id: str, percent: float, note: str) -> dict:
    return answer(claim_id, round(float(percent), 2), "measured", note)
