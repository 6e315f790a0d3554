"""The same links, other models: wider embeddings and deeper dense parts.

Predicted before the first run: wider rows make the exchange longer than the computation that is to hide it, so that the
gain shrinks; a deeper dense part leaves less to hide, so that it shrinks too. Neither falls below 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments.nestpipe.cases import NESTPIPE, NONE
from nestlab.experiments.nestpipe.links import EMULATED
from nestlab.experiments.tables import Said, answer, chosen, medians, rounds_text, spread_text

VARIED = {"dim": "embedding width", "layers": "layers of the dense part"}
_STEPS = {"plain_step_ms": "none (the plain loop)", "nestpipe_step_ms": "NestPipe: both pipelines, clustered"}
_DIGEST = {
    "varied": "varied",
    "value": "value",
    "plain_step_ms": "plain step, ms",
    "plain_spread": "plain, ms (least to most)",
    "nestpipe_step_ms": "NestPipe's step, ms",
    "nestpipe_spread": "NestPipe, ms (least to most)",
    "speedup": "speed, × plain",
    "plain_idle_share": "plain idle, %",
    "nestpipe_idle_share": "NestPipe idle, %",
    "plain_peak_device_bytes": "plain peak, MB",
    "nestpipe_peak_device_bytes": "NestPipe's peak, MB",
}
_CLAIMS = {"dim": "NP-P-059", "layers": "NP-P-060"}


def derived(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a size: the step of the plain loop and of NestPipe, their ratio, what stays idle, and peak bytes."""
    keys = ["varied", "value"]
    middle = medians(frame, [*keys, "case"])
    plain, ours = (middle[middle["case"] == name].set_index(keys) for name in (NONE, NESTPIPE))
    return pd.DataFrame(
        {
            "how": ours["how"],
            "plain_step_ms": plain["step_ms"],
            "nestpipe_step_ms": ours["step_ms"],
            "plain_spread": plain.apply(spread_text, axis=1),
            "nestpipe_spread": ours.apply(spread_text, axis=1),
            "plain_step_ms_low": plain["step_ms_low"],
            "plain_step_ms_high": plain["step_ms_high"],
            "nestpipe_step_ms_low": ours["step_ms_low"],
            "nestpipe_step_ms_high": ours["step_ms_high"],
            "rounds": ours["rounds"],
            **{name: ours[name] for name in ("events", "data") if name in ours},
            "speedup": plain["step_ms"] / ours["step_ms"],
            "plain_idle_share": plain["idle_share"],
            "nestpipe_idle_share": ours["idle_share"],
            "plain_peak_device_bytes": plain["peak_device_bytes"],
            "nestpipe_peak_device_bytes": ours["peak_device_bytes"],
        }
    ).reset_index()


def plot(frame: pd.DataFrame, title: str, names: Mapping[str, str] = VARIED) -> Figure:
    """A panel a size: steps of both, the ratio above. `names`: what is varied, as a reader knows it."""
    found = derived(frame)
    rounds = int(found["rounds"].max())
    with plotting.style():
        figure = plotting.new_figure(9.5, 3.6)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        for axes, (varied, label) in zip(figure.subplots(1, len(names)), names.items(), strict=True):
            rows = found[found["varied"] == varied].reset_index(drop=True)
            for number, (column, name) in enumerate(_STEPS.items()):
                at = rows.index + (number - 0.5) * 0.4
                axes.bar(at, rows[column], 0.38, label=name, **plotting.bar_style(number))
                if rounds > 1:
                    spread = rows[column] - rows[f"{column}_low"], rows[f"{column}_high"] - rows[column]
                    axes.errorbar(at, rows[column], yerr=spread, fmt="none", ecolor=plotting.INK, capsize=3)
            for x, row in rows.iterrows():
                highest = max(row["plain_step_ms_high"], row["nestpipe_step_ms_high"])
                axes.annotate(f"{row['speedup']:.2f}×", (x, highest), (0, 3), textcoords="offset points", ha="center")
            axes.set_xticks(rows.index, [f"{value}" for value in rows["value"]])
            axes.set(xlabel=label, ylabel="ms a step")
            axes.grid(False, axis="x")
            axes.margins(y=0.12)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, title=rounds_text(rounds))
    return figure


def digest(frame: pd.DataFrame, names: Mapping[str, str] = VARIED) -> pd.DataFrame:
    found = derived(frame)
    return chosen(found.assign(varied=found["varied"].map(names)), _DIGEST)


def says(frame: pd.DataFrame, names: Mapping[str, str] = VARIED) -> Said:
    found = derived(frame)
    least, most = found.loc[found["speedup"].idxmin()], found.loc[found["speedup"].idxmax()]
    told = (
        f"NestPipe's speed over the plain loop, the links staying as they are: least {_told(least, names)}, most "
        f"{_told(most, names)}."
    )
    if least["speedup"] < 1:
        told += " Below 1, micro-batches, threads and clustering cost more than they hide."
    return Said(told)


def _told(row: pd.Series, names: Mapping[str, str]) -> str:
    idle = f"the plain loop waits in {row['plain_idle_share']:.0%} of its step"
    return f"{row['speedup']:.2f} (at {names[row['varied']]} {row['value']}, where {idle})"


def answers(frame: pd.DataFrame) -> list[dict]:
    found = derived(frame)
    given = []
    for varied, claim in _CLAIMS.items():
        rows = found[found["varied"] == varied]
        each = ", ".join(f"{row.value}: {row.speedup:.2f}" for row in rows.itertuples())
        given.append(answer(claim, float(rows["speedup"].min()), EMULATED, f"by {VARIED[varied]}: {each}"))
    return given
