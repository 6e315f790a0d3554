"""Quality of click predictions: scikit-learn's AUC and log loss, and the normalised entropy made of it.

Of one task, of each of several whose labels are the bits of a mask, and within groups (the samples of a user).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nestlab.errors import UserError


def binary_metrics(labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """AUC, log loss (nats), normalised entropy and the two mean rates.

    Normalised entropy is log loss over the entropy of the labels' own rate (He et al., ADKDD 2014): below 1 is better
    than predicting the rate. AUC and normalised entropy have no value (NaN) where only one class is present.

    Args:
        labels: [n] of 0 and 1.
        predictions: [n] probabilities.

    Raises:
        UserError: lengths differ, or a prediction is not finite.
    """
    if len(labels) != len(predictions):
        raise UserError(f"metrics: {len(labels)} labels, {len(predictions)} predictions; give one of each a sample")
    _check_finite("metrics", predictions)
    if len(labels) == 0:
        return dict.fromkeys(("auc", "log_loss", "ne", "label_rate", "mean_prediction"), float("nan"))
    # Late: they take longer to import than all of NestLab, and many a process trains without a look at held-out data.
    from scipy.stats import entropy
    from sklearn.metrics import log_loss, roc_auc_score

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


def gauc(labels: np.ndarray, predictions: np.ndarray, groups: np.ndarray) -> dict[str, float]:
    """The mean AUC within groups, weighted by their sizes (Zhu et al., KDD 2017): `gauc`; NaN where no group counts.

    A group that has one class only has no AUC and is left out; `gauc_share` is the share of samples in the groups that
    count, `gauc_groups` their number. Equal predictions of a group count half.

    Args:
        labels: [n] of 0 and 1.
        predictions: [n], of any scale.
        groups: [n] integers, such as user ids.

    Raises:
        UserError: lengths differ, or a prediction is not finite.
    """
    if not len(labels) == len(predictions) == len(groups):
        lengths = f"{len(labels)} labels, {len(predictions)} predictions, {len(groups)} groups"
        raise UserError(f"gauc: {lengths}; give one of each a sample, in one order")
    _check_finite("gauc", predictions)
    order = np.lexsort((predictions, groups))
    labels, predictions, groups = (np.asarray(each)[order] for each in (labels, predictions, groups))
    _, group = np.unique(groups, return_inverse=True)
    sizes = np.bincount(group)
    places = _mean_places(group, predictions) - (np.cumsum(sizes) - sizes)[group]  # within the group, from 0
    positives = np.bincount(group, weights=labels, minlength=len(sizes))
    pairs = positives * (sizes - positives)
    won = np.bincount(group, weights=places * labels, minlength=len(sizes)) - positives * (positives - 1) / 2
    counts = pairs > 0
    inside = int(sizes[counts].sum())
    value = float(sizes[counts] @ (won[counts] / pairs[counts]) / inside) if inside else float("nan")
    share = inside / len(labels) if len(labels) else float("nan")
    return {"gauc": value, "gauc_share": share, "gauc_groups": float(counts.sum())}


def _check_finite(metric: str, predictions: np.ndarray) -> None:
    if not np.isfinite(predictions).all():
        raise UserError(f"{metric}: a prediction is not finite; train with a smaller learning rate")


def task_metrics(
    masks: np.ndarray, predictions: np.ndarray, tasks: Mapping[str, int], groups: np.ndarray | None = None
) -> dict[str, float]:
    """`binary_metrics` of each task as `<task>.auc` …, with `groups` its `gauc` too; `mean_auc` over tasks that have
    one, and `mean_auc_tasks`, how many these are.

    Args:
        masks: [n] whole numbers (float32 holds them up to 2^24): a sample's labels, a bit a task.
        predictions: [n, T] probabilities, in the order of `tasks`.
        tasks: the bit (1, 2, 4 …) of each, by name; `kuairand_format.ACTIONS` is such a mapping.
        groups: [n], see `gauc`.

    Raises:
        UserError: predictions are not of these tasks, or a mask is no whole number.
    """
    if predictions.ndim != 2 and len(predictions):
        raise UserError(
            f"metrics: predictions of shape {list(predictions.shape)}; a model of several tasks gives [n, T]"
        )
    if len(predictions) and predictions.shape[1] != len(tasks):
        raise UserError(f"metrics: {predictions.shape[1]} predictions a sample for {len(tasks)} tasks; give one a task")
    bits = np.asarray(masks).astype(np.int64)
    if (bits != masks).any() or (bits < 0).any():
        raise UserError("metrics: a label is no bit mask of actions; give whole numbers of 0 or more")
    found: dict[str, float] = {}
    for number, (name, bit) in enumerate(tasks.items()):
        labels = ((bits & bit) != 0).astype(np.float32)
        own = predictions[:, number] if len(predictions) else np.zeros(0, np.float32)
        metrics = binary_metrics(labels, own)
        if groups is not None:
            metrics |= gauc(labels, own, groups)
        found |= {f"{name}.{metric}": value for metric, value in metrics.items()}
    aucs = [found[f"{name}.auc"] for name in tasks if not np.isnan(found[f"{name}.auc"])]
    return found | {"mean_auc": float(np.mean(aucs)) if aucs else float("nan"), "mean_auc_tasks": float(len(aucs))}


def _mean_places(group: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """[n]: the place of each of n samples, sorted by group and prediction; the mean place of those that tie."""
    if not len(group):
        return np.zeros(0)
    first = np.concatenate(([True], (group[1:] != group[:-1]) | (predictions[1:] != predictions[:-1])))
    starts = np.flatnonzero(first)
    lengths = np.diff(starts, append=len(group))
    return np.repeat(starts + (lengths - 1) / 2, lengths)


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
