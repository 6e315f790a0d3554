"""The set-ups whose times, results and timelines are compared: one model, other tiers and depths, an emulated link."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING

import torch

from nestlab import device
from nestlab.embedding import EmbeddingStore, TableConfig, Tiers, optimizer
from nestlab.exchange.link import Link, LinkModel
from nestlab.experiments.two_tier.one_pass import Stream, slots_on
from nestlab.experiments.two_tier.training import DENSE_LR, DIM, LR, OPTIMIZER
from nestlab.models import DLRM, RecModel
from nestlab.pipeline import Inline, Lanes, Pipeline
from nestlab.techniques import Techniques
from nestlab.tracing import Recorder, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nestlab.batch import Batch

EMULATED = "emulated link"


@dataclass(frozen=True)
class Setup:
    """One row of an ablation.

    Attributes:
        flags: as `nestlab techniques` has them.
        link: between host and device, as `LinkModel.parse` reads it; empty: as fast as this machine is.
        lanes: a thread a lane; False: one thread, list order.
        optimizer: of the tables.
    """

    flags: Techniques
    link: str = ""
    lanes: bool = True
    optimizer: str = OPTIMIZER
    seed: int = 0
    device: str = "cpu"

    @property
    def tier(self) -> str:
        """The device tier, with its policy where it has one."""
        flags = self.flags
        return f"slot_cache, {flags.cache_policy}" if flags.device_tier == "slot_cache" else flags.device_tier

    @property
    def how(self) -> str:
        """By which word the numbers of this set-up are told."""
        return EMULATED if self.link else "measured"

    def build(self, stream: Stream, recorder: Recorder | None = None) -> Pipeline:
        """Model and pipeline, untrained. Equal seeds give equal initial values whatever the tiers."""
        where = device.resolve(self.device)
        flags = self._flags_on(str(where), stream)
        link = Link(LinkModel.parse(self.link)) if self.link else None
        store = EmbeddingStore(
            [TableConfig(name, DIM, initial_rows=1) for name in stream.features],  # so that bytes follow the keys
            optimizer(self.optimizer, lr=LR),
            seed=self.seed,
            tiers=Tiers.of(flags, where, link),
        )
        dense = DLRM(len(stream.dense_names), stream.features, DIM, seed=self.seed)
        return Pipeline(
            RecModel(store, dense),
            torch.optim.Adam(dense.parameters(), lr=DENSE_LR),
            flags,
            executor=Lanes() if self.lanes else Inline(),
            device=where,
            recorder=recorder,
        )

    def _flags_on(self, where: str, stream: Stream) -> Techniques:
        """The flags; a cache that would grow is of a fixed size where it has to be."""
        share = self.flags.cache_slots
        if self.flags.device_tier != "slot_cache" or share >= 1:
            return self.flags
        return replace(self.flags, cache_slots=slots_on(where, share, stream))

    def trace(self, stream: Stream, steps: int, skip: int) -> tuple[Pipeline, Trace]:
        """A short training without a break, of `skip` + `steps` batches; the trace of the last `steps`."""
        pipeline = self.build(stream, Recorder(first_batch=skip, batches=steps))
        for _ in pipeline.run(repeated(stream, skip + steps)):
            pass
        return pipeline, pipeline.trace({"dataset": stream.title, "how": self.how})


def place_of_tier(device: str) -> str:
    """Where the device tier lies, said so that nobody takes plain memory for an accelerator's."""
    return "plain memory (no accelerator)" if torch.device(device).type == "cpu" else f"memory of {device}"


def repeated(stream: Stream, count: int | None = None) -> Iterator[Batch]:
    """The training batches in order, from the start again after the last: `count` of them, None: for ever."""
    batches = cycle(stream.train)
    if count is None:
        yield from batches
        return
    for _ in range(count):
        yield next(batches)
