"""CollectiveTransport on two ranks: values, threads, and an end in every failure."""

from __future__ import annotations

import pytest
import torch

from nestlab.exchange import Channel

pytestmark = pytest.mark.dist


def exchanged(transport, dtype, counts):
    """Rank r sends counts[r][s] rows to s; the row's number tells where it came from."""
    rank = transport.mesh.rank
    send_counts = counts[rank]
    send = (torch.arange(2 * sum(send_counts)) + 100 * rank).to(dtype).view(-1, 2)
    return transport.all_to_all(Channel.ROWS, send, send_counts, [counts[other][rank] for other in (0, 1)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bfloat16])
def test_uneven_rows_arrive_by_sender(ranks, dtype):
    counts = [[1, 3], [2, 0]]
    first, second = ranks.run(exchanged, dtype, counts)
    assert first.dtype == dtype and second.dtype == dtype
    assert first.tolist() == [[0, 1], [100, 101], [102, 103]]
    assert second.tolist() == [[2, 3], [4, 5], [6, 7]]
