"""Evaluation of a sequence model: against loops over all rows and states, on one rank and on two."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from nestlab.data import Loader
from nestlab.data.loader import Collator
from nestlab.embedding import EmbeddingStore, TableConfig, optimizer
from nestlab.embedding.tensor_train import TensorTrain
from nestlab.errors import UserError
from nestlab.exchange import LocalTransport, Transport
from nestlab.models import DenseOutput, RecModel
from nestlab.pipeline import Pipeline
from nestlab.techniques import Techniques
from nestlab.training.ranking_metrics import retrieval_metrics
from nestlab.training.retrieval import RankingProtocol, evaluate_retrieval, rank_by_popularity

DIM, ITEMS, SAMPLES = 6, 40, 23


class Mean(nn.Module):
    """The state is the mean of the rows of what came before; the loss pulls it to the target's row."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, batch, embedded) -> DenseOutput:
        items, lengths = embedded.sequence("item")
        target, _ = embedded.sequence("target")
        who = torch.repeat_interleave(torch.arange(batch.size), lengths)
        sums = items.new_zeros(batch.size, items.shape[1]).index_add(0, who, items)
        states = self.scale * sums / lengths.clamp_min(1).unsqueeze(1)
        return DenseOutput((states - target).square().sum(dim=1), states.detach())


