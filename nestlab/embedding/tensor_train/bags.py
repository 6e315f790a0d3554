"""What one look-up asks of a tensor-train table: row numbers in bags."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nestlab.errors import UserError


@dataclass(frozen=True, eq=False)
class Bags:
    """Rows to be summed bag by bag; of a sequence each row is a bag of its own.

    Attributes:
        rows: [nnz] int64 in [0, M).
        offsets: [bags + 1] int64, where each bag begins and ends.
        weights: [nnz] of the table's dtype, what each row counts in its bag's sum; None: 1. A mean is a weight of
            1 / length.
    """

    rows: Tensor
    offsets: Tensor
    weights: Tensor | None = None

    @property
    def nnz(self) -> int:
        return self.rows.numel()

    @property
    def count(self) -> int:
        """Bags."""
        return self.offsets.numel() - 1

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.offsets.nbytes + (0 if self.weights is None else self.weights.nbytes)

    @classmethod
    def of(
        cls, rows: Tensor, lengths: Tensor, pooling: str = "sum", weights: Tensor | None = None, dtype=torch.float32
    ) -> Bags:
        """Of rows [nnz] and lengths [bags] int64; pooling `sum` (weights [nnz] or None), `mean`, or `none`.

        Raises:
            UserError: the lengths are negative or do not sum to nnz, there are not as many weights, or the pooling is
                unknown: a kernel would read beyond what is there.
        """
        _check(rows, lengths, pooling, weights)
        if pooling == "none":
            return cls(rows, torch.arange(rows.numel() + 1, device=rows.device))
        offsets = torch.nn.functional.pad(torch.cumsum(lengths.to(torch.int64), 0), (1, 0))
        if pooling == "mean":
            weights = torch.repeat_interleave(1.0 / lengths.clamp(min=1).to(dtype), lengths)
        return cls(rows, offsets, None if weights is None else weights.to(dtype))


def _check(rows: Tensor, lengths: Tensor, pooling: str, weights: Tensor | None) -> None:
    if pooling not in ("sum", "mean", "none"):
        raise UserError(f"look-up: unknown pooling '{pooling}'; use sum, mean or none")
    if rows.dim() != 1 or lengths.dim() != 1:
        raise UserError(f"look-up: ids {list(rows.shape)} and lengths {list(lengths.shape)}; give one dimension each")
    if lengths.numel() and int(lengths.min()) < 0:
        raise UserError(f"look-up: a bag of length {int(lengths.min())}; lengths are 0 or more")
    if int(lengths.sum()) != rows.numel():
        raise UserError(
            f"look-up: lengths sum to {int(lengths.sum())}, and there are {rows.numel()} ids; give them equal"
        )
    if weights is not None and weights.shape != rows.shape:
        raise UserError(f"look-up: {weights.numel()} weights for {rows.numel()} ids; give one an id")
