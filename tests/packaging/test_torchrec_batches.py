"""Batch and KeyedJaggedTensor share storage in both directions."""

from __future__ import annotations

import pytest
import torch

from nestlab.batch import Batch
from nestlab.interop import torchrec as bridge

usable, reason = bridge.available()
pytestmark = pytest.mark.skipif(not usable, reason=reason)


def batch(weighted: bool = False) -> Batch:
    return Batch(
        dense=torch.rand(3, 2),
        features=("user", "item"),
        ids=torch.tensor([-5, 7, 2**62, 7, 1]),
        lengths=torch.tensor([1, 0, 2, 0, 1, 1]),
        labels=torch.tensor([0.0, 1.0, 1.0]),
        weights=torch.tensor([1.0, 2.0, 3.0]),
        id_weights=torch.rand(5) if weighted else None,
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_there_and_back_without_a_copy(weighted):
    source = batch(weighted)
    kjt = bridge.to_kjt(source)
    assert kjt.keys() == ["user", "item"] and kjt.stride() == 3
    assert kjt.values().data_ptr() == source.ids.data_ptr()
    assert kjt.lengths().data_ptr() == source.lengths.data_ptr()
    assert kjt["item"].values().tolist() == [7, 1] and kjt["user"].lengths().tolist() == [1, 0, 2]
    back = bridge.from_kjt(kjt, dense=source.dense, labels=source.labels, weights=source.weights)
    assert back.features == source.features
    for name in ("dense", "ids", "lengths", "labels", "weights") + (("id_weights",) if weighted else ()):
        assert getattr(back, name).data_ptr() == getattr(source, name).data_ptr()
    assert weighted or back.id_weights is None


def test_an_empty_batch():
    empty = batch().slice(1, 1)
    kjt = bridge.to_kjt(empty)
    assert kjt.stride() == 0 and kjt.values().numel() == 0
    assert bridge.from_kjt(kjt, dense=empty.dense, labels=empty.labels).size == 0


def test_what_would_need_a_copy_is_refused():
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    labels = torch.zeros(1)
    narrow = KeyedJaggedTensor(["a"], torch.tensor([1], dtype=torch.int32), lengths=torch.tensor([1]))
    with pytest.raises(ValueError, match="int64 first"):
        bridge.from_kjt(narrow, dense=labels, labels=labels)
    ragged = KeyedJaggedTensor(
        ["a", "b"],
        torch.tensor([1, 2, 3]),
        lengths=torch.tensor([1, 1, 1]),
        stride_per_key_per_rank=[[1], [2]],
    )
    with pytest.raises(ValueError, match="varies by feature"):
        bridge.from_kjt(ragged, dense=labels, labels=labels)
