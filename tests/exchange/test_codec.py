"""Codecs: how far a row may move, what becomes of zeros, infs and nans, and equal bytes from both implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nestlab.errors import UserError
from nestlab.exchange import codec, plain_width
from nestlab.exchange.codec import SMALLEST_SCALE, decode_by_torch, encode_by_torch

DTYPES = [torch.float32, torch.float64]
INT8 = codec("int8")


def there_and_back(name: str, rows: torch.Tensor) -> torch.Tensor:
    coder = codec(name)
    data = coder.encode(rows)
    assert data.dtype == torch.uint8 and data.shape == (rows.shape[0], coder.width(rows.shape[1], rows.dtype))
    return coder.decode(data, rows.shape[1], rows.dtype)


def rows_of(dtype, **bounds):
    shape = arrays.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9)
    return arrays.arrays(dtype, shape, elements={"allow_nan": False, "allow_infinity": False, **bounds})


def test_none_is_no_codec_and_an_unknown_one_is_refused():
    assert codec("none") is None
    with pytest.raises(UserError, match="unknown codec 'int4'; use none, fp16, bf16, int8"):
        codec("int4")


def test_bytes_before_and_after():
    widths = {name: codec(name).width(64, torch.float32) for name in ("fp16", "bf16", "int8")}
    assert widths == {"fp16": 128, "bf16": 128, "int8": 68}
    assert (plain_width(64, torch.float32), plain_width(64, torch.float64)) == (256, 512)


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_rows_and_rows_that_do_not_lie_together(name, dtype):
    assert there_and_back(name, torch.zeros(0, 3, dtype=dtype)).shape == (0, 3)
    rows = torch.rand(5, 6, dtype=dtype).requires_grad_()
    scattered = rows.detach().repeat_interleave(2, dim=1)[:, ::2]
    assert torch.equal(there_and_back(name, scattered), there_and_back(name, rows))


@settings(max_examples=60, deadline=None)
@given(st.one_of(rows_of(np.float32), rows_of(np.float64, min_value=-1e38, max_value=1e38)))
@example(np.full((1, 1), 5e-324))
@example(np.full((1, 1), np.finfo(np.float32).max))
def test_int8_moves_a_number_by_half_a_scale_at_most(rows):
    """Broken on purpose: rounding towards 0, and no largest scale (float32's largest number became inf)."""
    got = there_and_back("int8", torch.from_numpy(rows)).numpy()
    largest = np.abs(rows).max(axis=1, keepdims=True).astype(np.float64)
    scale, error = largest / 127, np.abs(got.astype(np.float64) - rows)
    assert (error <= np.where(scale < SMALLEST_SCALE, largest, 0.5001 * scale)).all()
    assert (got[scale[:, 0] < SMALLEST_SCALE * 0.999] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_by_hand(dtype):
    """Scale 0.5: halves of it are ties, which go to the even number."""
    rows = torch.tensor([[63.5, -63.5, 0.25, 0.75, -0.25, 0.3], [0.0, -0.0, 0, 0, 0, 0]], dtype=dtype)
    data = INT8.encode(rows)
    assert data.view(torch.int8)[0, :6].tolist() == [127, -127, 0, 2, 0, 1]
    assert data[0, 6:].numpy().tobytes() == np.float32(0.5).tobytes()
    assert data[1].tolist() == [0] * 10
    assert INT8.decode(data, 6, dtype).tolist() == [[63.5, -63.5, 0.0, 1.0, 0.0, 0.5], [0.0] * 6]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", [float("inf"), -float("inf"), float("nan"), -float("nan")])
def test_int8_a_fault_spoils_its_row_alone(dtype, fault):
    """Broken on purpose: a search for the largest |x| among floats lost a nan in the middle of a row."""
    rows = torch.full((3, 20), 127.0, dtype=dtype)
    rows[1, 11] = fault
    got = there_and_back("int8", rows)
    assert got[1].isnan().all() and torch.equal(got[::2], rows[::2])
    assert torch.equal(INT8.encode(rows), encode_by_torch(rows))


def test_int8_scales_that_float32_does_not_hold():
    rows = torch.tensor([[1e42, 1.0], [1e-40, 0.0], [127 * SMALLEST_SCALE, 0.0]], dtype=torch.float64)
    got = there_and_back("int8", rows)
    assert got[0].isnan().all() and torch.equal(got[1:], rows[1:] * torch.tensor([[0.0], [1.0]]).double())


@settings(max_examples=60, deadline=None)
@given(st.one_of(rows_of(np.float32), rows_of(np.float64)))
def test_int8_is_the_same_bytes_by_kernels_and_by_torch(rows):
    rows = torch.from_numpy(rows)
    data = INT8.encode(rows)
    assert torch.equal(data, encode_by_torch(rows)) and torch.equal(data, INT8.encode(rows.clone()))
    read = INT8.decode(data, rows.shape[1], rows.dtype)
    assert torch.equal(read.nan_to_num(7), decode_by_torch(data, rows.shape[1], rows.dtype).nan_to_num(7))


@pytest.mark.parametrize("dtype", DTYPES)
def test_halves_round_and_keep_infs_and_nans(dtype):
    """fp16 ends at 65,504. Broken on purpose: without the clamp 1e6 became inf; with it alone inf became 65,504."""
    rows = torch.tensor([[1e6, -1e6, float("inf"), -float("inf"), float("nan"), 1 / 3]], dtype=dtype)
    fp16, bf16 = there_and_back("fp16", rows)[0].tolist(), there_and_back("bf16", rows)[0].tolist()
    assert fp16[:4] == [65504.0, -65504.0, float("inf"), -float("inf")]
    assert bf16[2:4] == [float("inf"), -float("inf")] and abs(bf16[0] - 1e6) < 1e6 / 256
    assert np.isnan(fp16[4]) and np.isnan(bf16[4])
    assert fp16[5] == float(torch.tensor(1 / 3).half()) and bf16[5] == float(torch.tensor(1 / 3).bfloat16())
