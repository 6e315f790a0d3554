"""CollectiveTransport on two ranks: values, threads, and an end in every failure."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest
import torch
from ranks import free_port

from nestlab.errors import RankFailed, UserError
from nestlab.exchange import Channel
from nestlab.exchange.collective import CollectiveTransport

pytestmark = pytest.mark.dist

COUNTS = [[[1, 3], [2, 0]], [[0, 0], [0, 5]], [[2, 0], [0, 2]], [[0, 0], [0, 0]], [[1, 1], [1, 1]]]
KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int16, torch.uint8, torch.bool]


def rows_of(sender, receiver, count, width, dtype):
    """What `sender` has for `receiver`: small numbers that name the sender, the receiver and the row."""
    rows = 20 * sender + 10 * receiver + torch.arange(count * width).view(count, width)
    return (rows % 2 == 1) if dtype is torch.bool else (rows % 100).to(dtype)


def trade(transport, channel, counts, width=2, dtype=torch.float32):
    """One all-to-all by the rule of `rows_of`, and whether each row came as it should."""
    rank = transport.mesh.rank
    send = torch.cat([rows_of(rank, to, counts[rank][to], width, dtype) for to in (0, 1)])
    came = transport.all_to_all(channel, send, counts[rank], [counts[who][rank] for who in (0, 1)])
    wanted = torch.cat([rows_of(who, rank, counts[who][rank], width, dtype) for who in (0, 1)])
    return came.dtype == dtype and came.shape == wanted.shape and torch.equal(came, wanted)


def trade_all(transport):
    return [
        (counts, width, dtype)
        for counts in COUNTS
        for width in (1, 3)
        for dtype in KINDS
        if not trade(transport, Channel.ROWS, counts, width, dtype)
    ]


def test_rows_arrive_by_sender_for_every_kind_and_split(ranks):
    """Seen to fail with send and receive counts exchanged."""
    assert ranks.run(trade_all) == [[], []]


def other_shapes(transport):
    rank = transport.mesh.rank
    flat = transport.all_to_all(Channel.KEYS, torch.tensor([rank, rank + 10]), [1, 1], [1, 1])
    needs_grad = torch.ones(2, 1, requires_grad=True)
    spread = torch.arange(12.0).view(2, 6)[:, ::2]  # not contiguous
    cubes = transport.all_to_all(Channel.KEYS, torch.full((2, 2, 2), float(rank)), [1, 1], [1, 1])
    return (
        flat.tolist(),
        transport.all_to_all(Channel.KEYS, needs_grad, [1, 1], [1, 1]).requires_grad,
        transport.all_to_all(Channel.KEYS, spread, [1, 1], [1, 1]).tolist(),
        cubes.shape,
        transport.all_gather(Channel.KEYS, torch.tensor([[rank], [True]], dtype=torch.bool)).tolist(),
        transport.all_gather(Channel.DENSE, torch.tensor(rank, dtype=torch.float64)).tolist(),
        transport.all_reduce(Channel.DENSE, torch.tensor([0.1 * rank, 1e300 * rank], dtype=torch.float64)).tolist(),
        transport.all_reduce(Channel.KEYS, torch.tensor([rank + 1])).tolist(),
    )


def test_shapes_gathers_and_sums(ranks):
    for rank, found in enumerate(ranks.run(other_shapes)):
        assert found[0] == [10 * rank, 1 + 10 * rank]
        assert found[1] is False
        assert found[2] == [[6.0 * rank, 6.0 * rank + 2, 6.0 * rank + 4]] * 2
        assert found[3] == (2, 2, 2)
        assert found[4] == [[[False], [True]], [[True], [True]]]
        assert found[5] == [0.0, 1.0]
        assert found[6] == [0.1, 1e300]
        assert found[7] == [3]


def many_lanes(transport, rounds):
    """Three channels from three threads; each rank waits at other moments."""
    rank, wrong = transport.mesh.rank, []
    draw = torch.Generator().manual_seed(rank)
    pauses = (torch.rand(3 * rounds, generator=draw) * 2e-3).tolist()

    def lane(number, channel):
        for index in range(rounds):
            time.sleep(pauses[number * rounds + index])
            counts = [[index % 3, number + 1], [(index + number) % 2, 1]]
            if not trade(transport, channel, counts, width=number + 1):
                wrong.append((channel, index))
            total = transport.all_reduce(channel, torch.tensor([float(index + rank)]))
            if total.item() != 2 * index + 1:
                wrong.append((channel, index, total.item()))

    channels = [Channel.KEYS, Channel.ROWS, Channel.DENSE]
    threads = [threading.Thread(target=lane, args=item) for item in enumerate(channels)]
    for thread in threads[:: -1 if rank else 1]:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_channels_are_used_at_once_by_threads_in_any_order(ranks):
    """Seen to fail (a rank aborts) when all channels share one group."""
    assert ranks.run(many_lanes, 40) == [[], []]


def two_replicas(transport):
    """Each rank is a whole copy: rows stay, sums go across."""
    transport = CollectiveTransport.connect(replicas=2, timeout_s=20)
    try:
        mesh, send = transport.mesh, torch.ones(3, 1)
        return (
            (mesh.shards, mesh.shard, mesh.replica),
            transport.all_to_all(Channel.ROWS, send, [3], [3]) is send,
            transport.all_reduce(Channel.REPLICAS, torch.tensor([mesh.rank + 1.0])).tolist(),
            transport.all_gather(Channel.KEYS, torch.tensor([mesh.rank])).tolist(),
            transport.all_reduce(Channel.DENSE, torch.tensor([1.0])).tolist(),
        )
    finally:
        transport.close()


def one_replica(transport):
    values = torch.tensor([1.0])
    return transport.all_reduce(Channel.REPLICAS, values) is values, transport.all_gather(Channel.REPLICAS, values)


def test_replica_groups(ranks):
    rest = (True, [3.0], [[0], [1]], [2.0])
    assert ranks.run(two_replicas) == [((1, 0, 0), *rest), ((1, 0, 1), *rest)]
    for same, gathered in ranks.run(one_replica):
        assert same and gathered.tolist() == [[1.0]]


def test_groups_of_a_world_of_four():
    """Ranks and channels of a 2 by 2 mesh, without processes: who is asked for which group."""
    from nestlab.exchange import Mesh

    transport = CollectiveTransport.__new__(CollectiveTransport)
    transport.mesh = Mesh(rank=3, world_size=4, replicas=2)
    assert transport._across(Channel.REPLICAS) == (1, 3)
    assert transport._across(Channel.DENSE) == transport._across(Channel.KEYS) == (0, 1, 2, 3)
    assert transport._inside() == (2, 3)


# ----- failures: every survivor gets one line, in time -----------------------------------------------------------


def caught(call):
    """The message with which `call` ended, the seconds it took, and the CPU seconds of this process."""
    begin, cpu = time.monotonic(), time.process_time()
    try:
        call()
    except RankFailed as error:
        return str(error), time.monotonic() - begin, time.process_time() - cpu
    return "no error", 0.0, 0.0


def test_meeting_says_who_is_missing_or_what_is_wrong():
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with pytest.raises(RankFailed, match=r"^no answer within 0.3 s while connecting; rank\(s\) 1, 2 did not come$"):
        CollectiveTransport.connect(timeout_s=0.3, env={"RANK": "0", **place})
    with pytest.raises(UserError, match="RANK and WORLD_SIZE are not set"):
        CollectiveTransport.connect(env={})
    with socket.create_server(("", 0)) as taken:
        place["MASTER_PORT"] = str(taken.getsockname()[1])
        with pytest.raises(UserError, match=r"rank 0 cannot listen on .*: choose a free port"):
            CollectiveTransport.connect(timeout_s=0.3, env={"RANK": "0", **place})
    assert not torch.distributed.is_initialized()


def killed(transport):
    if transport.mesh.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    found = caught(lambda: trade(transport, Channel.ROWS, COUNTS[0]))
    begin = time.monotonic()
    transport.close()
    return found, time.monotonic() - begin


def test_a_killed_rank_is_named(ranks):
    first, second = ranks.outcomes(killed)
    assert second.exit_status == -signal.SIGKILL
    (message, seconds, _), closing = first
    assert message == "rank 1 ended (noticed in ROWS on rank 0)"
    assert seconds < 10 and closing < 6
    assert ranks.pids == []


def killed_host(transport):
    if transport.mesh.rank == 0:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    found = caught(lambda: transport.all_reduce(Channel.DENSE, torch.ones(1)))
    transport.close()
    return found


def test_the_rank_that_serves_the_store_may_die_too(ranks):
    _, (message, seconds, _) = ranks.outcomes(killed_host)
    assert message.startswith("rank 0 ended")
    assert seconds < 10


def one_fails(transport, failing):
    """Rank `failing` fails while two lanes of the other wait, and while a lane of its own waits."""
    short = CollectiveTransport.connect(timeout_s=30)
    found = {}

    def lane(channel):
        found[channel] = caught(lambda: short.all_reduce(channel, torch.ones(1)))

    channels = [Channel.ROWS] if short.mesh.rank == failing else [Channel.KEYS, Channel.DENSE]
    threads = [threading.Thread(target=lane, args=(channel,)) for channel in channels]
    for thread in threads:
        thread.start()
    if short.mesh.rank == failing:
        time.sleep(1.0)
        short.fail("FORWARD(7)", ValueError("no such row\nsecond line"))
    for thread in threads:
        thread.join()
    again = caught(lambda: short.all_reduce(Channel.ROWS, torch.ones(1)))
    begin = time.monotonic()
    short.close()
    closing = time.monotonic() - begin
    begin = time.monotonic()
    lanes = [thread.name for thread in threading.enumerate() if thread.name == "nestlab-watch"]
    return [found[channel] for channel in channels], again, closing, len(lanes)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_reaches_every_lane_of_every_rank(ranks, failing):
    """Seen to fail (after the timeout) when nobody looks for the failure between slices."""
    for lanes, again, closing, watches in ranks.run(one_fails, failing):
        for message, seconds, cpu in [*lanes, again]:
            assert message == f"rank {failing} failed in FORWARD(7): ValueError: no such row"
            assert seconds < 10
            assert cpu < 0.5 * max(seconds, 1.0)  # who waits sleeps
        assert closing < 5
        assert watches == 1  # the one of the pair's own transport


def does_not_come(transport):
    short = CollectiveTransport.connect(timeout_s=1.0)
    try:
        short.all_reduce(Channel.ROWS, torch.ones(1))
        if short.mesh.rank == 1:
            time.sleep(3.0)
        found = caught(lambda: trade(short, Channel.ROWS, COUNTS[0]))
    finally:
        begin = time.monotonic()
        short.close()
        closing = time.monotonic() - begin
    return found, closing


def test_a_rank_that_does_not_come_is_named_after_the_timeout(ranks):
    """Seen to fail (no rank named) when entered collectives are not counted."""
    (first, closing), (late, _) = ranks.run(does_not_come)
    assert first[0] == late[0] == "no answer within 1 s in ROWS; rank(s) 1 did not come"
    assert 1.0 <= first[1] < 6.0
    assert closing < 6.0


def closes_while_waiting(transport, done):
    """A lane of rank 1 waits for rank 0, which does not come; rank 1 closes, and only then does rank 0."""
    before = len(os.listdir("/proc/self/task"))
    short = CollectiveTransport.connect(timeout_s=30)
    if short.mesh.rank == 0:
        limit = time.monotonic() + 20.0
        while not done.exists() and time.monotonic() < limit:
            time.sleep(0.05)
        short.close()
        return None
    found = []
    lane = threading.Thread(target=lambda: found.append(caught(lambda: short.all_gather(Channel.KEYS, torch.ones(1)))))
    lane.start()
    time.sleep(0.5)
    begin = time.monotonic()
    short.close()
    closing = time.monotonic() - begin
    lane.join(5.0)
    limit = time.monotonic() + 5.0
    while (left := len(os.listdir("/proc/self/task")) - before) > 0 and time.monotonic() < limit:
        time.sleep(0.02)
    done.touch()
    return found, closing, left


def test_close_ends_what_still_waits_and_leaves_no_thread(ranks, tmp_path):
    """Seen to fail (the lane and gloo's threads stay until the group's timeout) without `cut`."""
    _, (found, closing, left) = ranks.run(closes_while_waiting, tmp_path / "done")
    assert found[0][0] == "rank 1 closed its transport"
    assert closing < 6 and found[0][1] < 10
    assert left <= 0


def test_the_error_of_a_rank_arrives_with_its_traceback(ranks):
    """`ranks.run` itself: the other rank, which waits in a collective, does not delay it."""
    begin = time.monotonic()
    with pytest.raises(ZeroDivisionError) as error:
        ranks.run(divides)
    assert "in divides" in str(error.value.__cause__)
    assert time.monotonic() - begin < 60
    assert ranks.pids == []


def divides(transport):
    if transport.mesh.rank == 1:
        return 1 // 0
    return transport.all_reduce(Channel.DENSE, torch.ones(1))
