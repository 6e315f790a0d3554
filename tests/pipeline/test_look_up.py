"""Rows by id, as evaluation reads them: from any rank, of any kind of table, whether trained or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rank_cases import slices
from tiny import make_batches, make_model
from tt_cases import Case, global_batches, make

from nestlab.embedding import EmbeddingStore, TableConfig, optimizer
from nestlab.errors import UserError
from nestlab.exchange import LocalTransport, Transport
from nestlab.models import RecModel
from nestlab.pipeline import Pipeline
from nestlab.techniques import Techniques

IDS = torch.tensor([0, 3, -6, 3, 999, -5, 2**62]) * (2**40 + 1)  # repeats, and some that no batch has


def trained(transport: Transport, techniques: str = "") -> Pipeline:
    model = make_model()
    adam = torch.optim.Adam(model.dense.parameters(), lr=0.01)
    pipeline = Pipeline(model, adam, Techniques.parse(techniques), transport=transport)
    mesh = transport.mesh
    list(pipeline.run(slices(make_batches(4, size=6), mesh.rank, mesh.world_size)))
    return pipeline


def test_equals_the_store_and_changes_nothing():
    pipeline = trained(LocalTransport())
    store = pipeline.model.embedding
    before = {name: store.export(name)["ids"].tolist() for name in ("people", "things")}
    for name in ("people", "things"):
        assert torch.equal(pipeline.look_up(name, IDS), store.full_weight(name, IDS))
        assert pipeline.look_up(name, np.zeros(0, np.int64)).shape == (0, 4)
    assert before == {name: store.export(name)["ids"].tolist() for name in ("people", "things")}


def test_tensor_trains():
    """Broken on purpose: rows in the order of the unique ids."""
    case = Case("micro_batches=2", kinds="rtt")
    batches = global_batches(case)
    model, pipeline = make(case, LocalTransport(), batches)
    list(pipeline.run(batches))
    for name in ("users", "items", "tags"):
        found, expected = pipeline.look_up(name, IDS), model.embedding.full_weight(name, IDS)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # the scheme multiplies in another order
        assert torch.equal(pipeline.look_up(name, IDS[2:4]), found[2:4])


def test_a_sequence():
    store = EmbeddingStore([TableConfig("item", 4, ("item", "tag"), pooling="none")], optimizer("sgd", lr=0.1))
    dense = torch.nn.Linear(1, 1)
    pipeline = Pipeline(RecModel(store, dense), torch.optim.SGD(dense.parameters(), lr=0.1))
    assert torch.equal(pipeline.look_up("item", IDS), store.full_weight("item", IDS))


def test_errors():
    pipeline = trained(LocalTransport(), "pipeline_depth=5")
    with pytest.raises(UserError, match="no table is called 'item'; there are people, things"):
        pipeline.look_up("item", IDS)
    pipeline.progress(iter(make_batches(3)))
    with pytest.raises(RuntimeError, match=r"look_up: [0-9] batches are in flight"):
        pipeline.look_up("people", IDS)


def look(transport: Transport, techniques: str, kinds: str) -> list[torch.Tensor]:
    """Every rank the same ids, then each its own, of which rank 1 has none."""
    case = Case(techniques, kinds=kinds)
    batches, mesh = global_batches(case), transport.mesh
    _, pipeline = make(case, transport, batches)
    list(pipeline.run(slices(batches, mesh.rank, mesh.world_size)))
    names = ("users", "items", "tags")
    found = [pipeline.look_up(name, IDS) for name in names]
    return found + [pipeline.look_up(name, IDS[: 4 * (1 - mesh.rank)]) for name in names]


@pytest.mark.dist
@pytest.mark.parametrize("techniques", ["", "tt_cores=replicated"])
def test_two_ranks_read_the_same_rows(ranks, techniques):
    alone = look(LocalTransport(), "", "rtt")
    first, second = ranks.run(look, techniques, "rtt")
    for mine, theirs, expected in zip(first[:3], second[:3], alone[:3], strict=True):
        assert torch.equal(mine, theirs)
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(part, whole[:4]) for part, whole in zip(first[3:], first[:3], strict=True))
    assert [tuple(part.shape) for part in second[3:]] == [(0, 4)] * 3
