"""The gradients of a chain of products, core by core, a chunk of rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from nestlab.embedding.tensor_train.schemes.chain import Chain, Runs, add_rows, multiply


@dataclass(frozen=True, eq=False)
class ChainBackward:
    """What chunks add to the gradients of the cores; made by `of`, ended by `finish`. Cores are counted from 0.

    Attributes:
        chain: its prefixes are recomputed; its gathered slices give way to their own gradients.
        grads: [size, Q·r] of every core but the last: gradients of the prefixes.
        sums: where gradients are added, [p_k, width_k] each; of the last core turned, [p_d, q·r].
        into: where they belong in the end.
    """

    chain: Chain
    grads: tuple[Tensor, ...]
    sums: tuple[Tensor, ...]
    into: Sequence[Tensor]

    @classmethod
    def of(cls, chain: Chain, into: Sequence[Tensor]) -> ChainBackward:
        def empty(like: Tensor) -> Tensor:
            return chain.work.empty(*like.shape, dtype=like.dtype, device=like.device)

        grads = tuple(map(empty, chain.prefixes))
        # Adding to rows that lie apart is many times slower: they get their sum at the end.
        sums = [each if each.is_contiguous() else empty(each).zero_() for each in into[:-1]]
        return cls(chain, grads, (*sums, empty(into[-1]).zero_()), into)

    def add(self, digits: Tensor, grad: Tensor, runs: Runs | None = None) -> None:
        """Adds what rows of digits [d, n] whose gradient is `grad` [n, dim] give; with `runs`, core 1 grouped."""
        prefixes = self.chain.multiply_prefixes(digits, runs)
        self._last(digits[-1], grad, prefixes)
        for k in range(self.chain.shape.cores - 2, 0, -1):
            if runs is not None and k == 1:
                self._grouped(k, digits.shape[1], runs)
            else:
                self._middle(k, digits[k])
        add_rows(self.sums[0], digits[0], self.grads[0][: digits.shape[1]])

    def _last(self, digit: Tensor, grad: Tensor, prefixes: Tensor) -> None:
        chain = self.chain
        slices = chain.gather(-1, digit)
        count, rank, q = slices.shape
        grad = grad.view(count, -1, q)
        multiply(grad, slices.transpose(1, 2), chain.narrow(self.grads[-1][:count], -1), chain.work)
        turned = slices.view(count, q, rank)  # the slices are no longer needed: their memory takes the gradients
        multiply(grad.transpose(1, 2), chain.narrow(prefixes, -1), turned, chain.work)
        add_rows(self.sums[-1], digit, turned.view(count, -1))

    def _middle(self, k: int, digit: Tensor) -> None:
        chain, (left, below, grad) = self.chain, self._around(k, digit.numel())
        slices = chain.gathered(k, digit.numel())  # by the recomputation of the prefixes
        multiply(grad, slices.transpose(1, 2), below, chain.work)
        multiply(left.transpose(1, 2), grad, slices, chain.work)
        add_rows(self.sums[k], digit, slices.flatten(1))

    def _grouped(self, k: int, count: int, runs: Runs) -> None:
        chain, (left, below, grad) = self.chain, self._around(k, count)
        for value, part in runs:
            each, factor = grad[part].flatten(0, 1), left[part].flatten(0, 1)
            multiply(each, chain.slice(k, value).T, below[part].flatten(0, 1), chain.work)
            total = self.sums[k][value].view(factor.shape[1], -1)
            total.addmm_(factor.T, each)
            chain.work.operations += 2 * total.numel() * len(factor)

    def _around(self, k: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of core k: prefixes before it [count, Q, r_in], the place of their gradient, and the gradient after it."""
        chain = self.chain
        left, below = (chain.narrow(each[k - 1][:count], k) for each in (chain.prefixes, self.grads))
        return left, below, chain.wide(self.grads[k][:count], k)

    def finish(self) -> None:
        """Brings the sums to where they belong and ends the buffers, those of the chain too."""
        chain = self.chain
        for each, total in zip(self.into[:-1], self.sums[:-1], strict=True):
            if total is not each:
                each.add_(total)
                chain.work.drop(total)
        rank, q, _ = chain.shape.slices[-1]
        self.into[-1].add_(self.sums[-1].view(-1, q, rank).transpose(1, 2).reshape(-1, rank * q))
        chain.work.drop(self.sums[-1], *self.grads)
        chain.drop()
