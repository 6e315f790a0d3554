"""Features come and go: what thresholds of admission and eviction do to the size of the tables and to the model.

JD's article names admission and eviction without a figure; RecSDK's code has the rules (papers.md 4.2, 5.2).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nestlab.embedding import EmbeddingStore, Tiers
from nestlab.embedding.features import FeatureRules
from nestlab.experiments.tables import answer
from nestlab.experiments.two_tier.by_hand import ByHand, Occurrences, occurrences
from nestlab.experiments.two_tier.features_plot import draw
from nestlab.experiments.two_tier.one_pass import Stream, distinct_ids, open_stream, rounds, smallest_cache
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.training import Model, Trained, quality, table_size, train

THRESHOLDS = (2, 4, 8, 16)
SCORES = (2, 4, 8, 16, 32)  # a show counts 1, a click 10
AGES = (0.05, 0.125, 0.5)  # of the steps
SHARES = (0.05, 0.2, 0.5)  # of the rows in use, a round
CACHE_SHARE = 0.1  # slots over the distinct ids of the stream: the same cache for every rule
SKETCH_BYTES = 64 << 10  # about two counters an id of the real log: small enough to err
ALL_SECONDS, FEW_SECONDS = 100.0, 10.0  # from which on all settings are tried; below which count too has every other


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
    step = 1 if settings.seconds >= ALL_SECONDS else 2
    count_step = 1 if settings.seconds >= FEW_SECONDS else 2
    found = [Setting("none", 1, "occurrences", FeatureRules())]
    for rule, values, unit in (
        ("count", THRESHOLDS[::count_step], "occurrences"),
        ("sketch", THRESHOLDS[::step], "occurrences"),
        ("show_click", SCORES[::step], "score"),
    ):
        for value in values:
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
    estimates), refused_read_default (ids without a row read the constant, and are in no export); slots, hit_share (of a
    slot cache under lru that all of these trainings have above the table: of the look-ups that are not refused);
    how_obtained.
    """
    stream = open_stream(settings)
    counted, chosen = list(occurrences(stream.train)), choose(settings, len(stream.train))
    slots = max(int(CACHE_SHARE * sum(map(len, distinct_ids(stream.train)))), smallest_cache(stream))
    rows = []
    for repetition in rounds(settings):
        for setting in chosen:
            tiers = _tiers(settings, setting.rules, slots)
            rows.append(
                {"repetition": repetition, **_one(settings, stream, setting, tiers, settings.seed + repetition)}
            )
            rows[-1]["as_by_hand"] = _as_by_hand(rows[-1].pop("keys"), setting, counted) if not repetition else None
    return pd.DataFrame(rows).assign(slots=slots, how_obtained="measured")


def _tiers(settings: Settings, rules: FeatureRules, slots: int) -> Tiers:
    """A cache changes no number that is learnt, so that one training answers for table and cache."""
    return Tiers(
        device_tier="slot_cache", cache_policy="lru", cache_slots=slots, features=rules, device=settings.device
    )


def _one(settings: Settings, stream: Stream, setting: Setting, tiers: Tiers, seed: int) -> dict[str, Any]:
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
    }


def _counted(trained: Trained) -> dict[str, float]:
    counters = trained.store.counters
    found = counters.known + counters.inserts
    refused = counters.refused / (found + counters.refused)
    return {
        "refused_share": refused,
        "evicted_rows": counters.evicted,
        "hit_share": counters.hits / found if found else np.nan,
    }


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
    return [answer(i, value, "measured", note) for i, (value, note) in found.items()]


def _by_hand(frame: pd.DataFrame, rule: str) -> bool:
    told = frame.loc[frame["rule"] == rule, "as_by_hand"].dropna()
    return bool(len(told)) and bool(told.all())


def _falls(frame: pd.DataFrame, rule: str) -> bool:
    """Whether the table has fewer rows at each higher threshold, and fewest than without one."""
    first = frame[(frame["repetition"] == 0) & frame["rule"].isin((rule, "none"))].sort_values("value")
    return bool((first["rows"].diff().dropna() < 0).all())


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a setting, means over the repetitions; auc_lost: against the table without rules."""
    shown = ["rows", "total_bytes", "refused_share", "evicted_rows", "hit_share", "auc", "auc_low", "auc_high"]
    means = _means(frame)[["rule", "value", "unit", *shown, "log_loss_nats"]]
    return means.assign(auc_lost=means.loc[means["rule"] == "none", "auc"].iloc[0] - means["auc"])


def _means(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.groupby(["rule", "value", "unit"], sort=False).mean(numeric_only=True).reset_index()


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """Rows against held-out AUC, refused look-ups against the threshold, rows against the hits of a cache."""
    return draw(_means(frame), title, frame["slots"].iloc[0])
