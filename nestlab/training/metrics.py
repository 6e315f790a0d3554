"""Quality of click predictions: scikit-learn's AUC and log loss, and the normalised entropy made of it."""

from __future__ import annotations

import numpy as np
from scipy.stats import entropy
from sklearn.metrics import log_loss, roc_auc_score


def binary_metrics(labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """AUC, log loss (nats), normalised entropy and the two mean rates.

    Normalised entropy is log loss over the entropy of the labels' own rate (He et al., ADKDD 2014): below 1 is better
    than predicting the rate. AUC and normalised entropy have no value (NaN) where only one class is present.

    Args:
        labels: [n] of 0 and 1.
        predictions: [n] probabilities.
    """
    if len(labels) == 0:
        return dict.fromkeys(("auc", "log_loss", "ne", "label_rate", "mean_prediction"), float("nan"))
    rate = float(np.mean(labels))
    both = 0.0 < rate < 1.0
    predictions = predictions.astype(np.float64)
    loss = float(log_loss(labels, predictions, labels=[0, 1]))
    return {
        "auc": float(roc_auc_score(labels, predictions)) if both else float("nan"),
        "log_loss": loss,
        "ne": loss / float(entropy([rate, 1.0 - rate])) if both else float("nan"),
        "label_rate": rate,
        "mean_prediction": float(predictions.mean()),
    }


def auc_interval(
    labels: np.ndarray, predictions: np.ndarray, *, resamples: int = 200, seed: int = 0
) -> tuple[float, float]:
    """The 95 % percentile interval of the AUC over resampled rows: what a held-out set of this size can tell apart.

    NaN where only one class is present. It holds the model fixed: the spread over seeds is another matter.
    """
    n = len(labels)
    if not n or not 0 < labels.mean() < 1:
        return float("nan"), float("nan")
    generator = np.random.default_rng(seed)
    order = np.argsort(predictions, kind="stable")
    labels, predictions = labels[order].astype(np.float64), predictions[order]
    firsts = np.flatnonzero(np.concatenate(([True], predictions[1:] != predictions[:-1])))
    values = []
    for _ in range(resamples):
        drawn = np.bincount(generator.integers(0, n, n), minlength=n)[order]
        values.append(_auc(np.add.reduceat(drawn * labels, firsts), np.add.reduceat(drawn * (1 - labels), firsts)))
    if np.isnan(values).all():
        return float("nan"), float("nan")
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return float(low), float(high)


def _auc(positives: np.ndarray, negatives: np.ndarray) -> float:
    """From how many of either label have each distinct prediction [n], ascending. Sorting once is what makes it quick:
    scikit-learn's takes some milliseconds a resample."""
    both = positives.sum() * negatives.sum()
    below = np.cumsum(negatives) - negatives
    return float(positives @ (below + negatives / 2) / both) if both else float("nan")
