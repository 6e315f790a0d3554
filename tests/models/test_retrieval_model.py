"""Sampled softmax over jagged samples against loops over positions; what a sample's state is."""

from __future__ import annotations

import pytest
import torch

from nestlab.batch import Batch
from nestlab.embedding import Embedded
from nestlab.models.sequence import SASRec
from nestlab.models.sequence.encoder import Size
from nestlab.models.sequence.retrieval import Retrieval, last_states

DIM, ITEMS = 8, 6
FEATURES = ("item", "target", "action", "time", "negative")


def made_batch(lengths, negatives: int = 5, seed: int = 0) -> Batch:
    """Few items, so that a negative often is a target, and often twice."""
    generator = torch.Generator().manual_seed(seed)
    n, size = sum(lengths), len(lengths)
    draw = lambda top, count: torch.randint(-top, top, (count,), generator=generator)  # noqa: E731
    time = draw(1 << 30, n).abs().cumsum(0)
    ids = torch.cat([draw(ITEMS // 2, n), draw(ITEMS // 2, n), draw(4, n), time, draw(ITEMS // 2, size * negatives)])
    every = torch.tensor([*lengths * 4, *[negatives] * size], dtype=torch.int64)
    return Batch(torch.zeros(size, 0), FEATURES, ids, every, torch.arange(size).float(), values=("time",))


def embedded_of(batch: Batch, tables: dict[str, torch.Tensor], features=("item", "target", "action", "negative")):
    found = Embedded(batch.size)
    for feature in features:
        place = FEATURES.index(feature)
        lengths, starts = batch.feature_lengths(), batch.offsets()
        ids = batch.ids[starts[place * batch.size] : starts[(place + 1) * batch.size]]
        found.add(feature, tables["action" if feature == "action" else "item"][ids], lengths[place])
    return found


def made_tables() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {
        name: torch.randn(ITEMS + 4, DIM, dtype=torch.float64, generator=generator).requires_grad_()
        for name in ("item", "action")
    }


def made(**changes) -> Retrieval:
    return Retrieval(SASRec(Size(DIM, blocks=1, longest=9)).double(), **{"temperature": 0.5, **changes})


def by_loops(model: Retrieval, batch: Batch, tables) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = batch.feature_lengths()
    runs = {name: batch.ids.split(batch.lengths.tolist())[i * batch.size :] for i, name in enumerate(FEATURES)}
    losses, last = [], []
    for b in range(batch.size):
        item, target, action, time, negative = (runs[name][b] for name in FEATURES)
        if not len(item):
            losses.append(torch.zeros((), dtype=torch.float64))
            last.append(torch.zeros(DIM, dtype=torch.float64))
            continue
        states = model.encoder(tables["item"][item] + tables["action"][action], lengths[0, b : b + 1], time)
        total = 0.0
        for state, wanted in zip(states, target, strict=True):
            unit = state / state.norm()
            score = {}
            for place, i in enumerate([int(wanted), *(int(i) for i in negative if i != wanted)]):
                row = tables["item"][i]
                score[place] = unit @ row / row.norm() / model.temperature
            total = total - torch.log(torch.exp(score[0]) / sum(torch.exp(s) for s in score.values()))
        losses.append(total / len(item))
        last.append(states[-1] / states[-1].norm())
    return torch.stack(losses), torch.stack(last)


@pytest.mark.parametrize("lengths", [[3, 0, 7, 1, 7, 5, 6], [0, 2], [1]])
def test_losses_and_gradients_are_those_of_loops(lengths):
    """Broken on purpose once: negatives that are the target not masked, and the mean over the block's length."""
    batch, weights = made_batch(lengths), torch.arange(1.0, 1.0 + len(lengths), dtype=torch.float64)
    found = []
    for loops in (False, True):
        model, tables = made(), made_tables()
        losses, states = by_loops(model, batch, tables) if loops else model(batch, embedded_of(batch, tables))
        (losses * weights).sum().backward()
        grads = [p.grad for p in (*model.parameters(), *tables.values())]
        found.append([losses.detach(), states.detach(), *grads])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_a_micro_batch_comes_to_what_the_whole_does():
    """What FWP stands on: samples are counted by themselves, up to rounding."""
    batch, tables, model = made_batch([3, 0, 7, 1, 7, 5]), made_tables(), made()
    whole = model(batch, embedded_of(batch, tables))
    parts = [model(part, embedded_of(part, tables)) for part in batch.micro_batches(4)]
    torch.testing.assert_close(torch.cat([p.losses for p in parts]), whole.losses, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([p.predictions for p in parts]), whole.predictions, rtol=1e-12, atol=1e-12)


def test_no_sample_no_event_no_negative():
    tables, model = made_tables(), made()
    for batch in (made_batch([]), made_batch([0, 0])):
        output = model(batch, embedded_of(batch, tables))
        assert output.losses.tolist() == [0.0] * batch.size and output.predictions.shape == (batch.size, DIM)
        output.losses.sum().backward() if output.losses.requires_grad else None
    batch = made_batch([3], negatives=0)
    assert made_of(model, batch, tables).losses.item() == pytest.approx(0.0, abs=1e-12)  # nothing to tell it from
    batch = made_batch([3])
    batch.ids[-5:] = batch.ids[3]  # each negative is the first target
    batch.ids[3:6] = batch.ids[3]
    assert made_of(model, batch, tables).losses.item() == pytest.approx(0.0, abs=1e-12)


def made_of(model, batch, tables):
    return model(batch, embedded_of(batch, tables))


def test_actions_may_be_left_out():
    batch, tables, model = made_batch([4, 2]), made_tables(), made()
    without = model(batch, embedded_of(batch, tables, ("item", "target", "negative")))
    assert not torch.allclose(without.losses, made_of(model, batch, tables).losses)


def test_negatives_of_different_number_are_refused():
    batch, tables = made_batch([2, 2]), made_tables()
    lengths = batch.lengths.clone()
    lengths[-2:] = torch.tensor([4, 6])
    uneven = Batch(batch.dense, FEATURES, batch.ids, lengths, batch.labels, values=("time",))
    with pytest.raises(ValueError, match="different numbers of negatives"):
        made()(uneven, embedded_of(uneven, tables))


def test_states_after_the_last_event():
    states = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    last = last_states(states, torch.tensor([2, 0, 3]))
    assert torch.equal(last, torch.stack([states[1], torch.zeros(3), states[4]]))
    last.sum().backward()
    assert states.grad.sum(1).tolist() == [0.0, 3.0, 0.0, 0.0, 3.0]


def test_predictions_carry_no_gradient():
    batch = made_batch([3, 1])
    assert not made_of(made(), batch, made_tables()).predictions.requires_grad


def test_flops_of_negatives():
    model, lengths = made(), torch.tensor([3, 4])
    assert model.flops(lengths, 5) - model.encoder.flops(lengths) == 2 * 7 * 5 * DIM
