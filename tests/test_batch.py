"""The jagged batch: layout, slices, and what bad input says."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nestlab.batch import Batch

pytestmark = pytest.mark.core
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def batches(draw):
    """A batch and, beside it, its bags as nested lists: features × samples × ids."""
    size, features = draw(st.integers(0, 5)), draw(st.integers(0, 3))
    bag = st.lists(INT64, max_size=3)
    bags = [[draw(bag) for _ in range(size)] for _ in range(features)]
    ids = [i for feature in bags for sample in feature for i in sample]
    lengths = [len(sample) for feature in bags for sample in feature]
    batch = Batch(
        dense=torch.arange(size * 2, dtype=torch.float32).view(size, 2),
        features=tuple(f"f{i}" for i in range(features)),
        ids=torch.tensor(ids, dtype=torch.int64),
        lengths=torch.tensor(lengths, dtype=torch.int64),
        labels=torch.arange(size, dtype=torch.float32),
        weights=torch.arange(size, dtype=torch.float32) + 1,
        id_weights=torch.arange(len(ids), dtype=torch.float32),
    )
    return batch, bags


def bags_of(batch: Batch) -> list[list[list[int]]]:
    offsets, size = batch.offsets().tolist(), batch.size
    run = [batch.ids[a:b].tolist() for a, b in pairwise(offsets)]
    return [run[f * size : (f + 1) * size] for f in range(len(batch.features))]


@given(batches(), st.integers(1, 7))
def test_micro_batches_are_the_batch(made, parts):
    batch, bags = made
    pieces = list(batch.micro_batches(parts))
    assert len(pieces) == parts
    sizes = [piece.size for piece in pieces]
    assert sum(sizes) == batch.size and max(sizes) - min(sizes) <= 1
    joined = [[bag for piece in map(bags_of, pieces) for bag in piece[f]] for f in range(len(bags))]
    assert joined == bags
    assert torch.equal(torch.cat([piece.labels for piece in pieces]), batch.labels)
    assert torch.equal(torch.cat([piece.dense for piece in pieces]), batch.dense)
    weights_of_ids = {int(w): int(i) for w, i in zip(batch.id_weights, batch.ids, strict=True)}
    for piece in pieces:  # an id keeps its own weight
        assert all(weights_of_ids[int(w)] == int(i) for w, i in zip(piece.id_weights, piece.ids, strict=True))


@given(batches())
def test_to_keeps_everything(made):
    batch, bags = made
    moved = batch.to("cpu")
    assert bags_of(moved) == bags and moved.nbytes == batch.nbytes
    moved.record_stream(None)  # host tensors have no streams: accepted, nothing to do


def test_total_weight():
    labels = torch.zeros(3)
    empty = torch.zeros(0, dtype=torch.int64)
    plain = Batch(torch.zeros(3, 0), (), empty, empty, labels)
    assert plain.total_weight == 3.0
    weighted = Batch(torch.zeros(3, 0), (), empty, empty, labels, weights=torch.tensor([0.5, 0.0, 2.0]))
    assert weighted.total_weight == 2.5


def test_lengths_that_do_not_fit_are_refused():
    ids = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="3 lengths for 2 features of 2 samples; expected 4"):
        Batch(torch.zeros(2, 1), ("a", "b"), ids, torch.ones(3, dtype=torch.int64), torch.zeros(2))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lengths": torch.tensor([2, 1])}, "lengths that sum to 3 for 2 ids"),
        ({"lengths": torch.tensor([3, -1])}, "a length is -1"),
        ({"weights": torch.ones(1)}, r"weights of shape \[1\]; expected \[2\]"),
        ({"id_weights": torch.ones(3)}, r"id_weights of shape \[3\]; expected \[2\]"),
        ({"dense": torch.zeros(3, 1)}, r"dense \[3, 1\] and labels \[2\]"),
        ({"labels": torch.zeros(2, 1)}, r"labels \[2, 1\]"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(change, says):
    parts = {
        "dense": torch.zeros(2, 1),
        "features": ("a",),
        "ids": torch.zeros(2, dtype=torch.int64),
        "lengths": torch.tensor([1, 1]),
        "labels": torch.zeros(2),
    }
    Batch(**parts)
    with pytest.raises(ValueError, match=says):
        Batch(**parts | change)


def test_ids_of_another_type_are_refused():
    with pytest.raises(ValueError, match=r"ids must be int64, not torch\.int32"):
        Batch(torch.zeros(1, 1), ("a",), torch.zeros(1, dtype=torch.int32), torch.ones(1), torch.zeros(1))


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (2, 1), (0, 3)])
def test_slices_outside_the_batch_are_refused(start, stop):
    empty = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(ValueError, match="does not lie in a batch of 2 samples"):
        Batch(torch.zeros(2, 0), (), empty, empty, torch.zeros(2)).slice(start, stop)


@given(batches(), st.data())
def test_selected_samples_are_whole(made, data):
    batch, bags = made
    order = data.draw(st.permutations(range(batch.size))) if data.draw(st.booleans()) else []
    chosen = batch.select(torch.tensor(order, dtype=torch.int64))
    assert bags_of(chosen) == [[feature[s] for s in order] for feature in bags]
    assert chosen.labels.tolist() == order and chosen.weights.tolist() == [s + 1 for s in order]
    assert torch.equal(chosen.dense, batch.dense[order])
    weights_of_ids = {int(w): int(i) for w, i in zip(batch.id_weights, batch.ids, strict=True)}
    assert all(weights_of_ids[int(w)] == int(i) for w, i in zip(chosen.id_weights, chosen.ids, strict=True))


def test_values_are_features_that_no_table_looks_up():
    from nestlab.embedding import EmbeddingStore, TableConfig, optimizer
    from nestlab.errors import UserError

    lengths = torch.tensor([2, 1, 2, 1])
    both = Batch(torch.zeros(2, 0), ("item", "time"), torch.arange(6), lengths, torch.zeros(2), values=("time",))
    assert all(part.values == ("time",) for part in (*both.micro_batches(3), both.select(torch.tensor([1, 0]))))
    layout = EmbeddingStore([TableConfig("item", 4)], optimizer("sgd", lr=0.1)).layout
    (bound,) = layout.bind(both.features, both.values)
    assert bound.features == ("item",) and bound.columns.tolist() == [0]
    with pytest.raises(UserError, match="no table for the batch's feature"):
        layout.bind(both.features)
    with pytest.raises(UserError, match="are values and look up a table"):
        layout.bind(both.features, ("time", "item"))
    with pytest.raises(ValueError, match="values hour are no features"):
        Batch(torch.zeros(2, 0), ("item", "time"), torch.arange(6), lengths, torch.zeros(2), values=("hour",))
