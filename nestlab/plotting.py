"""How every plot of the suite looks: one palette, one colour a lane, readable when printed in grey.

The palette is that of Okabe and Ito (Color Universal Design, 2008), which people with the common kinds of colour
blindness can tell apart. Colour never carries the meaning alone: bars have labels or hatches, lines have markers.
"""

from __future__ import annotations

import io
import textwrap
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import seaborn as sns
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

PALETTE = {
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#999999",
}
INK = "#222222"
PAPER = "#FFFFFF"
IDLE = "#E4E4E4"  # time in which nothing that we know of ran

# Neighbours in a timeline differ in lightness too, which is what is left of them in grey.
LANE_COLOURS = {
    "load": PALETTE["orange"],
    "copy": PALETTE["grey"],
    "route": PALETTE["purple"],
    "fetch": PALETTE["sky"],
    "comm": PALETTE["blue"],
    "compute": PALETTE["vermilion"],
}
_SPARE = (PALETTE["green"], PALETTE["yellow"])  # for lanes that a technique adds

SERIES_COLOURS = tuple(PALETTE[name] for name in ("blue", "vermilion", "green", "orange", "sky", "purple", "grey"))
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "ooo", "---")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))

_RC = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 120,
    "savefig.dpi": 160,
    "font.size": 9,
    "grid.color": "#D0D0D0",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


@contextmanager
def style() -> Iterator[None]:
    """The suite's look for what is drawn inside; the caller's settings come back afterwards."""
    look = {**sns.axes_style("whitegrid"), **sns.plotting_context("paper"), **_RC}
    with mpl.rc_context({name: value for name, value in look.items() if name in mpl.rcParams}):
        yield


class ShownFigure(Figure):
    """A figure that a notebook shows although pyplot, which would have seen to that, does not know it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=_RC["figure.dpi"], bbox_inches="tight")
        return buffer.getvalue()


def new_figure(width: float = 9.0, height: float = 4.0) -> Figure:
    """A figure of that many inches whose parts make room for one another.

    It is unknown to pyplot: a notebook shows it once, and a long run does not collect open figures.
    """
    figure = ShownFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def lane_colour(lane: str) -> str:
    """The lane's own colour; one that a technique adds gets a spare one, the same in every run and process."""
    return LANE_COLOURS.get(lane) or _SPARE[zlib.crc32(lane.encode()) % len(_SPARE)]


def series_style(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of the n-th line of a plot."""
    place = number % len(SERIES_COLOURS)
    return {"color": SERIES_COLOURS[place], "marker": MARKERS[place], "linestyle": DASHES[place]}


def bar_style(number: int) -> dict[str, Any]:
    """Colour and hatch of the n-th group of bars."""
    place = number % len(SERIES_COLOURS)
    return {"facecolor": SERIES_COLOURS[place], "hatch": HATCHES[place], "edgecolor": INK, "linewidth": 0.6}


def lightness(colour: str) -> float:
    """0 (black) … 1 (white): the grey that a printer makes of it (ITU-R BT.601 weights)."""
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def text_colour(background: str) -> str:
    """Ink or paper, whichever is read more easily on this background."""
    return INK if lightness(background) > 0.5 else PAPER


def pale(colour: str, share: float = 0.65) -> str:
    """The colour mixed with that share of white."""
    return to_hex([channel + (1 - channel) * share for channel in to_rgb(colour)])


def titled(title: str, meta: Mapping[str, Any], width: int = 110) -> str:
    """A title that says what the numbers come from: the data set's title and how they were obtained.

    Lines of more than `width` characters are broken, since a picture cuts off what does not fit: at a `·` where one is
    within reach, so that what belongs together stays so.
    """
    source = f"{meta.get('dataset') or 'data set not named'} · {meta.get('how') or 'how obtained: not stated'}"
    return "\n".join([textwrap.fill(title, width), *(textwrap.fill(line, width) for line in _packed(source, width))])


def _packed(text: str, width: int) -> list[str]:
    """Lines of as many parts between `·` as `width` characters hold, one at least."""
    lines: list[str] = []
    for part in text.split(" · "):
        if lines and len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines
