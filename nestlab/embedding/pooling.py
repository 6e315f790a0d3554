"""From rows of unique keys to what the dense part reads: pooled bags and sequences, by feature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from nestlab.embedding import pooling_kernels
from nestlab.embedding.keys import GroupKeys
from nestlab.errors import UserError


@dataclass(eq=False)
class Embedded:
    """The embedded features of one batch of B samples.

    Attributes:
        size: B.
    """

    size: int
    _blocks: list[Tensor] = field(default_factory=list)  # [B, F_run, dim] each: features pooled by one call
    _columns: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)  # block → its features apart
    _pooled: dict[str, tuple[int, int]] = field(default_factory=dict)  # feature → (block, place in it)
    _sequences: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def add(self, feature: str, rows: Tensor, lengths: Tensor | None = None) -> None:
        """A feature from elsewhere: pooled rows [B, dim], or with lengths [B] the rows of a sequence [nnz_f, dim]."""
        if lengths is not None:
            self._sequences[feature] = (rows, lengths)
            return
        self._pooled[feature] = (len(self._blocks), 0)
        self._blocks.append(rows.unsqueeze(1))

    @property
    def features(self) -> tuple[str, ...]:
        """Every feature here, pooled ones first."""
        return (*self._pooled, *self._sequences)

    def pooled(self, feature: str) -> Tensor:
        """[B, dim], a view; zeros for an empty bag."""
        block, place = self._place(feature)
        if (
            block not in self._columns
        ):  # all at once: taken one by one, each one's gradient would be of the block's size
            self._columns[block] = self._blocks[block].unbind(dim=1)
        return self._columns[block][place]

    def stack(self, features: Sequence[str]) -> Tensor:
        """[B, F, dim] of pooled features of one dim; a view where they were pooled together and in this order."""
        places = [self._place(feature) for feature in features]
        block, first = places[0]
        if places == [(block, first + i) for i in range(len(places))]:
            return self._blocks[block][:, first : first + len(places)]
        return torch.stack([self.pooled(feature) for feature in features], dim=1)

    def sequence(self, feature: str) -> tuple[Tensor, Tensor]:
        """values [nnz_f, dim] in the batch's order, and lengths [B], of a feature with pooling `none`."""
        if feature not in self._sequences:
            raise UserError(f"'{feature}' is no sequence feature; sequences: {', '.join(self._sequences) or 'none'}")
        return self._sequences[feature]

    def _place(self, feature: str) -> tuple[int, int]:
        if feature not in self._pooled:
            raise UserError(f"'{feature}' is no pooled feature; pooled: {', '.join(self._pooled) or 'none'}")
        return self._pooled[feature]


def embed(rows: Sequence[Tensor], keys: Sequence[GroupKeys], size: int) -> Embedded:
    """Pools or expands the rows of every group.

    Args:
        rows: per group [U, dim], usually autograd leaves; the gradient of a leaf is the gradient summed per key.
        keys: per group, as `route` gives them (positions may be a micro-batch's).
        size: B.
    """
    embedded = Embedded(size)
    for group_rows, group_keys in zip(rows, keys, strict=True):
        for run in _runs(group_keys, size):
            if run.pooling == "none":
                values = group_rows.index_select(0, run.positions)
                embedded._sequences[run.features[0]] = (values, run.lengths)
                continue
            for place, feature in enumerate(run.features):
                embedded._pooled[feature] = (len(embedded._blocks), place)
            embedded._blocks.append(_pool(group_rows, run, size))
    return embedded


@dataclass(frozen=True, eq=False)
class _Run:
    """Consecutive features of one pooling: one call (`none`: one feature a run)."""

    pooling: str
    features: tuple[str, ...]
    positions: Tensor
    lengths: Tensor
    id_weights: Tensor | None


def _runs(keys: GroupKeys, size: int) -> Iterator[_Run]:
    pooling_of = {f: table.pooling for table in keys.group.tables for f in table.features}
    ends = [0, *torch.cumsum(keys.lengths.view(len(keys.features), size).sum(dim=1), 0).tolist()]
    first = 0
    for i, feature in enumerate(keys.features):
        pooling = pooling_of[feature]
        last = i + 1 == len(keys.features) or pooling_of[keys.features[i + 1]] != pooling
        if not last and pooling != "none":
            continue
        span = slice(ends[first], ends[i + 1])
        yield _Run(
            pooling,
            keys.features[first : i + 1],
            keys.positions[span],
            keys.lengths[first * size : (i + 1) * size],
            keys.id_weights[span] if keys.id_weights is not None and pooling == "sum" else None,
        )
        first = i + 1


def _pool(rows: Tensor, run: _Run, size: int) -> Tensor:
    """[B, F_run, dim]: by kernels of ours in host memory; elsewhere, and with weights, by torch's embedding_bag."""
    if rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64) and run.id_weights is None:
        return _Pool.apply(rows, run, size)
    return _by_torch(rows, run).view(len(run.features), size, rows.shape[1]).transpose(0, 1)


class _Pool(torch.autograd.Function):
    """Bags of rows in host memory; the gradient of a row is summed in the order of the ids."""

    @staticmethod
    def forward(ctx, rows: Tensor, run: _Run, size: int) -> Tensor:
        out = rows.new_empty(size, len(run.features), rows.shape[1])
        starts = torch.nn.functional.pad(torch.cumsum(run.lengths.cpu(), 0), (1, 0))
        ctx.bags = (run.positions.cpu().contiguous().numpy(), starts.numpy(), run.pooling == "mean")
        ctx.rows = rows.shape
        pooling_kernels.pool(rows.detach().contiguous().numpy(), *ctx.bags, out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        grads = grad.new_zeros(ctx.rows)
        if grad.numel():
            grad = grad if grad.stride(2) == 1 else grad.contiguous()
            size, features, dim = grad.shape
            by_sample, by_feature, _ = grad.stride()
            span = (size - 1) * by_sample + (features - 1) * by_feature + dim
            bags = grad.as_strided((span,), (1,)).numpy()  # a part of a larger gradient is read where it lies
            pooling_kernels.spread(grads.numpy(), *ctx.bags, bags, (size, by_sample, by_feature))
        return grads, None, None


def _by_torch(rows: Tensor, run: _Run) -> Tensor:
    """[F_run·B, dim] by torch's embedding_bag."""
    if not run.positions.numel():  # embedding_bag refuses a weight without rows; the zero sum keeps the graph
        return rows.new_zeros(run.lengths.numel(), rows.shape[1]) + rows[:0].sum()
    offsets = run.lengths.new_zeros(run.lengths.numel() + 1)
    torch.cumsum(run.lengths, 0, out=offsets[1:])
    weights = None if run.id_weights is None else run.id_weights.to(rows.dtype)
    return embedding_bag(
        run.positions.to(rows.device),
        rows,
        offsets.to(rows.device),
        mode=run.pooling,
        per_sample_weights=weights,
        include_last_offset=True,
    )
