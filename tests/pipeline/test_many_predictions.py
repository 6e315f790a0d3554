"""Several predictions a sample go through training and evaluation, also where a rank has no batch left."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from end_cases import batches_of
from tiny import make_batches, make_model

from nestlab.exchange import LocalTransport, Transport
from nestlab.models import DLRM, DenseOutput, RecModel
from nestlab.pipeline import Inline, Pipeline
from nestlab.techniques import Techniques

HALVES = ("xo", "xxx")  # rank 0 has one batch, then an empty one, then none


class Three(torch.nn.Module):
    """DLRM whose prediction p is given as (p, 2p, 3p)."""

    def __init__(self, dlrm: DLRM) -> None:
        super().__init__()
        self.dlrm = dlrm

    def forward(self, batch, embedded) -> DenseOutput:
        losses, predictions = self.dlrm(batch, embedded)
        return DenseOutput(losses, torch.stack([predictions, 2 * predictions, 3 * predictions], dim=1))


def look(transport: Transport, several: bool) -> tuple[np.ndarray, np.ndarray]:
    model = make_model()
    if several:
        model = RecModel(model.embedding, Three(model.dense))
    adam = torch.optim.Adam(model.dense.parameters(), lr=0.01)
    pipeline = Pipeline(model, adam, Techniques(micro_batches=2), executor=Inline(), transport=transport)
    outputs = list(pipeline.run(batches_of(("xx", "xx"), rank_of(transport), seed=3)))
    assert outputs[-1].predictions.shape[1:] == ((3,) if several else ())
    return pipeline.evaluate(batches_of(HALVES, rank_of(transport), seed=1))


def rank_of(transport: Transport) -> int | None:
    return transport.mesh.rank if transport.mesh.world_size > 1 else None


def test_on_one_rank():
    labels, predictions = look(LocalTransport(), several=False)
    same, three = look(LocalTransport(), several=True)
    assert (same == labels).all() and three.shape == (len(labels), 3)
    np.testing.assert_array_equal(three, predictions[:, None] * np.float32([1, 2, 3]))


@pytest.mark.dist
def test_on_two_ranks_of_which_one_ends_first(ranks):
    _, alone = look(LocalTransport(), several=True)
    for _, together in ranks.run(look, True):
        np.testing.assert_allclose(np.sort(together[:, 2]), np.sort(alone[:, 2]), rtol=1e-5)


def test_no_held_out_batch_gives_nothing():
    model = make_model()
    dense = Three(model.dense)
    pipeline = Pipeline(RecModel(model.embedding, dense), torch.optim.Adam(dense.parameters()), executor=Inline())
    assert [each.size for each in pipeline.evaluate([])] == [0, 0]
    assert pipeline.evaluate(make_batches(1))[1].shape == (6, 3)
