"""Hot rows against a table that is written down row by row, with autograd through the whole of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import leaves, pooled, whole_table

from nestlab.embedding import SGD, Adagrad, LazyAdam, RowWiseAdagrad, StepInfo, TableConfig
from nestlab.embedding.tensor_train import TensorTrain, TTShape, TTTable
from nestlab.embedding.tensor_train.hot_choice import WAYS, HotChoice

ROWS, LR = 30, 0.05  # as many rows as can all be counted: the choice is then the one of exact counts
KIND = TensorTrain(rows=ROWS, shape=TTShape((3, 2, 5), (2, 1, 3), (3, 2)), ids="range", hot_rows=4, hot_every=2)
LENGTHS = [3, 0, 5, 1]


def make(kind=KIND, optimizer=None, scheme="tt_rec") -> TTTable:
    config = TableConfig("t", 6, tensor_train=kind)
    return TTTable(config, optimizer or SGD(lr=LR), dtype=torch.float64, scheme=scheme)


def batches(count: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """ids, weights and the gradient of the bags; the few ids used most are others in every third batch."""
    generator = np.random.default_rng(seed)
    made = []
    for number in range(count):
        ids = (generator.zipf(1.3, 9) + 7 * (number // 3)) % ROWS
        made.append((ids, generator.normal(size=9), generator.normal(size=(4, 6))))
    return [tuple(map(torch.from_numpy, batch)) for batch in made]


def train(made: TTTable, batch, number: int) -> torch.Tensor:
    ids, weights, grad = batch
    output = made.embed(ids, torch.tensor(LENGTHS), "sum", weights)
    output.backward(grad)
    made.apply(StepInfo(number))
    return output.detach()


class Reference:
    """The rules of nestlab.embedding.tensor_train.hot_rows, row by row, with plain SGD."""

    def __init__(self, made: TTTable) -> None:
        self.kind, self.shape, self.cores = made.config.tensor_train, made.shape, leaves(made)
        self.counts, self.own, self.number, self.left = Counter(), {}, 0, 0

    def table(self) -> torch.Tensor:
        """[M, dim] with autograd, hot rows in place of what the cores give."""
        rows = list(whole_table(self.shape, self.cores)[:ROWS])
        return torch.stack([self.own.get(row, value) for row, value in enumerate(rows)])

    def train(self, ids, weights, grad) -> torch.Tensor:
        if self.number and self.number % self.kind.hot_every == 0:
            self.choose()
        self.number += 1
        self.counts.update(ids.tolist())
        output = pooled(self.table()[ids], LENGTHS, weights)
        moved = [*self.cores, *self.own.values()]
        grads = torch.autograd.grad(output, moved, grad, allow_unused=True)
        with torch.no_grad():
            for value, change in zip(moved, grads, strict=True):
                if change is not None:
                    value -= LR * change
        return output.detach()

    def choose(self) -> None:
        best = sorted(self.counts, key=lambda row: (-self.counts[row], row not in self.own, row))
        best = best[: self.kind.hot_rows]
        self.left += sum(row not in best for row in self.own)
        values = whole_table(self.shape, self.cores).detach()
        self.own = {row: self.own.get(row, values[row].clone().requires_grad_()) for row in sorted(best)}
        for row in self.counts:
            self.counts[row] *= self.kind.hot_decay


@pytest.mark.parametrize("decay", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("scheme", ["tt_rec", "ecorec"])
def test_training_equals_row_by_row(scheme, decay):
    """Broken on purpose: with the choice made after the batch's own rows are counted, with a row that stays hot
    decompressed again, or with hot rows left in what the scheme computes, this fails."""
    made = make(replace(KIND, hot_decay=decay), scheme=scheme)
    reference = Reference(made)
    for number, batch in enumerate(batches(12), start=1):
        expected = reference.train(*batch)
        torch.testing.assert_close(train(made, batch, number), expected, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(made.full_weight(), reference.table().detach(), rtol=1e-11, atol=1e-13)
    counters = made.hot.counters
    assert sorted(row for row in made.hot.held.tolist() if row >= 0) == list(reference.own)
    assert (counters.left, counters.entered) == (reference.left, reference.left + 4)
    assert counters.looked_up == 12 * 9
    if decay < 1:
        assert counters.left >= 4
        assert 0 < counters.dropped < counters.dropped_of


@pytest.mark.parametrize("optimizer", [Adagrad(lr=LR), RowWiseAdagrad(lr=LR), LazyAdam(lr=LR)], ids=lambda o: o.name)
def test_a_hot_row_is_trained_as_a_row_of_an_ordinary_table(optimizer):
    """Its record is what the row optimizer makes of the same gradients from new state; the cores stay as they were.
    Broken on purpose: with the state not set anew for a row that enters, this fails."""
    made = make(optimizer=optimizer)
    ids, lengths = torch.tensor([5, 5, 9]), torch.tensor([2, 1])
    for number in (1, 2):
        made.embed(ids, lengths).sum().backward()
        made.apply(StepInfo(number))
    cores = [record.clone() for record in made.cores.records]
    record = torch.full((1, 6 + optimizer.state_width(6)), optimizer.initial_state, dtype=torch.float64)
    record[:, :6] = made.full_weight(torch.tensor([5]))
    made.hot.records.fill_(99.0)
    for number in (3, 4):
        grad = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        made.embed(ids, lengths).backward(grad)
        made.apply(StepInfo(number))
        optimizer.update(record.numpy(), np.zeros(1, np.int64), 2 * grad[:1].numpy(), StepInfo(number))
    slot = made.hot.held.tolist().index(5)
    torch.testing.assert_close(made.hot.records[slot], record[0], rtol=1e-12, atol=1e-14)
    assert all(map(torch.equal, cores, made.cores.records))


def test_preparing_ahead_changes_nothing():
    """Three batches prepared before the first of them is computed: the same table, to the bit. Broken on purpose: with
    the records changed when a batch is prepared, this fails."""
    plain, ahead = make(), make()
    stream = batches(12)
    looks = []
    for number in range(len(stream) + 3):
        if number < len(stream):
            ids, weights, _ = stream[number]
            looks.append(ahead.prepare(ahead.bags(ids, torch.tensor(LENGTHS), "sum", weights)))
        if number >= 3:
            expected = train(plain, stream[number - 3], number - 2)
            assert torch.equal(ahead.forward(looks[number - 3]), expected)
            ahead.backward(looks[number - 3], stream[number - 3][2])
            ahead.apply(StepInfo(number - 2))
    assert torch.equal(plain.full_weight(), ahead.full_weight())
    assert plain.hot.counters == ahead.hot.counters


def test_looking_without_training_changes_nothing():
    made = make()
    stream = batches(7)
    for number, batch in enumerate(stream[:5], start=1):
        train(made, batch, number)
    before, counters = made.state_dict(), replace(made.hot.counters)
    for ids, weights, _ in stream * 2:
        with torch.no_grad():
            output = made.embed(ids, torch.tensor(LENGTHS), "sum", weights)
        torch.testing.assert_close(output, pooled(made.full_weight(ids), LENGTHS, weights), rtol=1e-12, atol=1e-14)
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert made.hot.counters == counters


def test_a_saved_table_goes_on_with_its_hot_rows():
    first, second = make(optimizer=Adagrad(lr=LR)), make(optimizer=Adagrad(lr=LR))
    stream = batches(12)
    for number, batch in enumerate(stream[:7], start=1):
        train(first, batch, number)
    second.load(first.state_dict())
    for number, batch in enumerate(stream[7:], start=8):
        assert torch.equal(train(first, batch, number), train(second, batch, number))
    assert torch.equal(first.full_weight(), second.full_weight())


@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
def test_every_pooling(pooling):
    """Whether all ids of a bag are hot, or some, or none: what comes out is made of what full_weight gives."""
    made = make(replace(KIND, hot_every=1))
    for number, batch in enumerate(batches(4), start=1):
        train(made, batch, number)
    hot = [row for row in made.hot.held.tolist() if row >= 0]
    cold = [row for row in range(ROWS) if row not in hot]
    ids = torch.tensor([*hot[:3], *hot[:2], *cold[:3], cold[4]])
    with torch.no_grad():
        output = made.embed(ids, torch.tensor(LENGTHS), pooling)
    rows = made.full_weight(ids)
    expected = rows if pooling == "none" else pooled(rows, LENGTHS, mean=pooling == "mean")
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-14)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 40))
def test_counts_are_bounded_from_both_sides(seed, hot):
    """Far more rows than entries: the true count lies in count − error … count, no held row is lost, no row is there
    twice, and the rows chosen are those of the most certain counts. Broken on purpose: with an entry's count not
    inherited, or with held rows replaced, this fails."""
    choice, true = HotChoice(TensorTrain(rows=1 << 20, hot_rows=hot, hot_every=1)), Counter()
    generator = np.random.default_rng(seed)
    for _ in range(4):
        change = choice.next_batch()
        if change is not None:
            assert len(change.rows) <= hot
        used = np.minimum(generator.zipf(1.2, 300), 1 << 20) * 977
        slots = choice.count(torch.from_numpy(used))
        true.update(used.tolist())
        state = {name: tensor.flatten().numpy() for name, tensor in choice.state_dict().items()}
        there = state["rows"] >= 0
        assert len(set(state["rows"][there].tolist())) == there.sum()
        for row, count, error in zip(*(state[name][there] for name in ("rows", "counts", "errors")), strict=True):
            assert count - error <= true[row] <= count
        held = {int(row): int(slot) for row, slot in zip(state["rows"], state["slots"], strict=True) if slot >= 0}
        assert slots.tolist() == [held.get(int(row), -1) for row in used]
    certain = (state["counts"] - state["errors"])[there]
    change = choice.next_batch()
    state = {name: tensor.flatten().numpy() for name, tensor in choice.state_dict().items()}
    chosen = np.sort(certain[(state["slots"] >= 0)[there]])[::-1]
    assert chosen.tolist() == np.sort(certain)[::-1][:hot].tolist()
    assert state["rows"].size == max(1, 1 << ((4 * hot - 1) // WAYS).bit_length()) * WAYS
