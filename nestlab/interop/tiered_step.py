"""Rows as part of an autograd graph, whose optimizer step happens inside backward, as in torchrec's fused modules.

One node stands for all rows of a forward. autograd calls it once a backward, when every gradient that reaches it is
summed: there the step is made. Nothing is kept but by the graph itself: a forward without a backward leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nestlab.embedding import EmbeddingStore, KeySet, Residency, StepInfo


class StepInBackward:
    """Training batches of a store, one in flight at a time.

    A second forward before the first one's backward ends the first batch's stay in the device tier; its backward then
    asks for its rows again. So every tier works, however many forwards precede a backward, and each forward is an
    update of its own, in the order in which autograd reaches them.

    Args:
        lr: asked at each step.
    """

    def __init__(self, store: EmbeddingStore, lr: Callable[[], float]) -> None:
        self.store, self._lr = store, lr
        self._open: Residency | None = None

    def rows(self, keys: Sequence[KeySet]) -> tuple[Tensor, ...]:
        """[U, dim] a group, whose gradients are one row-optimizer step.

        Raises:
            UserError: the device tier or host memory cannot hold the batch; nothing changed then.
        """
        self.settle()
        residency = self._enter(keys)
        if self.store.options.features.evict != "none":
            self.store.evict()
        rows = [self.store.gather(residency, group) for group in range(len(keys))]
        return _Rows.apply(torch.empty(0, requires_grad=True), self, residency, *rows)

    def settle(self) -> None:
        """Ends the stay of a batch that still waits for its backward, which may come nevertheless."""
        if self._open is not None and not self._open.released:
            self.store.writeback(self._open)
            self.store.release(self._open)
        self._open = None

    def update(self, residency: Residency, grads: Sequence[Tensor]) -> None:
        """One step on grads [U, dim] a group. A second backward through one graph is a second step."""
        if residency.released:
            residency, grads = self._reenter(residency, grads)
        self.store.apply(residency, grads, StepInfo(self.store.last_step + 1, self._lr()))
        self.settle()

    def _enter(self, keys: Sequence[KeySet]) -> Residency:
        try:
            residency = self.store.prepare(keys)
        except BaseException:  # a batch that does not fit: the tables go on without it
            self.store.settle()
            raise
        self._open = residency
        self.store.commit(residency)
        return residency

    def _reenter(self, residency: Residency, grads: Sequence[Tensor]) -> tuple[Residency, list[Tensor]]:
        """Keys that had no row read a constant: they stay out, and nothing is counted a second time."""
        self.settle()
        kept = [np.flatnonzero(group.rows >= 0) for group in residency.groups]
        keys = [_uncounted(g.keys.take(k)) for g, k in zip(residency.groups, kept, strict=True)]
        grads = [g.index_select(0, torch.from_numpy(k).to(g.device)) for g, k in zip(grads, kept, strict=True)]
        return self._enter(keys), grads


def _uncounted(keys: KeySet) -> KeySet:
    return keys if keys.counts is None else replace(keys, counts=keys.counts * 0, clicks=keys.clicks * 0)


class _Rows(torch.autograd.Function):
    """The rows [U, dim] of every group; the anchor, an empty leaf, is what makes them require a gradient."""

    @staticmethod
    def forward(ctx, anchor: Tensor, steps: StepInBackward, residency: Residency, *rows: Tensor) -> tuple[Tensor, ...]:
        ctx.steps, ctx.residency = steps, residency
        return tuple(r.view_as(r) for r in rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor):
        ctx.steps.update(ctx.residency, grads)
        return (None,) * (3 + len(grads))
