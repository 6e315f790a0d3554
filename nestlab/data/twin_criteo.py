"""The statistics of Criteo's rows by which a twin is compared with them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nestlab.data.criteo_format import DENSE_NAMES, FEATURES
from nestlab.data.criteo_twin_shape import CriteoShape
from nestlab.data.twin_chance import auc_error, distinct_error, rate_error
from nestlab.data.twin_statistics import PUBLISHED, Statistic, differing, ks_of, rate, reuses, share, together

_TAIL = "the tail is one power law, no id of it above the commonest; the real one bends"
_FIRST = "the real rows are the file's first, the twin's rate is the whole data's"
_GROWS = "cardinalities grow with the rows; the twin's are scaled to its own"
_AUC = (0.78, 0.80)  # what models reach on Criteo


def criteo_statistics(rows: pd.DataFrame) -> list[Statistic]:
    """Of rows in the order of the file, as `criteo_format.SCHEMA` or text ids."""
    missing = {name: rows[name].isna().to_numpy() for name in (*DENSE_NAMES, *FEATURES)}
    negative = [name for name in DENSE_NAMES if (rows[name] < 0).any()]
    found = [
        rate("click rate", rows["label"].to_numpy() == 1, 0.05, _FIRST),
        differing(f"negative columns: {', '.join(negative)}", set(negative)),
        rate("share of negatives", (rows[negative] < 0).any(axis=1).to_numpy(bool), 0.05),
        together("columns missing together", missing),
    ]
    for name, gone in missing.items():
        values = rows[name][~gone]
        found.append(rate(f"{name}: missing", gone, 0.05))
        found += [ks_of(f"{name}: KS", values, 0.02)] if name in DENSE_NAMES else _ids(name, values)
    return [*found, *_all_reuses(rows)]


def _ids(name: str, values: pd.Series) -> list[Statistic]:
    counts, n = values.value_counts().to_numpy(), len(values)
    top, distinct = (float(counts.max() / n), len(counts) / n) if n else (0.0, 0.0)
    return [
        share(f"{name}: top share", top, 0.05, rate_error(top, n)),
        share(f"{name}: distinct / values", distinct, 0.05, distinct_error(counts, max(1, n)), _TAIL),
    ]


def _all_reuses(rows: pd.DataFrame) -> list[Statistic]:
    """Over all categorical columns together, missing values left out of neither."""
    keys = [pd.factorize(rows[name])[0] for name in FEATURES]
    batches = [batch for batch in (256, 1_024) if len(rows) >= 2 * batch]
    return [line for batch in batches for line in reuses("all columns", keys, batch, (0.05, 0.10), _TAIL)]


def criteo_published(
    shape: CriteoShape, labels: np.ndarray, p: np.ndarray, cardinality: list[int]
) -> list[tuple[Statistic, Statistic]]:
    """Figures of the whole data beside those of n rows of the twin: labels [n], planted probabilities p [n]."""
    low, high = _AUC
    auc = _auc(labels, p)
    error = auc_error(auc, int(labels.sum()), int((labels == 0).sum()))
    name, ids = "AUC of the planted signal, 0.78 to 0.80", "ids of all columns (count)"
    return [
        (Statistic("click rate of all rows", shape.click_rate, 0.05 * shape.click_rate, source=PUBLISHED),
         rate("", labels == 1, 0.0)),
        (Statistic(name, (low + high) / 2, (high - low) / 2, source=PUBLISHED), Statistic("", auc, 0.0, error)),
        (Statistic(ids, float(sum(shape.cardinality)), 0.0, why=_GROWS, source=PUBLISHED, compared=False),
         Statistic("", float(sum(cardinality)), 0.0)),
    ]  # fmt: skip


def _auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Of distinct scores [n], by ranks."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, 1 + len(scores))
    clicks = labels == 1
    n = int(clicks.sum())
    return float((ranks[clicks].sum() - n * (n + 1) / 2) / (n * (len(scores) - n)))
