"""Features come and go: what thresholds of admission and eviction do to the size of the tables and to the model.

JD's article names admission and eviction without a figure; RecSDK's code has the rules (papers.md 4.2, 5.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from nestlab import plotting
from nestlab.embedding import EmbeddingStore, Tiers
from nestlab.embedding.features import FeatureRules
from nestlab.experiments.two_tier.by_hand import ByHand, Occurrences, occurrences
from nestlab.experiments.two_tier.one_pass import Stream, distinct_ids, open_stream, rounds
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.training import Model, Trained, quality, table_size, train

THRESHOLDS = (2, 4, 8, 16)
SCORES = (2, 4, 8, 16, 32)  # a show counts 1, a click 10
AGES = (0.05, 0.125, 0.5)  # of the steps
SHARES = (0.05, 0.2, 0.5)  # of the rows in use, a round
SKETCH_BYTES = 64 << 10  # about two counters an id of the real log: small enough to err
FEW_SECONDS = 10.0  # below, every other setting will do


@dataclass(frozen=True)
class Setting:
    """One line of the table: a rule and the number that is varied."""

    rule: str
    value: float
    unit: str
    rules: FeatureRules


def choose(settings: Settings, steps: int) -> list[Setting]:
    """`none` first."""
    every = max(10, steps // 10)
    step = 2 if settings.seconds < FEW_SECONDS else 1
    found = [Setting("none", 1, "occurrences", FeatureRules())]
    for rule, values, unit in (
        ("count", THRESHOLDS, "occurrences"),
        ("sketch", THRESHOLDS, "occurrences"),
        ("show_click", SCORES, "score"),
    ):
        for value in values[::step]:
            rules = FeatureRules(admit=rule, admit_threshold=value, evict_every=every, sketch_bytes=SKETCH_BYTES)
            found.append(Setting(rule, value, unit, rules))
    for share in AGES[::step]:
        after = max(1, round(share * steps))
        found.append(Setting("age", after, "batches", FeatureRules(evict="age", evict_after=after, evict_every=10)))
    for share in SHARES[::step]:
        rules = FeatureRules(evict="score", evict_share=share, evict_every=every)
        found.append(Setting("score", share, "share a round", rules))
    return found


def measure(settings: Settings) -> pd.DataFrame:
    """A row a setting and repetition (a seed each).

    Columns: rule, value, unit, repetition, seed, steps; rows, index_bytes, record_bytes, rules_bytes (what the rules
    themselves keep), disk_bytes (0), total_bytes, refused_share (of the look-ups of unique keys in training),
    evicted_rows, auc, auc_low, auc_high (95 % over resampled held-out rows), log_loss_nats, step_ms (median);
    as_by_hand (the keys with a row are those of the rules worked in plain Python; None for a sketch, whose counts are
    estimates), refused_read_default (ids without a row read the constant, and are in no export); how_obtained.
    """
    stream = open_stream(settings)
    counted, chosen = list(occurrences(stream.train)), choose(settings, len(stream.train))
    rows = []
    for repetition in rounds(settings):
        for setting in chosen:
            rows.append({"repetition": repetition, **_one(settings, stream, setting, settings.seed + repetition)})
            rows[-1]["as_by_hand"] = _as_by_hand(rows[-1].pop("keys"), setting, counted) if not repetition else None
    return pd.DataFrame(rows)


def _one(settings: Settings, stream: Stream, setting: Setting, seed: int) -> dict[str, Any]:
    tiers = Tiers(features=setting.rules, device=settings.device)
    trained = train(Model(seed=seed, tiers=tiers, device=settings.device).build(stream), stream.train)
    size = table_size(trained.store)
    keys = with_row(trained.store, stream.features)
    return {
        **{name: value for name, value in asdict(setting).items() if name != "rules"},
        **{"seed": seed, "steps": len(stream.train)},
        **size,
        "total_bytes": sum(value for name, value in size.items() if name.endswith("_bytes")),
        **_counted(trained),
        **quality(trained.pipeline, stream.heldout, seed),
        "step_ms": float(np.median(trained.step_ms)),
        "refused_read_default": _untouched(trained.store, stream, keys) if setting.rules.admit != "none" else None,
        "keys": keys,
        "how_obtained": "measured",
    }


def _counted(trained: Trained) -> dict[str, float]:
    counters = trained.store.counters
    asked = counters.known + counters.inserts + counters.refused
    return {"refused_share": counters.refused / asked, "evicted_rows": counters.evicted}


def with_row(store: EmbeddingStore, features: tuple[str, ...]) -> list[np.ndarray]:
    """[F] arrays [n] int64, ascending: the ids of each table that have a row."""
    return [store.export(name)["ids"].numpy() for name in features]


def _as_by_hand(keys: list[np.ndarray], setting: Setting, counted: list[Occurrences]) -> bool | None:
    """Whether the rules, worked key by key, give rows to the same keys."""
    if setting.rule == "sketch":
        return None
    expected = ByHand(setting.rules).run(counted).seen
    return sorted(expected) == [(number, i) for number, ids in enumerate(keys) for i in ids.tolist()]


def _untouched(store: EmbeddingStore, stream: Stream, keys: list[np.ndarray]) -> bool:
    """Whether every id that came and has no row reads the default, 0, in all its weights."""
    came = distinct_ids(stream.train)
    refused = [np.setdiff1d(ids, known) for ids, known in zip(came, keys, strict=True)]
    pairs = zip(stream.features, refused, strict=True)
    return all(not store.full_weight(name, ids).any() for name, ids in pairs if ids.size)


def answers(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """JD-A-015 and RS-C-003, -012, -016, -017, -026: claim_id, obtained, how, note."""
    refusing = frame[frame["rule"].isin(("count", "sketch", "show_click"))]
    untouched = bool(refusing["refused_read_default"].all())
    held = {rule: _by_hand(frame, rule) for rule in ("count", "show_click", "age", "score")}
    falling = all(_falls(frame, rule) for rule in ("count", "show_click"))
    found = {
        "JD-A-015": (
            untouched and falling and held["age"],
            "refused ids read the default; fewer rows as thresholds rise",
        ),
        "RS-C-003": (untouched, "by a mark in place of a slot of its own: refused ids read the default"),
        "RS-C-012": (held["count"], "keys with a row as counted in plain Python"),
        "RS-C-016": (held["show_click"], "keys with a row as by scores in plain Python"),
        "RS-C-017": (held["score"], "keys left as by scores and victims in plain Python"),
        "RS-C-026": (untouched and held["count"], "refused ids are in no export and read the default"),
    }
    return [{"claim_id": i, "obtained": value, "how": "measured", "note": note} for i, (value, note) in found.items()]


def _by_hand(frame: pd.DataFrame, rule: str) -> bool:
    told = frame.loc[frame["rule"] == rule, "as_by_hand"].dropna()
    return bool(len(told)) and bool(told.all())


def _falls(frame: pd.DataFrame, rule: str) -> bool:
    """Whether the table has fewer rows at each higher threshold, and fewest than without one."""
    first = frame[(frame["repetition"] == 0) & frame["rule"].isin((rule, "none"))].sort_values("value")
    return bool((first["rows"].diff().dropna() < 0).all())


LABELS = {
    "none": "every id, for good",
    "count": "admitted by count",
    "sketch": "admitted by count-min sketch",
    "show_click": "admitted by shows and clicks",
    "age": "evicted by age",
    "score": "evicted by score",
}


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Rows against held-out AUC, and refused look-ups and bytes against the threshold; points are labelled by it."""
    first = frame.groupby(["rule", "value", "unit"], sort=False).mean(numeric_only=True).reset_index()
    with plotting.style():
        figure = plotting.new_figure(10, 4.4)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        sizes, refused = figure.subplots(1, 2, width_ratios=(1.6, 1))
        _draw_sizes(sizes, first)
        _draw_refused(refused, first)
        figure.legend(*sizes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_sizes(axes: Axes, frame: pd.DataFrame) -> None:
    for number, (rule, lines) in enumerate(_by_rule(frame)):
        look = plotting.series_style(number)
        if rule == "none":
            axes.axhspan(lines["auc_low"].iloc[0], lines["auc_high"].iloc[0], color=plotting.IDLE, zorder=0)
            look |= {"markersize": 10, "linestyle": "none"}
        axes.plot(lines["rows"], lines["auc"], label=LABELS[rule], **look)
        if rule in NUMBERED:
            _number(axes, lines, NUMBERED[rule])
    axes.set(xlabel="rows in the tables at the end", ylabel="held-out AUC", xlim=(0, None))
    note = "band: 95 % interval of the AUC without rules\nsmall numbers: threshold (by count), batches (by age)"
    axes.set_title(note, fontsize=8)
    axes.margins(y=0.1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


# Which points bear their setting, and where: two rules are enough to read the others by, more would overlap.
NUMBERED = {"count": (-5, 7, "right"), "age": (6, -9, "left")}


def _number(axes: Axes, lines: pd.DataFrame, where: tuple[int, int, str]) -> None:
    for x, y, value in zip(lines["rows"], lines["auc"], lines["value"], strict=True):
        text = axes.annotate(f"{value:g}", (x, y), where[:2], textcoords="offset points", ha=where[2], va="center")
        text.set(fontsize=7, path_effects=[withStroke(linewidth=2, foreground=plotting.PAPER)])


def _draw_refused(axes: Axes, frame: pd.DataFrame) -> None:
    for number, (rule, lines) in enumerate(_by_rule(frame)):
        if rule in ("count", "sketch", "show_click"):
            axes.plot(lines["value"], 100 * lines["refused_share"], **plotting.series_style(number))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel="threshold (occurrences, or score)", ylabel="refused look-ups of unique keys (%)", ylim=(0, None))


def _by_rule(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for rule in LABELS:
        lines = frame[frame["rule"] == rule].sort_values("value")
        if len(lines):
            yield rule, lines
