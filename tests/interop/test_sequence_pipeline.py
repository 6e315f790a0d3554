"""`NestPipeTrainPipeline` for models over sequences: the loss is a mean over positions, and times are raw numbers.

The reference is the loop that torchrec's users write, on the same tiered collection, in one process; what reorders
float32 sums (micro-batches, ranks) agrees to RTOL and ATOL, weights and losses being around 0.1 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from test_migrations import diff, losses, shown
from torch import nn

from nestlab.batch import Batch
from nestlab.embedding import Adagrad, EmbeddingStore, TableConfig, Tiers
from nestlab.errors import UserError
from nestlab.models import RecModel
from nestlab.techniques import Techniques

RTOL, ATOL = 2e-5, 2e-6
DIM, NEGATIVES, SIZE, STEPS = 8, 3, 13, 7
KEYS = ("time", "target", "item", "negative", "action")  # not the tables' order
START = 1_650_000_000_000

VARIANTS = {
    "plain": Techniques(),
    "DBP": Techniques(device_tier="dual_buffer", pipeline_depth=5),
    "FWP": Techniques(micro_batches=3),
    "DBP + FWP": Techniques(device_tier="dual_buffer", pipeline_depth=4, micro_batches=4),
    "clustered": Techniques(micro_batches=3, clustering="greedy"),
}


def tables() -> list:
    from torchrec import EmbeddingConfig

    names = {"item": ["item", "target", "negative"], "action": ["action"]}
    return [EmbeddingConfig(name=n, embedding_dim=DIM, num_embeddings=90, feature_names=f) for n, f in names.items()]


class Watching(nn.Module):
    """Sampled softmax at every position, over rows, raw times and raw ids. `mean`: one loss for all positions."""

    def __init__(self, techniques: Techniques | None = None, mean: bool = True) -> None:
        from nestlab.interop.torchrec import TieredEmbeddingCollection

        super().__init__()
        techniques = techniques or Techniques()
        self.mean = mean
        self.ec = TieredEmbeddingCollection(tables(), Adagrad(0.1, eps=1e-6), Tiers.of(techniques))
        self.mix = nn.Linear(DIM, DIM)
        with torch.no_grad():
            for value in self.mix.parameters():
                value.normal_(0, 0.5, generator=torch.Generator().manual_seed(3))

    def forward(self, batch):
        features = getattr(batch, "features", batch)
        rows, lengths = self.ec(features), features["item"].lengths()
        seconds = (features["time"].values() - START) / 1000
        state = self.mix(10 * (rows["item"].values() + rows["action"].values())) * (1 + seconds[:, None])
        negative = rows["negative"].values().view(-1, NEGATIVES, DIM).repeat_interleave(lengths, 0)
        wrong_ids = features["negative"].values().view(-1, NEGATIVES).repeat_interleave(lengths, 0)
        wrong = (negative @ state[:, :, None]).squeeze(2) * 10
        wrong = wrong.masked_fill(wrong_ids == features["target"].values()[:, None], -torch.inf)
        right = (state * rows["target"].values()).sum(1, keepdim=True) * 10
        losses = -torch.cat([right, wrong], 1).log_softmax(1)[:, 0]
        output = {"loss": losses.detach().mean(), "scores": right.detach()}
        return _masked_mean(losses, self.mix.bias.sum()) if self.mean else losses, output


def _masked_mean(losses: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    """As padded models take it: what is computed for padding counts 0 times. Of no position 0 / 0, gradients too."""
    mask = torch.ones(len(losses) + 1)
    mask[-1] = 0
    return (torch.cat([losses, padding[None]]) * mask).sum() / mask.sum()


def batch(number: int, size: int = SIZE, empty: slice = slice(2, 3)) -> Batch:
    """0 to 6 positions a sample (0 in `empty`), ids of 64 bits and below 0 among them; negatives are often targets."""
    rng = np.random.default_rng(number)
    lengths = rng.integers(0, 7, size)
    lengths[empty] = 0
    count = int(lengths.sum())
    numbers = np.array([-5, 2**60, *range(1, 9)])
    ids = {
        "item": rng.choice(numbers, count),
        "target": rng.choice(numbers, count),
        "action": rng.integers(0, 3, count),
        "time": START + rng.integers(0, 1000, count),
        "negative": rng.choice(numbers, size * NEGATIVES),
    }
    each = {name: np.full(size, NEGATIVES) if name == "negative" else lengths for name in KEYS}
    return Batch(
        dense=torch.zeros(size, 0),
        features=KEYS,
        ids=torch.from_numpy(np.concatenate([ids[name] for name in KEYS])),
        lengths=torch.from_numpy(np.concatenate([each[name] for name in KEYS])),
        labels=torch.zeros(size),
    )


def kjts(batches: list[Batch]) -> list:
    from nestlab.interop.torchrec import to_kjt

    return [to_kjt(each) for each in batches]


def sgd(model: Watching) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.mix.parameters(), lr=0.3)


def reference(batches) -> tuple[Watching, list[float], list[torch.Tensor]]:
    model = Watching()
    optimizer, losses, scores = sgd(model), [], []
    for each in batches:
        optimizer.zero_grad()
        loss, output = model(each)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        scores.append(output["scores"])
    return model, losses, scores


def trained(batches, name: str, model: Watching | None = None, mean_over: str | None = "target", **options):
    from nestlab.interop.torchrec import NestPipeTrainPipeline

    model = model or Watching(VARIANTS[name])
    pipeline = NestPipeTrainPipeline(model, sgd(model), "cpu", VARIANTS[name], mean_over=mean_over, **options)
    iterator, outputs = iter(batches), []
    while True:
        try:
            outputs.append(pipeline.progress(iterator))
        except StopIteration:
            pipeline.close()
            return model, outputs


def weights(model: Watching) -> dict[str, torch.Tensor]:
    """The dense part's, and every row that was trained."""
    found = {name: value.clone() for name, value in model.mix.named_parameters()}
    for table in ("item", "action"):
        exported = model.ec.store.export(table)
        order = exported["ids"].argsort()
        found |= {f"{table}.{part}": exported[part][order] for part in ("ids", "weight")}
    return found


