"""Encoders against loops over positions and padded batches, in float64; causality; samples by themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from nestlab.errors import UserError
from nestlab.models.sequence import ENCODERS, attention, jagged
from nestlab.models.sequence.attention import TIME_BUCKETS
from nestlab.models.sequence.encoder import Size
from nestlab.models.sequence.jagged import Blocks, padding

LENGTHS = [3, 0, 7, 1, 7, 5, 6]  # 5 and 6, and 7 and 7, share blocks
SIZE = Size(8, blocks=2, heads=2, longest=9, seed=3)


def made(name: str, size: Size = SIZE) -> torch.nn.Module:
    return ENCODERS[name](size).double()


def events(lengths, dim: int = 8, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    n = sum(lengths)
    gaps = torch.randint(0, 1 << 30, (n,), generator=generator)
    gaps[::3] = 0  # events of one millisecond
    return torch.randn(n, dim, dtype=torch.float64, generator=generator), torch.tensor(lengths), gaps.cumsum(0)


def bucket(gap: int) -> int:
    return min(int(gap).bit_length(), TIME_BUCKETS - 1)


def bias_of(layer, i: int, j: int, time) -> tuple[torch.Tensor, torch.Tensor]:
    return layer.bias.place[i - j], layer.bias.time[bucket(time[i] - time[j])]


def hstu_by_loops(layer, x, time, size):
    """One sample [L, D], position after position."""
    u, v, q, k = F.silu(layer.project(layer.norm(x))).chunk(4, dim=-1)
    rows = []
    for i in range(len(x)):
        heads = []
        for h in range(size.heads):
            cut = slice(h * size.width, (h + 1) * size.width)
            total = torch.zeros(size.width, dtype=x.dtype)
            for j in range(i + 1):
                total = total + F.silu(q[i, cut] @ k[j, cut] + sum(bias_of(layer, i, j, time))) * v[j, cut]
            heads.append(total / size.longest)
        rows.append(x[i] + layer.out(layer.norm_attended(torch.cat(heads)) * u[i]))
    return torch.stack(rows)


def fuxi_by_loops(layer, x, time, size):
    inner = size.heads * size.width
    u, v, q, k = F.silu(layer.project(layer.norm(x))).split([3 * inner, inner, inner, inner], dim=-1)
    rows = []
    for i in range(len(x)):
        channels = torch.zeros(3, inner, dtype=x.dtype)
        for h in range(size.heads):
            cut = slice(h * size.width, (h + 1) * size.width)
            for j in range(i + 1):
                place, gap = bias_of(layer, i, j, time)
                factors = torch.stack([F.silu(q[i, cut] @ k[j, cut]) / size.longest, place, gap])
                channels = channels + F.pad(torch.outer(factors, v[j, cut]), (cut.start, inner - cut.stop))
        o = x[i] + layer.out(layer.norm_channels(channels.flatten()) * u[i])
        normed = layer.norm_ffn(o)
        rows.append(o + layer.ffn_out(F.silu(layer.ffn_in(normed)) * layer.ffn_gate(normed)))
    return torch.stack(rows)


def sasrec_by_loops(layer, x, time, size):
    q, k, v = layer.project(layer.norm(x)).chunk(3, dim=-1)
    rows = []
    for i in range(len(x)):
        heads = []
        for h in range(size.heads):
            cut = slice(h * size.width, (h + 1) * size.width)
            scores = torch.stack([q[i, cut] @ k[j, cut] / math.sqrt(size.width) for j in range(i + 1)])
            heads.append(sum(w * v[j, cut] for j, w in enumerate(torch.exp(scores) / torch.exp(scores).sum())))
        y = x[i] + layer.out(torch.cat(heads))
        rows.append(y + layer.ffn_out(F.relu(layer.ffn_in(layer.norm_ffn(y)))))
    return torch.stack(rows)


BY_LOOPS = {"hstu": hstu_by_loops, "fuxi": fuxi_by_loops, "sasrec": sasrec_by_loops}


def reference(name: str, encoder, x, lengths, time):
    found = []
    for part, times in zip(x.split(lengths.tolist()), time.split(lengths.tolist()), strict=True):
        if name == "sasrec":
            part = part * math.sqrt(SIZE.dim) + encoder.positions[: len(part)]
        for layer in encoder.layers:
            if len(part):
                part = BY_LOOPS[name](layer, part, times.tolist(), SIZE)
        found.append(part)
    return torch.cat(found)


@pytest.mark.parametrize("chunk", [3, 64])
@pytest.mark.parametrize("name", ENCODERS)
def test_outputs_and_gradients_are_those_of_loops(name, chunk, monkeypatch):
    """In one chunk of queries and in several.

    Broken on purpose once, and seen to fail: the causal mask; the bucket of a time off by one; sums along diagonals off
    by one; the gradient of the bias of time left out; a division by the batch's longest window; gradients of padding
    kept; gradients of keys written where they should be added up over chunks.
    """
    monkeypatch.setattr(attention, "CHUNK", chunk)
    encoder, (x, lengths, time) = made(name), events(LENGTHS)
    weights = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    grads = []
    for function in (
        lambda leaf: encoder(leaf, lengths, time),
        lambda leaf: reference(name, encoder, leaf, lengths, time),
    ):
        encoder.zero_grad()
        leaf = x.clone().requires_grad_()
        out = function(leaf)
        (out * weights).sum().backward()
        grads.append([out.detach(), leaf.grad, *(p.grad for _, p in sorted(encoder.named_parameters()))])
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_later_event_changes_no_earlier_state(name):
    encoder, (x, lengths, time) = made(name), events([9])
    before = encoder(x, lengths, time)
    other, later = x.clone(), time.clone()
    other[6:] += 1.0
    later[6:] += 12345
    after = encoder(other, lengths, later)
    torch.testing.assert_close(before[:6], after[:6], rtol=0, atol=1e-12)
    assert not torch.allclose(before[6:], after[6:])


@pytest.mark.parametrize("name", ENCODERS)
def test_a_sample_does_not_depend_on_those_beside_it(name):
    """What a frozen window of micro-batches stands on."""
    encoder, (x, lengths, time) = made(name), events(LENGTHS)
    together = encoder(x, lengths, time).split(LENGTHS)
    for part, moments, expected in zip(x.split(LENGTHS), time.split(LENGTHS), together, strict=True):
        alone = encoder(part, torch.tensor([len(part)]), moments)
        torch.testing.assert_close(alone, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [5, 12, 64])
@pytest.mark.parametrize("name", ENCODERS)
def test_flops_are_what_torch_counts(name, chunk, monkeypatch):
    """Two a multiplication with its addition, products of matrices alone; broken on purpose: chunks not counted."""
    monkeypatch.setattr(attention, "CHUNK", chunk)
    size = Size(16, blocks=3, heads=2, longest=12, head_dim=4)
    encoder, lengths = made(name, size), [12] * 5
    x, lengths_b, time = events(lengths, dim=16)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        encoder(x, lengths_b, time)
    assert counter.get_total_flops() == encoder.flops(lengths_b)


@pytest.mark.parametrize("name", ENCODERS)
def test_no_event_at_all(name):
    x, lengths, time = events([0, 0])
    assert made(name)(x, lengths, time).shape == (0, 8)
    assert made(name)(x[:0], lengths[:0], time[:0]).shape == (0, 8)


def test_weights_come_from_the_seed_alone():
    torch.manual_seed(1)
    first = made("hstu").state_dict()
    torch.manual_seed(2)
    for name, value in made("hstu").state_dict().items():
        assert torch.equal(value, first[name]), name


def test_what_does_not_fit_is_refused():
    x, lengths, time = events([10])
    with pytest.raises(UserError, match="10 events; the longest is 9"):
        made("hstu")(x, lengths, time)
    with pytest.raises(UserError, match="3 heads do not divide dim=8"):
        Size(8, heads=3)
    with pytest.raises(UserError, match="dropout=1"):
        Size(8, dropout=1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 60), max_size=40))
def test_blocks_hold_every_event_once_and_little_else(lengths):
    lengths_b = torch.tensor(lengths, dtype=torch.int64)
    found = Blocks.of(lengths_b)
    blocks, values = found.each, torch.arange(int(lengths_b.sum()))[:, None]
    if blocks:
        assert torch.equal(found.joined(found.padded(values.double())), values.double())
    assert sorted(s for block in blocks for s in block.samples.tolist()) == [i for i, n in enumerate(lengths) if n]
    for block in blocks:
        own = lengths_b[block.samples]
        narrow = int(own.max()) <= max(1.1 * int(own.min()), int(own.min()) + 1)
        assert narrow or len(own) * int(own.max()) ** 2 <= jagged.SMALL
        assert block.shape[1] == int(own.max()) and torch.equal(block.events.sum(1), own)


@pytest.mark.parametrize(("small", "most"), [(0, 0.06), (jagged.SMALL, 0.08)])
def test_padding_of_skewed_lengths(monkeypatch, small, most):
    monkeypatch.setattr(jagged, "SMALL", small)
    lengths = np.random.default_rng(0).lognormal(3.0, 1.0, 500).astype(int).clip(1, 200)
    assert 0 < padding(torch.from_numpy(lengths)) < most


def test_buckets_are_powers_of_two():
    time = torch.tensor([[0, 0, 1, 3, 4, 1 << 40, (1 << 62) - 1]])
    found = attention.buckets_of(time)[0]
    for i, row in enumerate(found.tolist()):
        assert row == [bucket(max(0, int(time[0, i] - time[0, j]))) for j in range(time.shape[1])]


def test_both_ways_of_summing_by_bucket_agree():
    generator = torch.Generator().manual_seed(0)
    buckets = torch.randint(0, 5, (2, 3, 4), generator=generator).byte()
    values = torch.randn(2, 3, 4, dtype=torch.float64, generator=generator)
    found = attention.sums_by_bucket(buckets, values, 6)
    expected = torch.stack([values[buckets == b].sum() for b in range(6)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(attention.sums_in_passes(buckets, values, 6), expected, rtol=0, atol=1e-14)


def test_dropout_draws_from_torch_alone():
    """And leaves evaluation as it is."""
    (x, lengths, time), size = events(LENGTHS), Size(8, dropout=0.5, longest=9, seed=3)
    encoder, found = made("hstu", size), []
    for _ in range(2):
        torch.manual_seed(5)
        found.append(encoder(x, lengths, time))
    assert torch.equal(*found) and not torch.allclose(found[0], encoder(x, lengths, time))
    without = made("hstu", Size(8, longest=9, seed=3))
    assert torch.equal(encoder.eval()(x, lengths, time), without(x, lengths, time))


@pytest.mark.parametrize("name", ENCODERS)
def test_under_autocast_gradients_come_in_the_dtype_of_weights(name):
    encoder, (x, lengths, time) = made(name).float(), events(LENGTHS)
    whole = encoder(x.float(), lengths, time)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        narrow = encoder(x.float(), lengths, time)
    assert not torch.equal(narrow, whole)
    torch.testing.assert_close(narrow, whole, rtol=0.1, atol=0.1)
    narrow.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in encoder.parameters())
