"""Trainings judged by a ranking or by several tasks: curves, checkpoints, one rank and two."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nestlab.data.dataset import DatasetInfo
from nestlab.data.sequences import SequenceData, SequenceOptions
from nestlab.embedding import EmbeddingStore, LazyAdam, TableConfig
from nestlab.errors import UserError
from nestlab.exchange import LocalTransport, Transport
from nestlab.experiments import kept
from nestlab.models import DenseOutput, RecModel
from nestlab.models.sequence import Retrieval, SASRec, Size
from nestlab.pipeline import Pipeline
from nestlab.training import Checkpoints, FitConfig, History, RankingProtocol, Saving, Trained, fit, restore
from nestlab.training.looks import ClickJudge, RetrievalJudge, TaskJudge
from nestlab.training.retrieval import HELDOUT, evaluate_retrieval, rank_by_popularity

ITEMS, LENGTH, DIM = 30, 9, 16
INFO = DatasetInfo("made", "synthetic", 0, "0" * 64, "made (SYNTHETIC)", convention="kuairand-rank")
PROTOCOL = RankingProtocol((3,))
THREE = FitConfig(epochs=3, evaluations=3)


def chains(users: int = 60) -> SequenceData:
    """Every user walks through the items in one and the same circle: what comes next follows from the last event."""
    starts = np.random.default_rng(0).integers(0, ITEMS, users)
    videos = (starts[:, None] + np.arange(LENGTH)) % ITEMS * 7
    times = np.arange(users * LENGTH).reshape(LENGTH, users).T
    events = {"video_id": videos.ravel(), "time_ms": times.ravel(), "action": np.ones(videos.size, np.uint8)}
    options = SequenceOptions(history=LENGTH, split="leave_one_out", negatives=12)
    return SequenceData(INFO, events, np.arange(users) * LENGTH, options)


class Bench:
    """A pipeline over a small SASRec, and what its checkpoint holds."""

    def __init__(self, transport: Transport | None = None) -> None:
        configs = [
            TableConfig("item", DIM, ("item", "target", "negative"), pooling="none"),
            TableConfig("action", DIM, pooling="none"),
        ]
        transport = transport or LocalTransport()
        dense = Retrieval(SASRec(Size(DIM, blocks=1, longest=LENGTH)), temperature=0.1)
        self.model = RecModel(EmbeddingStore(configs, LazyAdam(lr=0.03)), dense)
        self.adam = torch.optim.Adam(dense.parameters(), lr=0.01)
        self.trained = Trained(self.model, self.adam, transport)
        self.transport = transport

    @property
    def pipeline(self) -> Pipeline:
        """A new one, as after a restart."""
        return Pipeline(self.model, self.adam, transport=self.transport)


def train(
    bench: Bench, config: FitConfig, data: SequenceData | None = None, protocol: RankingProtocol = PROTOCOL, **options
) -> History:
    """Batches of 16 samples over all ranks, of which each takes its slice; 60 windows are four."""
    data, mesh = data or chains(), bench.transport.mesh
    batches = data.batches("train", 16, shuffle=True).slice(mesh.rank, mesh.world_size)
    return fit(bench.pipeline, batches, RetrievalJudge(data, HELDOUT, 16, protocol), config, **options)


def test_a_look_an_epoch_and_the_planted_order_is_found():
    """Far above popularity; and the last row of the curve is what the trained model ranks."""
    data, lines, bench = chains(), [], Bench()
    history = train(bench, FitConfig(10, evaluations=10), data, report=lines.append)
    looks = history.evaluations_frame()
    assert looks.columns.tolist() == ["step", "HR@3", "NDCG@3", "MRR"]
    assert looks["step"].tolist() == [4 * (epoch + 1) for epoch in range(10)]  # of 60 windows in batches of 16
    popular = rank_by_popularity(data, protocol=PROTOCOL).metrics["HR@3"]
    assert looks["HR@3"].iloc[-1] > popular + 0.5
    final = evaluate_retrieval(bench.pipeline, data, batch_size=60, protocol=PROTOCOL)
    assert {"step": 40, **final.metrics} == history.evaluations[-1]
    targets, ranks = history.last_look
    assert (ranks == final.ranks).all() and (targets == data.targets("heldout")).all()
    assert history.metrics_frame()["which"].tolist() == ["final", "best NDCG@3"]
    assert history.metrics_frame()["NDCG@3"].tolist() == [looks["NDCG@3"].iloc[-1], looks["NDCG@3"].max()]
    assert lines[-1].startswith("step 40: train loss ") and "HR@3 " in lines[-1] and "MRR " in lines[-1]


def test_a_restart_goes_on_with_the_same_curve(tmp_path):
    whole, first = train(Bench(), THREE), Bench()
    half = FitConfig(epochs=3, max_steps=6, evaluations=1)
    train(first, half, saving=Saving(Checkpoints(tmp_path, first.trained, 3)))
    second = Bench()
    begin = restore(tmp_path, second.trained)
    assert list(begin.history.evaluations[0]) == ["step", "HR@3", "NDCG@3", "MRR"]
    again = train(second, THREE, saving=Saving(begin=begin))
    assert again.losses == whole.losses and again.evaluations[-2:] == whole.evaluations[-2:]
    assert [look["step"] for look in again.evaluations] == [6, 8, 12]


def test_another_judge_does_not_go_on_with_a_curve():
    bench, history = Bench(), History()
    train(bench, THREE, saving=Saving(history=history))
    with pytest.raises(UserError, match=r"the curve so far has HR@3, NDCG@3, MRR, and this look HR@5, NDCG@5, MRR"):
        train(bench, FitConfig(4), protocol=RankingProtocol((5,)), saving=Saving(history=history))


def test_a_curve_of_fewer_metrics_goes_on():
    """A version that had fewer saved it; what it did not measure is no number. Broken on purpose: refused."""
    bench, history = Bench(), History()
    train(bench, THREE, saving=Saving(history=history))
    for look in history.evaluations:
        del look["NDCG@3"]
    looks = train(bench, FitConfig(4, evaluations=4), saving=Saving(history=history)).evaluations_frame()
    assert looks.columns.tolist() == ["step", "HR@3", "NDCG@3", "MRR"] and looks["HR@3"].notna().all()
    assert looks["NDCG@3"].isna().tolist() == [True] * 3 + [False]


def test_looks_between_epochs():
    history = train(Bench(), FitConfig(1, evaluations=2))
    assert [look["step"] for look in history.evaluations] == [2, 4]
    history = train(Bench(), FitConfig(max_steps=2, evaluations=1))
    assert [look["step"] for look in history.evaluations] == [2]  # no epoch is whole


def train_and_look(transport: Transport) -> tuple[list, tuple, tuple]:
    history = train(Bench(transport), THREE, chains(50))
    return history.losses, history.evaluations, history.last_look


@pytest.mark.dist
def test_two_ranks_have_one_curve(ranks):
    """Equal on both; beside one rank's, sums of gradients stand in another order. The seeded negatives and the order
    of samples are the same, so that losses agree to that."""
    alone = train_and_look(LocalTransport())
    first, second = ranks.run(train_and_look)
    assert first[:2] == second[:2] and np.array_equal(first[2], second[2])
    assert np.array_equal(first[2][0], alone[2][0])
    np.testing.assert_allclose(np.array(first[0])[:4, 1], np.array(alone[0])[:4, 1], rtol=1e-4)


class TwoTasks(nn.Module):
    """One logit a task from the sample's mean item row."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Linear(DIM, 2)

    def forward(self, batch, embedded) -> DenseOutput:
        logits = self.heads(embedded.pooled("item"))
        bits = torch.stack([batch.labels.long() & bit for bit in (1, 4)], dim=1).bool().float()
        losses = nn.functional.binary_cross_entropy_with_logits(logits, bits, reduction="none").sum(dim=1)
        return DenseOutput(losses, torch.sigmoid(logits.detach()))