class Made:
    """Held-out samples of 0 … 5 events over ITEMS items, some of which no training batch has."""

    def __init__(self, samples: int = SAMPLES) -> None:
        rng = np.random.default_rng(5)
        self.items = np.sort(rng.choice(np.arange(-50, 50), ITEMS, replace=False)) * (2**40 + 1)
        known = self.items[: ITEMS * 3 // 4]
        self.histories = [rng.choice(known, rng.integers(0, 6)).tolist() for _ in range(samples)]
        self._targets = rng.choice(self.items, samples)
        self.popular = rng.integers(0, 4, ITEMS)

    def batches(self, split: str, batch_size: int) -> Loader:
        columns = {
            "item": pa.array(self.histories, pa.list_(pa.int64())),
            "target": pa.array(self._targets),
            "gap": pa.array(np.zeros(len(self.histories), np.int64)),
            "label": pa.array(np.arange(len(self.histories), dtype=np.float32)),
        }
        collate = Collator(("gap",), ("item", "target"))
        return Loader(pa.table(columns), collate, (0, len(self.histories)), batch_size)

    def targets(self, split: str) -> np.ndarray:
        return self._targets

    def seen(self, split: str, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        runs = [self.histories[sample] for sample in samples]
        values = [item for run in runs for item in run]
        return np.array(values, dtype=np.int64), np.array([len(run) for run in runs], dtype=np.int64)

    def popularity(self) -> np.ndarray:
        return self.popular


def trained(transport: Transport, data: Made, kind: str = "row", techniques: str = "") -> Pipeline:
    train = TensorTrain(rows=64, rank=3) if kind == "tt" else None
    config = TableConfig("item", DIM, ("item", "target"), pooling="none", tensor_train=train)
    model = RecModel(EmbeddingStore([config], optimizer("adagrad", lr=0.1), seed=3), Mean())
    flags = Techniques.parse(f"table_kind={kind},{techniques}".rstrip(","))
    pipeline = Pipeline(model, torch.optim.Adam(model.dense.parameters()), flags, transport=transport)
    mesh = transport.mesh
    list(pipeline.run(data.batches("train", 8).slice(mesh.rank, mesh.world_size)))
    return pipeline


def by_loops(pipeline: Pipeline, data: Made, protocol: RankingProtocol) -> list[int]:
    """The ranks from all rows at once, one score at a time."""
    rows = pipeline.model.embedding.full_weight("item", data.items).double()
    states = torch.from_numpy(pipeline.evaluate(data.batches("heldout", 8))[1]).double()
    scores = nn.functional.normalize(states) @ nn.functional.normalize(rows).T
    ranks = []
    for sample, target in enumerate(data.targets("heldout")):
        own, above, equal = scores[sample, int(np.flatnonzero(data.items == target)[0])], 0, 0
        for score, item in zip(scores[sample], data.items, strict=True):
            left_out = protocol.leave_out_seen and item in data.histories[sample]
            if item != target and not left_out:
                above += int(score > own)
                equal += int(score == own)
        ranks.append(above + (equal + 1) // 2)
    return ranks


@pytest.mark.parametrize("kind", ["row", "tt"])
@pytest.mark.parametrize("leave_out", [False, True])
def test_ranks_are_those_of_loops(kind, leave_out):
    """Broken on purpose: rows of the targets in the order of the items they are; the last chunk left out."""
    data = Made()
    pipeline, protocol = trained(LocalTransport(), data, kind), RankingProtocol((1, 5), leave_out)
    found = evaluate_retrieval(pipeline, data, batch_size=5, protocol=protocol, chunk=7)
    assert found.ranks.tolist() == by_loops(pipeline, data, protocol)
    assert found.metrics == retrieval_metrics(found.ranks, (1, 5), "unseen_" if leave_out else "")
    assert (found.targets == data.targets("heldout")).all() and found.numbers.tolist() == list(range(SAMPLES))
    assert found.sampled_ranks is None


def test_divisions_change_nothing_and_a_name_says_the_protocol():
    data = Made()
    pipeline = trained(LocalTransport(), data)
    protocol = RankingProtocol((3,), leave_out_seen=True, sampled=9, seed=1)
    found = evaluate_retrieval(pipeline, data, batch_size=8, protocol=protocol)
    assert list(found.metrics) == [f"{p}{m}" for p in ("unseen_", "sampled_") for m in ("HR@3", "NDCG@3", "MRR")]
    for batch_size, chunk in ((1, 1), (5, 9), (100, 100)):
        again = evaluate_retrieval(pipeline, data, "heldout", batch_size, protocol, chunk=chunk)
        assert again.metrics == found.metrics and (again.sampled_ranks == found.sampled_ranks).all()
    kept = evaluate_retrieval(pipeline, data, batch_size=8, protocol=replace(protocol, leave_out_seen=False))
    assert (kept.sampled_ranks == found.sampled_ranks).all()  # what was seen counts among sampled items
    assert (found.sampled_ranks <= 9).all() and found.metrics["sampled_HR@3"] > found.metrics["unseen_HR@3"]


def test_evaluation_changes_nothing_that_is_learnt():
    data = Made()
    pipeline = trained(LocalTransport(), data)
    before = {name: value.clone() for name, value in pipeline.model.embedding.export("item").items()}
    evaluate_retrieval(pipeline, data)
    after = pipeline.model.embedding.export("item")
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert len(before["ids"]) < ITEMS  # some items were never trained: their rows came from initialisation


def look(transport: Transport, kind: str, protocol: RankingProtocol, samples: int, techniques: str = "") -> tuple:
    """Rows as initialised, which are the same on any number of ranks, and then trained ones."""
    data = Made(samples)
    pipeline = trained(transport, replace_histories(data), kind, techniques)
    found = evaluate_retrieval(pipeline, data, batch_size=4, protocol=protocol, chunk=11)
    return found.metrics, found.ranks, found.sampled_ranks, found.numbers


def replace_histories(data: Made) -> Made:
    """One batch for training, of one sample: its gradient is the same on any number of ranks."""
    other = Made(1)
    other.histories = [data.items[:5].tolist()]
    return other


@pytest.mark.dist
@pytest.mark.parametrize(
    ("kind", "samples", "techniques"), [("row", SAMPLES, ""), ("row", 1, ""), ("row", 0, ""), ("tt", SAMPLES, "")]
)
def test_two_ranks_find_what_one_does(ranks, kind, samples, techniques):
    """To the bit, with uneven slices and with none. Broken on purpose: each rank's own samples alone; sampled items by
    the place in the rank's share in place of the sample's number."""
    protocol = RankingProtocol((1, 5), leave_out_seen=True, sampled=7)
    alone = look(LocalTransport(), kind, protocol, samples, techniques)
    for together in ranks.run(look, kind, protocol, samples, techniques):
        assert all(map(_equal, together[0].values(), alone[0].values())) and list(together[0]) == list(alone[0])
        for mine, theirs in zip(together[1:], alone[1:], strict=True):
            assert mine.dtype == np.int64 and mine.tolist() == theirs.tolist()


def _equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def fails(transport: Transport, fault: str) -> str:
    data = Made()
    pipeline = trained(transport, data)
    if fault == "target":
        data._targets[3] = 1
    elif fault == "state":
        pipeline.model.dense.scale.data.fill_(math.nan)
    elif fault == "number":
        data.targets = lambda split: data._targets[:9]
    else:
        data.items = data.items[::-1].copy()
    with pytest.raises(UserError) as caught:
        evaluate_retrieval(pipeline, data, batch_size=8)
    return str(caught.value)


FAULTS = {
    "target": "1 of 23 targets are none of the 40 items, 1 is the first",
    "state": "a state holds a number that is not finite",
    "number": "labels are no numbers of samples 0 … 8",
    "order": "not ascending",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told(fault):
    assert FAULTS[fault] in fails(LocalTransport(), fault)


@pytest.mark.dist
def test_no_rank_waits_for_one_that_found_a_fault(ranks):
    for fault, message in FAULTS.items():
        assert all(message in told for told in ranks.run(fails, fault, timeout_s=30.0))


def test_a_model_that_predicts_numbers_is_refused():
    data = Made()
    pipeline = trained(LocalTransport(), data)
    plain = Pipeline(RecModel(pipeline.model.embedding, OneNumber()), torch.optim.SGD([torch.zeros(1)], lr=1.0))
    with pytest.raises(UserError, match="predicts a number a sample, no state"):
        evaluate_retrieval(plain, data)


class OneNumber(nn.Module):
    def forward(self, batch, embedded) -> DenseOutput:
        return DenseOutput(torch.zeros(batch.size), torch.zeros(batch.size))


def test_popularity_in_the_same_form():
    data = Made()
    for leave_out in (False, True):
        found = rank_by_popularity(data, protocol=RankingProtocol((5,), leave_out))
        expected = []
        for sample, target in enumerate(data.targets("heldout")):
            count = dict(zip(data.items.tolist(), data.popular.tolist(), strict=True))
            rest = [i for i in count if i != target and not (leave_out and i in data.histories[sample])]
            above = sum(count[i] > count[target] for i in rest)
            expected.append(above + math.ceil(sum(count[i] == count[target] for i in rest) / 2))
        assert found.ranks.tolist() == expected and found.protocol.leave_out_seen is leave_out
    with pytest.raises(UserError, match="sampled=0"):
        rank_by_popularity(data, protocol=replace(found.protocol, sampled=3))


def test_facts_of_a_protocol():
    assert RankingProtocol().facts == {"ranking": "full", "seen": "kept", "k": "10,50", "ties": "half, rounded up"}
    facts = RankingProtocol((5,), True, 100, 3).facts
    assert facts["ranking"] == "full, and sampled among 100 + 1" and facts["seen"] == "left out"
    assert (facts["k"], facts["sampling_seed"]) == ("5", 3)
