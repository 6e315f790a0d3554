"""One batch of samples, in the jagged, feature-major layout of torchrec's KeyedJaggedTensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B samples with D dense values and F sparse features.

    The ids of feature f and sample b are a contiguous run; runs are ordered feature-major, so that the ids of one
    feature over the whole batch lie together: run f·B + b has `lengths[f * B + b]` ids (0 for a missing value).

    Attributes:
        dense: [B, D] float32.
        features: the F names, in the order of the runs.
        ids: [n] int64, any value (negative ones too).
        lengths: [F·B] int64.
        labels: [B] float32.
        weights: [B] float32, the weight of a sample in the loss, 0 or more; None stands for all ones.
        id_weights: [n] float32, the weight of an id in sum pooling; None stands for all ones.
        values: those of `features` whose numbers the dense part reads, such as times: no table looks them up.

    Raises:
        ValueError: shapes, dtypes or lengths that do not belong together.
    """

    dense: Tensor
    features: tuple[str, ...]
    ids: Tensor
    lengths: Tensor
    labels: Tensor
    weights: Tensor | None = None
    id_weights: Tensor | None = None
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.labels.ndim != 1 or self.dense.ndim != 2 or self.dense.shape[0] != self.size:
            shapes = f"dense {list(self.dense.shape)} and labels {list(self.labels.shape)}"
            raise ValueError(f"Batch: {shapes}; expected [B, D] and [B] of one B")
        if self.lengths.numel() != len(self.features) * self.size:
            raise ValueError(
                f"Batch: {self.lengths.numel()} lengths for {len(self.features)} features of {self.size} samples; "
                f"expected {len(self.features) * self.size}"
            )
        if self.ids.dtype != torch.int64:
            raise ValueError(f"Batch: ids must be int64, not {self.ids.dtype}; convert them with ids.long()")
        for name, count in (("weights", self.size), ("id_weights", self.ids.numel())):
            values = getattr(self, name)
            if values is not None and values.shape != (count,):
                raise ValueError(f"Batch: {name} of shape {list(values.shape)}; expected [{count}]")
        if unknown := [name for name in self.values if name not in self.features]:
            raise ValueError(
                f"Batch: values {', '.join(unknown)} are no features; there are {', '.join(self.features)}"
            )
        if self.lengths.device.type == "cpu":  # elsewhere it would make the host wait for the device
            self._check_lengths()

    def _check_lengths(self) -> None:
        if self.lengths.numel() and int(self.lengths.min()) < 0:
            raise ValueError(f"Batch: a length is {int(self.lengths.min())}; lengths are 0 or more")
        if int(self.lengths.sum()) != self.ids.numel():
            raise ValueError(f"Batch: lengths that sum to {int(self.lengths.sum())} for {self.ids.numel()} ids")

    @property
    def size(self) -> int:
        """The number of samples, B."""
        return self.labels.shape[0]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self._tensors().values())

    @property
    def total_weight(self) -> float:
        """The sum of the samples' weights: what a weighted mean over the batch is divided by."""
        return float(self.size) if self.weights is None else float(self.weights.sum(dtype=torch.float64))

    def feature_lengths(self) -> Tensor:
        """[F, B] view of `lengths`."""
        return self.lengths.view(len(self.features), self.size)

    def offsets(self) -> Tensor:
        """[F·B + 1] int64: where each run starts in `ids`, and the end of the last."""
        offsets = self.lengths.new_zeros(self.lengths.numel() + 1, dtype=torch.int64)
        torch.cumsum(self.lengths, 0, out=offsets[1:])
        return offsets

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        return self._map(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        return self._map(lambda t: t.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        """Tells the caching allocator that `stream` uses these tensors. Host tensors have no streams: nothing to do."""
        for tensor in self._tensors().values():
            if tensor.device.type != "cpu":
                tensor.record_stream(stream)

    def slice(self, start: int, stop: int) -> Batch:
        """Samples start … stop−1, in order: a micro-batch (which may be empty)."""
        if not 0 <= start <= stop <= self.size:
            raise ValueError(f"Batch.slice: {start}:{stop} does not lie in a batch of {self.size} samples")
        offsets = self.offsets()
        first = torch.arange(len(self.features), device=offsets.device) * self.size
        begin, end = offsets[first + start].tolist(), offsets[first + stop].tolist()
        runs = [slice(b, e) for b, e in zip(begin, end, strict=True)]
        return replace(
            self,
            dense=self.dense[start:stop],
            ids=_join(self.ids, runs),
            lengths=self.feature_lengths()[:, start:stop].reshape(-1),
            labels=self.labels[start:stop],
            weights=None if self.weights is None else self.weights[start:stop],
            id_weights=None if self.id_weights is None else _join(self.id_weights, runs),
        )

    def select(self, order: Tensor) -> Batch:
        """The samples order [m] int64 on this batch's device, in that order: a permutation only changes the order."""
        lengths, starts = self.feature_lengths(), self.offsets()[:-1].view(len(self.features), self.size)
        chosen = lengths.index_select(1, order).reshape(-1)
        ends = torch.cumsum(chosen, 0)
        shift = starts.index_select(1, order).reshape(-1) - (ends - chosen)  # from places there to places here
        total = int(ends[-1]) if ends.numel() else 0
        places = torch.arange(total, device=order.device)
        places += torch.repeat_interleave(shift, chosen, output_size=total)
        return replace(
            self,
            dense=self.dense.index_select(0, order),
            ids=self.ids.index_select(0, places),
            lengths=chosen,
            labels=self.labels.index_select(0, order),
            weights=None if self.weights is None else self.weights.index_select(0, order),
            id_weights=None if self.id_weights is None else self.id_weights.index_select(0, places),
        )

    def micro_batches(self, count: int) -> Iterator[Batch]:
        """`count` consecutive micro-batches whose sizes differ by at most one; empty ones where count > B."""
        for i in range(count):
            yield self.slice(i * self.size // count, (i + 1) * self.size // count)

    def _tensors(self) -> dict[str, Tensor]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def _map(self, change) -> Batch:
        return replace(self, **{name: change(tensor) for name, tensor in self._tensors().items()})


def _join(values: Tensor, runs: list[slice]) -> Tensor:
    return torch.cat([values[run] for run in runs]) if runs else values[:0]
