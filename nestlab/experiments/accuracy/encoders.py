"""Three encoders trained plainly on the same windows, beside the items' popularity.

Predicted before the first run: all three are far above popularity; HSTU and FuXi-α, which see when an event was, are
above SASRec by less than the spread of three seeds times three, since Pure is a thinned log of short histories.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments.accuracy.settings import ENCODERS, METRICS
from nestlab.experiments.over_seeds import over_seeds, with_spreads
from nestlab.experiments.tables import Said, answer, chosen

POPULAR = "most popular"
# Claims on full ranking elsewhere, and the metric that each tells of SASRec, HSTU and FuXi-α.
ORDERS = {"RL-P-074": "HR@10", "RL-P-075": "HR@50", "RL-P-076": "NDCG@10", "RL-P-077": "NDCG@50", "RL-P-078": "MRR"}
PURE = "RL-P-084"  # HSTU on Pure
ELSEWHERE = (*ORDERS, *(f"RL-P-{number:03d}" for number in range(79, 87)))


def by_model(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a model, means and spreads over its seeds; in the order of the frame."""
    return over_seeds(frame, ["model"], METRICS, first=["weights"], means=["seconds"])


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    found = by_model(frame)
    for metric in METRICS:
        found[metric] = with_spreads(found, metric)
    names = {"model": "model", "seeds": "seeds", **{metric: metric for metric in METRICS}}
    return chosen(found, names | {"weights": "weights of the dense part", "seconds": "seconds a training"})


def says(frame: pd.DataFrame) -> Said:
    """Whether HSTU is above popularity, in its own standard deviations, and where it is against SASRec."""
    found = by_model(frame).set_index("model")
    hstu, popular, sasrec = (found.loc[name] for name in (ENCODERS["hstu"], POPULAR, ENCODERS["sasrec"]))
    ahead = hstu["HR@10"] - popular["HR@10"]
    text = f"HSTU's HR@10 is {hstu['HR@10']:.4f}, that of the most popular items {popular['HR@10']:.4f}"
    if hstu["HR@10 sd"] > 0:
        text += f": {ahead / hstu['HR@10 sd']:.1f} standard deviations over its seeds apart"
    fuxi = found.loc[ENCODERS["fuxi"]]
    return Said(
        f"{text}. {_against(hstu['HR@10'] - sasrec['HR@10'], seed_spread(found))} FuXi-α has {fuxi['HR@10']:.4f}."
    )


def _against(gap: float, noise: float) -> str:
    """Where HSTU is against SASRec, by HR@10 and its spread over seeds (NaN: one seed); a sentence."""
    if np.isnan(noise):
        return f"Its difference to SASRec is {gap:+.4f}; with one seed that tells nothing of which is better."
    place = "above" if gap > noise else "**below**" if gap < -noise else "within the spread over seeds of"
    return f"It is {place} SASRec: {gap:+.4f}, where the larger of both spreads is {noise:.4f}."


def seed_spread(found: pd.DataFrame) -> float:
    """The larger standard deviation over seeds of HR@10, of HSTU and SASRec."""
    return float(found.loc[[ENCODERS["hstu"], ENCODERS["sasrec"]], "HR@10 sd"].max())


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """A panel a metric, a bar a model: the mean over its seeds, with a dot each where there are several."""
    found = by_model(frame)
    with plotting.style():
        figure = plotting.new_figure(11.0, 3.4)
        for axes, metric in zip(figure.subplots(1, len(METRICS)), METRICS, strict=True):
            for number, (_, row) in enumerate(found.iterrows()):
                axes.bar(number, row[metric], 0.7, **plotting.bar_style(number))
                seeds = frame.loc[frame["model"] == row["model"], metric]
                dots = seeds if len(seeds) > 1 else []
                axes.scatter([number] * len(dots), dots, s=12, color=plotting.INK, zorder=3)
                text, above = f"{row[metric]:.3f}".lstrip("0"), (0, 4 if len(dots) else 1)
                axes.annotate(
                    text, (number, max(seeds)), above, textcoords="offset points", ha="center", va="bottom", fontsize=7
                )
            axes.set_xticks(range(len(found)), found["model"], rotation=35, ha="right")
            axes.margins(y=0.12)
            axes.set_xlabel(metric)
            axes.grid(False, axis="x")
        if found["seeds"].max() > 1:
            figure.supxlabel("a dot: one seed; a bar: the mean of its seeds", fontsize=8)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def answers(frame: pd.DataFrame) -> list[dict]:
    """The order of the encoders, and HSTU on Pure where real rows of it were trained on."""
    found = by_model(frame).set_index("model")
    names = [ENCODERS[name] for name in ("sasrec", "hstu", "fuxi")]
    seeds = ", ".join(f"{name} {found.loc[name, 'seeds']}" for name in names)
    about = f"{frame['data'].iloc[0]}; means over seeds: {seeds}"
    given = [
        answer(claim_id, [float(found.loc[name, metric]) for name in names], "measured", about)
        for claim_id, metric in ORDERS.items()
    ]
    if frame["real_pure"].all():
        hstu = found.loc[ENCODERS["hstu"]]
        given.append(answer(PURE, [float(hstu["HR@50"]), float(hstu["NDCG@50"])], "measured", about))
    return given


def key_figures(frame: pd.DataFrame) -> dict[str, float]:
    """HR@10 of each, and how far HSTU is from popularity in standard deviations over its seeds."""
    found = by_model(frame).set_index("model")
    figures = {f"hr10_{name}": float(found.loc[shown, "HR@10"]) for name, shown in ENCODERS.items()}
    figures["hr10_popular"] = float(found.loc[POPULAR, "HR@10"])
    hstu = found.loc[ENCODERS["hstu"]]
    if hstu["HR@10 sd"] > 0:
        figures["hstu_above_popular_sd"] = float((hstu["HR@10"] - figures["hr10_popular"]) / hstu["HR@10 sd"])
    return figures
