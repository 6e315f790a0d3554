"""What `driving.drive` saw, as a picture: a row an action, a block a place, a cell a record."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from nestlab import plotting
from nestlab.experiments.mechanisms.driving import HOST

CHANGED = plotting.pale(plotting.PALETTE["orange"], 0.45)
READ = plotting.pale(plotting.PALETTE["green"], 0.55)
WRONG = plotting.PALETTE["vermilion"]
OLD = "#757575"  # text of a value that is behind the newest
_GAP = 0.9  # between blocks, in cells
_ROW, _CELL = 0.27, 0.54  # inches


def film(frame: pd.DataFrame, title: str) -> Figure:
    """The looks from top to bottom; in each cell the id (small) and how many updates its record has seen."""
    actions = frame.drop_duplicates("number")["action"].tolist()
    left, first = _lefts(frame), {place: _first(frame, place) for place in frame["place"].unique()}
    width = max(left[place] + _slots(frame, place) for place in left)
    with plotting.style():
        figure = plotting.new_figure(1.5 + _CELL * width, 1.35 + _ROW * len(actions))
        axes = figure.add_subplot()
        _set_up(axes, frame, actions, left, width)
        for row in frame.itertuples():
            _draw(axes, row, left[row.place] + row.slot - first[row.place])
        for artist in (
            *axes.patches,
            *axes.texts[len(left) :],
        ):  # cells lie inside: measuring each takes most of the time
            artist.set_in_layout(False)
        axes.set_title(title, pad=22)
        _legend(figure, frame)
    return figure


def _set_up(axes: Axes, frame: pd.DataFrame, actions: list[str], left: dict[str, float], width: float) -> None:
    axes.set_xlim(-0.1, width + 0.1)
    axes.set_ylim(len(actions), 0)
    axes.set_yticks(np.arange(len(actions)) + 0.5, actions, family="monospace")
    axes.set_xticks([])
    axes.grid(False)
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    for place, at in left.items():
        middle = at + _slots(frame, place) / 2
        axes.text(middle, -0.25, place, ha="center", va="bottom", fontsize=9, weight="bold")
    for number, action in enumerate(actions):
        if number and action.startswith("PREPARE"):
            axes.axhline(number, color=plotting.INK, linewidth=0.4, linestyle=(0, (1, 3)))


def _draw(axes: Axes, row, at: float) -> None:
    wrong, old, foreign = row.read and row.value != row.plain, row.value < row.newest, row.value > row.newest
    face = WRONG if wrong else READ if row.read else CHANGED if row.changed else plotting.PAPER
    edge = {"edgecolor": WRONG, "linewidth": 1.4} if foreign else {"edgecolor": "#BBBBBB", "linewidth": 0.5}
    axes.add_patch(Rectangle((at + 0.04, row.number + 0.08), 0.92, 0.84, facecolor=face, **edge))
    ink = plotting.text_colour(face) if wrong or not old else OLD
    axes.text(at + 0.13, row.number + 0.52, str(row.id), ha="left", va="center", fontsize=6, color=ink)
    empty = np.isnan(row.value)
    mark = " ✗" if wrong else " ✓" if row.read else " !" if foreign else ""
    value = "–" if empty else f"{row.value:g}{mark}"
    weight = "bold" if row.changed and not empty else "normal"
    axes.text(at + 0.62, row.number + 0.52, value, ha="center", va="center", fontsize=8.5, color=ink, weight=weight)


def _legend(figure: Figure, frame: pd.DataFrame) -> None:
    look = {"edgecolor": "#BBBBBB", "linewidth": 0.5}
    handles = [
        Patch(facecolor=CHANGED, label="changed by this action", **look),
        Patch(facecolor=READ, label="read by the forward pass ✓", **look),
    ]
    if (frame["read"] & (frame["value"] != frame["plain"])).any():
        handles.append(Patch(facecolor=WRONG, label="read, and not what plain reads ✗", **look))
    if (frame["value"] < frame["newest"]).any():
        handles.append(Patch(facecolor=plotting.PAPER, label="grey number: older than the newest", **look))
    if (frame["value"] > frame["newest"]).any():
        foreign = Patch(facecolor=plotting.PAPER, edgecolor=WRONG, linewidth=1.4, label="another id's record !")
        handles.append(foreign)
    if frame["value"].isna().any():
        handles.append(Patch(facecolor=plotting.PAPER, label="–: room is left, no record yet", **look))
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), handlelength=1.6)


def _lefts(frame: pd.DataFrame) -> dict[str, float]:
    """Where each place's block begins, in cells."""
    left, at = {}, 0.0
    for place in sorted(frame["place"].unique(), key=lambda place: (place != HOST, place)):
        left[place] = at
        at += _slots(frame, place) + _GAP
    return left


def _first(frame: pd.DataFrame, place: str) -> int:
    return int(frame.loc[frame["place"] == place, "slot"].min())


def _slots(frame: pd.DataFrame, place: str) -> int:
    own = frame.loc[frame["place"] == place, "slot"]
    return int(own.max() - own.min()) + 1
