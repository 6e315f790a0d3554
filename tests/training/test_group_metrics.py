"""AUC within groups and metrics of several tasks, against scikit-learn group by group and task by task."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from nestlab.errors import UserError
from nestlab.training.metrics import binary_metrics, gauc, task_metrics

TASKS = {"click": 1, "like": 2, "view": 64}


def by_groups(labels, predictions, groups) -> tuple[float, float, int]:
    weighted, inside, count = 0.0, 0, 0
    for group in np.unique(groups):
        own = groups == group
        if 0 < labels[own].mean() < 1:
            weighted += own.sum() * roc_auc_score(labels[own], predictions[own])
            inside, count = inside + own.sum(), count + 1
    return (weighted / inside if inside else math.nan), inside / len(labels), count


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 8), st.integers(1, 30))
def test_gauc_is_scikit_learns_group_by_group(seed, n, groups, distinct):
    """Ties, groups of one class, ids of any size. Broken on purpose: groups weighted alike; ties by their first place;
    a group of one class counted as 0.5."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, n).astype(np.float32)
    predictions = (generator.integers(0, distinct, n) / distinct).astype(np.float32)
    ids = generator.choice(np.array([0, -1, 2**62, 7, 8, 9, -(2**40), 3])[:groups], n)
    found, expected = gauc(labels, predictions, ids), by_groups(labels, predictions, ids)
    assert list(found) == ["gauc", "gauc_share", "gauc_groups"]
    assert list(found.values()) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_gauc_without_samples_and_without_pairs():
    nothing = gauc(np.zeros(0), np.zeros(0), np.zeros(0, int))
    assert math.isnan(nothing["gauc"]) and math.isnan(nothing["gauc_share"]) and nothing["gauc_groups"] == 0
    one_class = gauc(np.array([1.0, 1, 0, 0]), np.arange(4) / 4, np.array([5, 5, 6, 6]))
    assert math.isnan(one_class["gauc"]) and one_class["gauc_share"] == 0.0
    ties = gauc(np.array([1.0, 0, 1, 0]), np.full(4, 0.3), np.array([5, 5, 6, 6]))
    assert ties == {"gauc": 0.5, "gauc_share": 1.0, "gauc_groups": 2.0}


def test_gauc_against_torchmetrics():
    functional = pytest.importorskip("torchmetrics.functional.classification")
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(1)
    labels, scores = torch.randint(0, 2, (3, 20), generator=generator), torch.rand(3, 20, generator=generator)
    expected = torch.stack([functional.binary_auroc(s, y) for s, y in zip(scores, labels, strict=True)]).mean()
    ids = np.repeat([4, -9, 0], 20)
    assert gauc(labels.numpy().ravel(), scores.numpy().ravel(), ids)["gauc"] == pytest.approx(float(expected), abs=1e-6)


def test_a_sample_out_of_order_or_not_finite_is_refused():
    with pytest.raises(UserError, match="2 labels, 2 predictions, 3 groups"):
        gauc(np.zeros(2), np.zeros(2), np.zeros(3))
    with pytest.raises(UserError, match="3 labels, 2 predictions; give one of each a sample"):
        binary_metrics(np.zeros(3), np.zeros(2))
    with pytest.raises(UserError, match="not finite"):
        gauc(np.zeros(2), np.array([0.1, np.nan]), np.zeros(2))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_tasks_one_by_one(seed, n):
    """Broken on purpose: bit i in place of the task's own bit: `view` fails."""
    generator = np.random.default_rng(seed)
    masks = generator.integers(0, 256, n).astype(np.float32)
    predictions = generator.random((n, 3)).astype(np.float32)
    groups = generator.integers(0, 3, n)
    found = task_metrics(masks, predictions, TASKS, groups)
    aucs = []
    for number, (name, bit) in enumerate(TASKS.items()):
        labels, own = np.array([int(mask) // bit % 2 for mask in masks]), predictions[:, number]
        assert found[f"{name}.log_loss"] == pytest.approx(log_loss(labels, own.astype(float), labels=[0, 1]))
        assert found[f"{name}.gauc"] == pytest.approx(by_groups(labels, own, groups)[0], nan_ok=True)
        assert found[f"{name}.label_rate"] == pytest.approx(labels.mean())
        if 0 < labels.mean() < 1:
            aucs.append(roc_auc_score(labels, own))
            assert found[f"{name}.auc"] == pytest.approx(aucs[-1])
    assert found["mean_auc"] == pytest.approx(np.mean(aucs) if aucs else math.nan, nan_ok=True)


def test_names_are_the_same_with_and_without_samples():
    """A history has one set of columns, whatever the look."""
    nothing = task_metrics(np.zeros(0), np.zeros(0, np.float32), TASKS)
    some = task_metrics(np.array([3.0, 0.0]), np.full((2, 3), 0.5), TASKS)
    assert list(nothing) == list(some) and nothing.pop("mean_auc_tasks") == 0
    assert all(math.isnan(value) for value in nothing.values())
    assert list(some)[:5] == [f"click.{name}" for name in binary_metrics(np.ones(1), np.ones(1))]


@pytest.mark.parametrize(
    ("masks", "predictions", "reason"),
    [
        ([1.0, 2.0], [[0.5, 0.5]] * 2, "2 predictions a sample for 3 tasks"),
        ([1.0, 2.0], [0.5, 0.5], r"predictions of shape \[2\]"),
        ([1.0, 0.5], [[0.5] * 3] * 2, "no bit mask"),
        ([1.0, -1.0], [[0.5] * 3] * 2, "no bit mask"),
    ],
)
def test_what_is_of_no_such_tasks_is_refused(masks, predictions, reason):
    with pytest.raises(UserError, match=reason):
        task_metrics(np.array(masks), np.array(predictions), TASKS)


@pytest.mark.parametrize("n", [2, 50])
def test_binary_metrics_against_torchmetrics(n):
    functional = pytest.importorskip("torchmetrics.functional.classification")
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(n)
    labels = torch.cat([torch.tensor([0, 1]), torch.randint(0, 2, (n - 2,), generator=generator)])
    predictions = torch.rand(n, generator=generator)
    found = binary_metrics(labels.numpy(), predictions.numpy())
    assert found["auc"] == pytest.approx(float(functional.binary_auroc(predictions, labels)), abs=1e-6)
    rate = float(labels.double().mean())
    loss = float(torch.nn.functional.binary_cross_entropy(predictions.double(), labels.double()))
    assert found["log_loss"] == pytest.approx(loss)
    assert found["ne"] == pytest.approx(loss / -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)))
