"""The batches of one pass, as LOAD takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from nestlab.batch import Batch
from nestlab.batching import cluster, rule
from nestlab.embedding import KeyLayout
from nestlab.techniques import Techniques

Arrange = Callable[[Batch], Batch]


class Source:
    """An iterator of batches, each arranged (clustering) as it is read.

    One pass is one source: an iterator that begins again (a torch DataLoader whose workers persist) has a new one.

    Among several ranks the data end when no rank has any: a rank that is through goes on with `filler`, an empty batch,
    until key routing has learnt that it is so everywhere. One rank alone (`filler` None) ends where its iterator does.

    Attributes:
        batches: what the caller gave.
        exhausted: it was found at its end.
    """

    def __init__(self, batches: Iterator[Batch], arrange: Arrange, filler: Batch | None) -> None:
        self.batches, self._arrange, self._filler = batches, arrange, filler
        self.exhausted = False

    def __iter__(self) -> Source:
        return self

    def __next__(self) -> Batch:
        try:
            batch = next(self.batches)
        except StopIteration:
            self.exhausted = True
            if self._filler is None:
                raise
            return self._filler
        try:
            return self._arrange(batch)
        except StopIteration as error:  # not the end of the data
            raise RuntimeError("the clustering rule raised StopIteration") from error


def arrangement(techniques: Techniques, layout: KeyLayout) -> Arrange:
    """What is done to a batch as it is read: samples that share keys come into one micro-batch (clustering)."""
    if techniques.clustering == "none" or not layout.groups:
        return lambda batch: batch
    chosen, parts = rule(techniques.clustering), techniques.micro_batches
    tables = layout.table_of
    return lambda batch: cluster(batch, chosen, parts, tables)


def filler(layout: KeyLayout) -> Batch:
    """An empty batch with every feature that the tables look up."""
    none = torch.empty(0, dtype=torch.int64)
    return Batch(torch.empty(0, 0), layout.features, none, none, torch.empty(0))
