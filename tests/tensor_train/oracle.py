"""A tensor-train table written down a second time: whole, by one product of tensors, with autograd."""

from __future__ import annotations

import torch

from nestlab.embedding.tensor_train import TTShape, TTTable

_LETTERS = "abcd", "stuv", "wxyz"  # row digits, dim digits, ranks


def whole_table(shape: TTShape, cores) -> torch.Tensor:
    """[Πp, Πq] of cores [p_k, r_(k−1)·q_k·r_k]: the definition, as one sum over all ranks."""
    d, ranks = shape.cores, [1, *shape.ranks, 1]
    tensors = [
        core.reshape(shape.row_factors[k], ranks[k], shape.dim_factors[k], ranks[k + 1]) for k, core in enumerate(cores)
    ]
    ends = [*_LETTERS[2][:d], "e"]
    terms = [_LETTERS[0][k] + ends[k] + _LETTERS[1][k] + ends[k + 1] for k in range(d)]
    product = torch.einsum(f"{','.join(terms)}->{_LETTERS[0][:d]}{_LETTERS[1][:d]}", *tensors)
    return product.reshape(shape.rows, shape.dim)


def leaves(table: TTTable) -> list[torch.Tensor]:
    """Copies of a table's cores, for autograd."""
    return [weight.detach().clone().requires_grad_() for weight in table.cores.weights]


def pooled(rows: torch.Tensor, lengths, weights=None, mean: bool = False) -> torch.Tensor:
    """[bags, dim] of rows [n, dim], bag by bag."""
    out, first = [], 0
    for length in lengths:
        bag = rows[first : first + length]
        if weights is not None:
            bag = bag * torch.as_tensor(weights[first : first + length], dtype=rows.dtype)[:, None]
        out.append(bag.sum(0) / (max(length, 1) if mean else 1))
        first += length
    return torch.stack(out) if out else rows.new_zeros(0, rows.shape[1])
