"""Rows and gradients in fewer bytes on the wire: half precision, or 8-bit numbers with a scale a row.

A codec changes the numbers: it is no exact technique. It has no state and no random rounding, so that a row reads alike
on every rank and in every run.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nestlab.errors import UserError
from nestlab.exchange import row_kernels

SCALE_BYTES = 4
LEVELS = 127  # of an 8-bit number on each side of 0
SMALLEST_SCALE = 2.0**-126  # float32's smallest normal number
LARGEST_SCALE = float(
    np.nextafter(np.finfo(np.float32).max / np.float32(LEVELS), np.float32(0))
)  # 127 times it is finite
_BITS = {np.dtype(np.float32): np.int32, np.dtype(np.float64): np.int64}


class Codec(Protocol):
    """From rows to bytes and back. `plain_width` says what the same row would take without one."""

    name: str

    def width(self, dim: int, dtype: torch.dtype) -> int:
        """Bytes of an encoded row of `dim` numbers."""
        ...

    def encode(self, rows: Tensor) -> Tensor:
        """[n, dim] float32 or float64 → [n, width] uint8, on the same device."""
        ...

    def decode(self, data: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        """[n, width] uint8 → [n, dim] of `dtype`, on the same device."""
        ...


def codec(name: str) -> Codec | None:
    """The codec called `none` (None: rows travel as they are), `fp16`, `bf16` or `int8`.

    Raises:
        UserError: no such codec.
    """
    if name not in CODECS:
        raise UserError(f"quantise: unknown codec '{name}'; use {', '.join(CODECS)}")
    return CODECS[name]


def plain_width(dim: int, dtype: torch.dtype) -> int:
    """Bytes of a row that travels as it is."""
    return dim * dtype.itemsize


class Half:
    """A number in 16 bits, rounded to the nearest.

    fp16 ends at ±65,504: larger finite numbers become that, an inf stays an inf, so that an overflow in training stays
    visible; numbers below 3·10⁻⁸ become 0. bf16 has float32's range and 8 significant bits. A nan stays a nan in both.
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self._dtype = dtype
        self._largest = torch.finfo(dtype).max

    def width(self, dim: int, dtype: torch.dtype) -> int:
        return dim * self._dtype.itemsize

    def encode(self, rows: Tensor) -> Tensor:
        rows = rows.detach()
        half = rows.to(self._dtype).contiguous()
        if half.device.type != "cpu" or not _all_finite(half):  # elsewhere a look would make the host wait
            half = torch.where(half.isinf() & rows.isfinite(), half.clamp(-self._largest, self._largest), half)
        return half.view(torch.uint8)

    def decode(self, data: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        return data.contiguous().view(self._dtype).to(dtype)


def _all_finite(half: Tensor) -> bool:
    """By the bits, as integers: ten times as fast as `isfinite` on 16-bit numbers."""
    infinite = torch.tensor(torch.inf, dtype=half.dtype).view(torch.int16)
    return not half.numel() or bool((half.view(torch.int16) & 0x7FFF).max() < infinite)


class Int8:
    """A number in 8 bits and a float32 scale a row: scale = max|x|/127, number = x/scale to the nearest, ties to even.

    The row's bytes are its numbers, then its scale. The error is at most half a scale. A row of zeros, or one whose
    largest |x| lies below 127·2⁻¹²⁶, reads as zeros. A row with an inf or a nan, or of float64 numbers whose scale
    float32 does not hold, reads as nan in all its places, so that the fault stays visible.
    """

    name = "int8"

    def width(self, dim: int, dtype: torch.dtype) -> int:
        return dim + SCALE_BYTES

    def encode(self, rows: Tensor) -> Tensor:
        rows = rows.detach().contiguous()
        if rows.device.type != "cpu":
            return encode_by_torch(rows)
        values = rows.numpy()
        n, dim = values.shape
        out = np.empty((n, dim + SCALE_BYTES), np.int8)
        scales = _scales(values)
        row_kernels.quantise(values, scales, out)
        out[:, dim:] = scales.view(np.int8).reshape(n, SCALE_BYTES)
        return torch.from_numpy(out.view(np.uint8))

    def decode(self, data: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        data = data.contiguous()
        if data.device.type != "cpu":
            return decode_by_torch(data, dim, dtype)
        numbers = data.numpy().view(np.int8)
        scales = numbers[:, dim:].copy().view(np.float32).reshape(-1)
        rows = torch.empty(numbers.shape[0], dim, dtype=dtype)
        row_kernels.restore(numbers, scales, rows.numpy())
        return rows


def _scales(values: np.ndarray) -> np.ndarray:
    """[n] float32: of each row; 0 where it is below float32's normal numbers, nan where it is not finite.

    The largest float32 numbers, divided by 127 and rounded, would read as inf: their scale ends at LARGEST_SCALE.
    """
    bits = values.view(_BITS[values.dtype])
    peaks = np.empty(len(values), bits.dtype)
    row_kernels.find_peaks(bits, np.iinfo(bits.dtype).max, peaks)
    with np.errstate(over="ignore", invalid="ignore"):
        scales = (peaks.view(values.dtype) / values.dtype.type(LEVELS)).astype(np.float32)
    scales[scales < SMALLEST_SCALE] = 0
    scales[~np.isfinite(scales)] = np.nan
    return np.minimum(scales, np.float32(LARGEST_SCALE)) if values.dtype == np.float32 else scales


def encode_by_torch(rows: Tensor) -> Tensor:
    """`Int8.encode` in torch's operations, for rows on an accelerator: the same bytes."""
    peaks = rows.abs().amax(dim=1, keepdim=True)  # a nan wins
    scales = (peaks / LEVELS).to(torch.float32)
    scales = torch.where(scales < SMALLEST_SCALE, torch.zeros_like(scales), scales)
    scales = torch.where(scales.isfinite(), scales, torch.full_like(scales, torch.nan))
    scales = scales.clamp(max=LARGEST_SCALE) if rows.dtype == torch.float32 else scales
    numbers = torch.where(scales > 0, (rows / scales.to(rows.dtype)).round(), torch.zeros_like(rows))
    return torch.cat([numbers.to(torch.int8).view(torch.uint8), scales.view(torch.uint8)], dim=1)


def decode_by_torch(data: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """`Int8.decode` in torch's operations, for bytes on an accelerator."""
    scales = data[:, dim:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return data[:, :dim].view(torch.int8).to(dtype) * scales.to(dtype)


CODECS: dict[str, Codec | None] = {
    "none": None,
    "fp16": Half("fp16", torch.float16),
    "bf16": Half("bf16", torch.bfloat16),
    "int8": Int8(),
}
