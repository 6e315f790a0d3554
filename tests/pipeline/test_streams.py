"""Streams and events of an accelerator, with a made backend that records who waits for whom; no device is needed."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from nestlab.pipeline import Shape, build
from nestlab.pipeline.schedule import Stage
from nestlab.pipeline.streams import Streams

pytestmark = pytest.mark.core


class Made:
    """Stands in for `torch.cuda`: a stream keeps the events it waited for, an event the stream it was recorded on."""

    class Stream:
        def __init__(self, device=None):
            self.waited = []

        def wait_event(self, event):
            self.waited.append(event)

    class Event:
        def __init__(self):
            self.on, self.seen_by_host = None, False

        def record(self, stream):
            self.on = stream

        def synchronize(self):
            self.seen_by_host = True

    @contextmanager
    def stream(self, stream):
        yield


@pytest.mark.parametrize("shape", [Shape(), Shape("dual_buffer", 5), Shape("slot_cache", 4, evicts=True)], ids=str)
def test_every_edge_is_an_event_that_the_stream_waits_for(shape):
    """Broken on purpose: without the loop over predecessors nothing is waited for."""
    schedule = build(shape)
    streams, batches = Streams(schedule, torch.device("cpu"), Made()), 8
    ended, waits = {}, {}
    for action in schedule.unroll(batches):
        stream = streams._streams[action.lane]
        before = len(stream.waited)
        streams.run(action, lambda action: None)
        ended[action.key] = streams._ended.get(action.key)
        waits[action.key] = stream.waited[before:]
    for source, target in schedule.pairs(batches):
        assert ended[source] in waits[target], f"{source} → {target}"


def test_release_waits_on_the_host_and_old_events_go():
    schedule = build(Shape("dual_buffer", 5))
    streams = Streams(schedule, torch.device("cpu"), Made())
    updates = {}
    for action in schedule.unroll(40):
        streams.run(action, lambda action: None)
        if action.key.stage is Stage.UPDATE:
            updates[action.key.batch] = streams._ended[action.key]
        if action.key.stage is Stage.RELEASE:
            assert updates[action.key.batch].seen_by_host
    assert len(streams._ended) < 12 * len(schedule.entries)