def assert_near(model: Watching, expected: Watching) -> None:
    one, other = weights(model), weights(expected)
    for name, value in other.items():
        torch.testing.assert_close(one[name], value, rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("mean", [True, False], ids=["one loss", "a loss a position"])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_mean_over_positions_is_that_of_the_whole_batch(name, mean):
    """Broken once: weights left at one a sample; outputs averaged by samples; the values of a micro-batch not cut."""
    batches = kjts([batch(number) for number in range(STEPS)])
    expected, losses, scores = reference(batches)
    model, outputs = trained(batches, name, Watching(VARIANTS[name], mean))
    assert_near(model, expected)  # never to the bit: Σ wᵢ·loss / Σ wᵢ rounds otherwise than the loss
    assert [output["loss"].item() for output in outputs] == pytest.approx(losses, rel=RTOL)
    if name != "clustered":
        for output, each in zip(outputs, scores, strict=True):
            torch.testing.assert_close(output["scores"], each, rtol=RTOL, atol=ATOL)
    start = weights(trained([], "plain")[0])
    assert max((weights(model)[n] - start[n]).abs().max() for n in ("weight", "bias")) > 0.05  # it moved


def test_a_mean_over_samples_is_another_one():
    """What `mean_over` is there for: micro-batches of unequal length would count alike."""
    batches = kjts([batch(number) for number in range(STEPS)])
    _, losses, _ = reference(batches)
    _, outputs = trained(batches, "FWP", mean_over=None)
    assert [output["loss"].item() for output in outputs] != pytest.approx(losses, rel=1e-3)


@dataclass
class Named:
    features: object


@pytest.mark.parametrize("mean", [True, False], ids=["one loss", "a loss a position"])
def test_batches_and_parts_without_a_position(mean):
    """A whole micro-batch of samples without history, a batch of them, and no sample; batches of another form.

    Broken once: the mean of no position, which is none, taken times its weight of 0.
    """
    batches = [batch(0), batch(1, empty=slice(0, 5)), batch(2, empty=slice(None)), batch(3, size=0), batch(4, size=2)]
    whole = kjts(batches)
    with_positions = [i for i, each in enumerate(whole) if each["target"].values().numel()]
    assert with_positions == [0, 1, 4] and not whole[1]["target"].lengths()[:4].any()
    expected, losses, _ = reference([whole[i] for i in with_positions])
    model, outputs = trained([Named(each) for each in whole], "FWP", Watching(VARIANTS["FWP"], mean))
    one, other = weights(model), weights(expected)
    kept = torch.isin(one["item.ids"], other["item.ids"])  # negatives of a batch without a position have rows, too
    one |= {part: one[part][kept] for part in ("item.ids", "item.weight")}
    for part, value in other.items():
        torch.testing.assert_close(one[part], value, rtol=RTOL, atol=ATOL)
    assert [outputs[i]["loss"].item() for i in with_positions] == pytest.approx(losses, rel=RTOL)


def test_what_does_not_fit_is_refused():
    from nestlab.interop.torchrec import NestPipeTrainPipeline

    (good,) = kjts([batch(0)])
    with pytest.raises(UserError, match=r"mean_over='targets': .* no such key; it has time, target"):
        trained([good], "plain", mean_over="targets")
    with pytest.raises(UserError, match=r"a loss of shape \[\d+\]; return the mean, or one a sample \[13\]"):
        trained([good], "plain", Watching(mean=False), mean_over=None)
    with pytest.raises(UserError, match=r"or one an id of mean_over \[39\]"):
        trained([good], "plain", Watching(mean=False), mean_over="negative")
    with pytest.raises(UserError, match="Named of 1 after others that were KeyedJaggedTensor"):
        trained([good, Named(good)], "plain")
    with pytest.raises(UserError, match="settings on the model"):
        trained([(good, SIZE)], "plain")
    ours = RecModel(EmbeddingStore([TableConfig("item", DIM)], Adagrad(0.1)), nn.Linear(1, 1))
    with pytest.raises(UserError, match="a RecModel's batches say"):
        NestPipeTrainPipeline(ours, torch.optim.SGD(ours.dense.parameters(), lr=1.0), mean_over="target")


def test_the_model_sees_what_the_loader_gave():
    """Each key once, the looked-up ones first, none of them copied where they came so; evaluation sees the same."""
    from nestlab.interop.torchrec import NestPipeTrainPipeline, to_kjt

    seen = []

    class Looking(Watching):
        def forward(self, given):
            seen.append(given)
            return super().forward(given)

    source = batch(5)
    (given,) = kjts([source])
    model = Looking()
    NestPipeTrainPipeline(model, sgd(model), mean_over="target").evaluate([given])
    assert seen[0].keys() == ["item", "target", "negative", "action", "time"]
    for key in KEYS:
        assert torch.equal(seen[0][key].values(), given[key].values())
        assert torch.equal(seen[0][key].lengths(), given[key].lengths())
    ordered = to_kjt(_ordered(source, seen[0].keys()))
    NestPipeTrainPipeline(model, sgd(model)).evaluate([ordered])
    assert seen[1].keys() == ordered.keys() and seen[1].values().data_ptr() == ordered.values().data_ptr()


def _ordered(source: Batch, names: list[str]) -> Batch:
    """The same with its features in another order."""
    ids = dict(zip(source.features, source.ids.split(source.feature_lengths().sum(1).tolist()), strict=True))
    lengths = dict(zip(source.features, source.feature_lengths(), strict=True))
    joined = (torch.cat([kept[name] for name in names]) for kept in (ids, lengths))
    return Batch(source.dense, tuple(names), *joined, source.labels)


def _rank(transport, name: str, sizes: list[list[int]]) -> dict:
    """A rank's own rows and dense weights."""
    rank = transport.mesh.rank
    mine = [batch(number, sum(each)).slice(rank * each[0], sum(each[: rank + 1])) for number, each in enumerate(sizes)]
    model, outputs = trained(kjts(mine), name)
    return weights(model) | {"outputs": len(outputs)}


@pytest.mark.dist
def test_two_ranks_train_the_mean_over_all_positions(ranks):
    """Unequal and empty slices. Broken once: each rank's mean taken over its own positions."""
    sizes = [[9, 4], [1, 12], [13, 0], [6, 6]]
    expected, *_ = reference(kjts([batch(number, sum(each)) for number, each in enumerate(sizes)]))
    first, second = ranks.run(_rank, "DBP + FWP", sizes)
    wanted = weights(expected)
    for name in ("weight", "bias"):
        torch.testing.assert_close(first[name], wanted[name], rtol=RTOL, atol=ATOL)
        assert torch.equal(first[name], second[name])
    ids = torch.cat([first["item.ids"], second["item.ids"]])
    order = ids.argsort()
    assert torch.equal(ids[order], wanted["item.ids"])
    rows = torch.cat([first["item.weight"], second["item.weight"]])[order]
    torch.testing.assert_close(rows, wanted["item.weight"], rtol=RTOL, atol=ATOL)


def test_the_worked_example_of_a_generative_recommender(project, capsys):
    """docs/migrations/gr_before.py → gr_after.py. The largest difference seen was 6e-6, and 8e-2 without mean_over."""
    before, after = (losses(project, capsys, "gr", side) for side in ("before", "after"))
    assert len(before) == len(after) == 40 and after == pytest.approx(before, rel=1e-4)
    assert sum(before[-10:]) < 0.6 * sum(before[:10])  # it learns
    changed = diff(project, "gr")
    assert 0 < len(changed) <= 14 and changed in shown(project)
