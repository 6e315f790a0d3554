"""Pictures: titles say what they show, labels lie on their bars, short actions and gaps are not lost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import matplotlib as mpl
import pytest
from made_traces import LANES, META, pipelined_trace, plain_trace
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nestlab import plotting
from nestlab.tracing import Trace, exposed_ns, merge, plot_exposed, plot_timeline


def bars(figure: Figure) -> list[Rectangle]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize("how", ["measured", "emulated link", "simulated cluster"])
def test_titles_carry_the_data_set_and_how(how):
    trace = replace(plain_trace(3), meta=META | {"how": how})
    for figure in (plot_timeline(trace), plot_exposed(trace)):
        title = figure.axes[0].get_title(loc="left")
        assert META["dataset"] in title and how in title and "plain" in title


def test_titles_without_meta_say_so():
    title = plot_timeline(replace(plain_trace(1), meta={})).axes[0].get_title(loc="left")
    assert "data set not named" in title and "not stated" in title


def test_a_long_title_stays_inside_the_picture():
    trace = replace(plain_trace(2), meta=META | {"dataset": "a very long name of a data set " * 8})
    for figure in (plot_timeline(trace), plot_exposed(trace)):
        figure.draw_without_rendering()
        title = figure.axes[0]._left_title.get_window_extent()
        assert title.x1 <= figure.bbox.x1 and title.y1 <= figure.bbox.y1


def test_every_label_lies_on_a_bar_and_none_overlap():
    figure = plot_timeline(pipelined_trace(8, parts=8))
    figure.draw_without_rendering()
    boxes = [bar.get_window_extent() for bar in bars(figure)]
    labels = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(labels) > 20
    assert not any(text.replace(".", "").isdigit() for text in texts(figure))  # a number without its stage
    for label in labels:
        assert any(b.x0 <= label.x0 and label.x1 <= b.x1 and b.y0 <= label.y0 and label.y1 <= b.y1 for b in boxes)
    rows: dict[int, list] = {}
    for label in labels:
        rows.setdefault(round(label.y0 + label.y1), []).append(label)
    for row in rows.values():
        row.sort(key=lambda box: box.x0)
        assert all(a.x1 <= b.x0 for a, b in pairwise(row))


def test_the_shortest_action_is_drawn():
    figure = plot_timeline(plain_trace(3))
    shortest = min(bars(figure), key=lambda bar: bar.get_width())
    assert shortest.get_width() == pytest.approx(0.01)
    assert shortest.get_edgecolor() == mpl.colors.to_rgba(plotting.lane_colour("fetch"))
    assert shortest.get_linewidth() >= 1


def test_gaps_of_the_compute_lane_fill_it_up():
    trace = plain_trace(3, gap_us=0)
    figure = plot_timeline(trace, batches=3)
    row = LANES.index("compute")
    drawn = sum(bar.get_width() for bar in bars(figure) if abs(bar.get_y() + bar.get_height() / 2 - row) < 1e-9)
    begin, end = trace.span(0)
    assert drawn == pytest.approx((end - begin) / 1e6)


def test_first_batch_chooses_the_window():
    trace = pipelined_trace(8, parts=1)
    figure = plot_timeline(trace, first_batch=2, batches=1)
    assert "FWD 2.0" in texts(figure) and "FWD 3.0" not in texts(figure)
    step = trace.step_spans(0)[2]
    assert figure.axes[0].get_xlim()[1] == pytest.approx((step.end_ns - step.start_ns) / 1e6)
    with pytest.raises(ValueError, match="batches 0 to 7"):
        plot_timeline(trace, first_batch=99)


def test_ranks_have_rows_of_their_own_up_to_a_number():
    figure = plot_timeline(merge([plain_trace(2, rank=rank) for rank in range(6)]))
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[0] == "rank 0 · load" and len(names) == 4 * len(LANES)
    assert "ranks 0 to 3 of 6" in figure.axes[0].get_title(loc="left")


def test_a_trace_without_events_or_compute_is_drawn():
    plot_timeline(Trace((), (), LANES, META))
    plot_exposed(Trace((), (), LANES, META))
    only_load = plain_trace(2)
    events = tuple(event for event in only_load.events if event.lane == "load")
    assert bars(plot_timeline(Trace(events, (), LANES, META)))


def test_bars_of_plot_exposed_sum_to_the_step():
    trace = plain_trace(4)
    figure = plot_exposed(trace)
    begin, end = trace.span(0)
    assert sum(bar.get_width() for bar in bars(figure)) == pytest.approx((end - begin) / 1e6 / 4)
    waits = [label.get_text() for label in figure.axes[0].get_yticklabels() if "waiting" in label.get_text()]
    assert len(waits) == sum(1 for ns in exposed_ns(trace).values() if ns)


def test_one_colour_a_lane_also_in_grey_against_its_label():
    colours = [plotting.lane_colour(lane) for lane in LANES]
    assert len(set(colours)) == len(LANES)
    assert plotting.lane_colour("deferred") == plotting.lane_colour("deferred")
    for colour in (*colours, *plotting.PALETTE.values()):
        assert abs(plotting.lightness(colour) - plotting.lightness(plotting.text_colour(colour))) > 0.3


def test_series_differ_in_more_than_colour():
    lines = [plotting.series_style(n) for n in range(7)]
    assert len({line["marker"] for line in lines}) == 7
    assert len({plotting.bar_style(n)["hatch"] for n in range(7)}) == 7


def test_the_style_leaves_the_callers_settings_alone():
    before = dict(mpl.rcParams)
    with plotting.style():
        assert mpl.rcParams["axes.titlelocation"] == "left"
    assert dict(mpl.rcParams) == before
