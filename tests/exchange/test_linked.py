"""Linked: two ranks joined by an emulated link, its clock, its queue and its count of bytes."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from nestlab.exchange import Channel, Link, LinkModel, LocalTransport
from nestlab.exchange.linked import Linked

MODEL = LinkModel(latency_us=2000, gbit_s=0.1)
ROWS = 1250  # of 250 float32: 1.25 MB, which take 0.1 s on the link
WIRE_S = 0.1
SLACK_S = 2.0  # of a busy machine


def timed(call):
    begin, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - begin, time.process_time() - cpu


def rows(count, value):
    return torch.full((count, 250), float(value))


def even(transport):
    """Half of the rows stay, half leave."""
    linked = Linked(transport, Link(MODEL))
    rank = transport.mesh.rank
    came, seconds, cpu = timed(lambda: linked.all_to_all(Channel.ROWS, rows(2 * ROWS, rank), [ROWS] * 2, [ROWS] * 2))
    total, reduce_s, _ = timed(lambda: linked.all_reduce(Channel.DENSE, torch.ones(ROWS * 250)))
    gathered, gather_s, _ = timed(lambda: linked.all_gather(Channel.KEYS, rows(ROWS, rank)))
    counters = linked.link.counters
    values = (came[:ROWS].unique().tolist(), came[ROWS:].unique().tolist(), total.unique().tolist())
    return values, gathered[:, 0, 0].tolist(), (seconds, reduce_s, gather_s), cpu, counters.transfers, counters.nbytes


@pytest.mark.dist
def test_a_transfer_takes_as_long_as_on_the_link(ranks):
    """Seen to fail when rows that stay on the rank are counted too (twice the time)."""
    for values, gathered, times, cpu, transfers, nbytes in ranks.run(even):
        assert values == ([0.0], [1.0], [2.0])
        assert gathered == [0.0, 1.0]
        for seconds in times:
            assert WIRE_S + 0.002 <= seconds < WIRE_S + SLACK_S
        assert cpu < 0.08
        assert transfers == 3 and nbytes == 3 * 1_250_000


def lone_sender(transport):
    """Rank 0 has rows for rank 1, which has none for it."""
    linked = Linked(transport, Link(MODEL))
    if transport.mesh.rank == 0:
        send, send_counts, counts = rows(ROWS, 7), [0, ROWS], [0, 0]
    else:
        send, send_counts, counts = rows(0, 0), [0, 0], [ROWS, 0]
    came, seconds, _ = timed(lambda: linked.all_to_all(Channel.ROWS, send, send_counts, counts))
    return len(came), seconds, linked.link.counters.nbytes


@pytest.mark.dist
def test_who_only_receives_waits_for_the_wire_too(ranks):
    """Seen to fail (the receiver is done at once) when only bytes that leave are waited for."""
    (_, first_s, first_bytes), (came, second_s, second_bytes) = ranks.run(lone_sender)
    assert came == ROWS and min(first_s, second_s) >= WIRE_S + 0.002
    assert (first_bytes, second_bytes) == (1_250_000, 0)


def late_rank(transport):
    linked = Linked(transport, Link(MODEL))
    linked.all_gather(Channel.ROWS, torch.zeros(1))
    begin = time.perf_counter()
    if transport.mesh.rank == 1:
        time.sleep(0.5)
    linked.all_to_all(Channel.ROWS, rows(2 * ROWS, 1), [ROWS] * 2, [ROWS] * 2)
    return time.perf_counter() - begin


@pytest.mark.dist
def test_the_clock_begins_when_both_are_there(ranks):
    """Seen to fail (the first rank's clock is over when the second comes) without the meeting before a transfer."""
    first, second = ranks.run(late_rank)
    assert first >= 0.5 + WIRE_S and second >= 0.5 + WIRE_S


def two_at_once(transport):
    """A lane sends rows while another reduces."""
    linked = Linked(transport, Link(MODEL))
    lanes = [
        threading.Thread(target=linked.all_to_all, args=(Channel.ROWS, rows(2 * ROWS, 1), [ROWS] * 2, [ROWS] * 2)),
        threading.Thread(target=linked.all_reduce, args=(Channel.DENSE, torch.ones(ROWS * 250))),
    ]
    begin = time.perf_counter()
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    return time.perf_counter() - begin, linked.link.counters.nbytes


@pytest.mark.dist
def test_transfers_at_once_share_the_link(ranks):
    """Seen to fail (half the time) with a link a channel."""
    for seconds, nbytes in ranks.run(two_at_once):
        assert 2 * WIRE_S + 0.002 <= seconds < 2 * WIRE_S + SLACK_S
        assert nbytes == 2_500_000


def test_one_rank_uses_no_link():
    linked = Linked(LocalTransport(), Link(MODEL))
    send = rows(ROWS, 1)
    assert linked.all_to_all(Channel.ROWS, send, [ROWS], [ROWS]) is send
    assert linked.all_reduce(Channel.DENSE, send) is send
    assert linked.all_gather(Channel.KEYS, torch.ones(1)).tolist() == [[1.0]]
    linked.fail("LOAD(0)", ValueError("nothing"))
    linked.close()
    assert linked.link.counters.transfers == 0


def counted_only(transport):
    linked = Linked(transport, Link())
    counts = [1, 2] if transport.mesh.rank == 0 else [2, 1]  # one row stays, two leave, two come
    linked.all_to_all(Channel.ROWS, rows(3, 1), counts, counts)
    return linked.link.counters.nbytes


@pytest.mark.dist
def test_a_link_without_a_model_only_counts(ranks):
    assert ranks.run(counted_only) == [2000, 2000]