def test_several_tasks():
    """Item i is clicked where i is odd and liked where i is above 7: ids tell it all."""
    from nestlab.batch import Batch

    ids = torch.arange(16).repeat(8)
    labels = ((ids % 2) + 4 * (ids > 7)).float()
    batch = Batch(torch.zeros(128, 0), ("item",), ids, torch.ones(128, dtype=torch.int64), labels)
    dense = TwoTasks()
    model = RecModel(EmbeddingStore([TableConfig("item", DIM)], LazyAdam(lr=0.1)), dense)
    pipeline = Pipeline(model, torch.optim.Adam(dense.parameters(), lr=0.01))
    judge = TaskJudge([batch], {"click": 1, "like": 4}, groups=np.arange(128) % 4)
    lines: list[str] = []
    history = fit(pipeline, [batch] * 20, judge, FitConfig(evaluations=2), lines.append)
    last = history.evaluations[-1]
    assert last["click.auc"] == last["like.auc"] == last["mean_auc"] == 1.0
    assert last["like.gauc"] == 1.0 and np.isnan(last["click.gauc"])  # a group has odd ids only, or even ones
    assert "mean_auc 1.0000 of 2 tasks, click.auc 1.0000, like.auc 1.0000" in lines[-1]
    assert history.metrics_frame()["which"][1] == "best mean_auc" and history.last_look[1].shape == (128, 2)


@pytest.mark.parametrize(
    ("judge", "labels", "told"),
    [
        (
            ClickJudge(()),
            [1.0],
            "no final auc: it takes held-out samples of both labels, and there is 1 of one label only",
        ),
        (
            TaskJudge((), {"click": 1}),
            [1.0] * 2,
            "no final mean_auc: a task takes held-out samples of both labels, and of",
        ),
        (ClickJudge(()), [], "both labels, and there are 0 of one label only; read more rows"),
        (ClickJudge(()), [0.0, 1.0], "final auc 0.5000 after step 2; best 0.7500 after step 1"),
    ],
)
def test_a_training_without_its_metric_says_why(judge, labels, told):
    """Seen to fail where the ending was "final auc nan after step 1; best nan after step 1"."""
    values = (0.75, 0.5) if len(set(labels)) == 2 else (float("nan"),)
    looks = [{"step": step, judge.best: value} for step, value in enumerate(values, 1)]
    history = History(evaluations=looks, last_look=(np.array(labels), np.array(labels)), best=judge.best)
    assert told in kept._ending(history, judge) and "nan" not in kept._ending(history, judge)


def test_a_judge_of_a_ranking_names_what_it_shows():
    judge = RetrievalJudge(chains(), protocol=RankingProtocol((10, 50), leave_out_seen=True, sampled=5))
    assert judge.shown == ("unseen_HR@10", "unseen_NDCG@10", "unseen_MRR") and judge.best == "unseen_NDCG@10"
    pipeline = Bench().pipeline
    look, found = judge.look(pipeline), evaluate_retrieval(pipeline, judge.data, protocol=judge.protocol)
    assert set(judge.shown) <= set(look.metrics) and look.metrics == found.metrics
    assert look.outputs[1].any() and (look.outputs[1] == found.ranks).all()  # broken on purpose: ranks times 0
