"""Rows in fewer bytes on the wire: what is rounded, and by how much."""

from __future__ import annotations

import pandas as pd
import torch

from nestlab.exchange.codec import codec, plain_width

DIM = 64
KINDS = ("fp16", "bf16", "int8")


def one_row(kind: str, seed: int = 0, dim: int = 8) -> pd.DataFrame:
    """A row of random weights, one a line: as it was, as it arrives, and the difference."""
    row = _rows(seed, 1, dim)
    came = _through(kind, row)
    frame = pd.DataFrame({"weight": row[0].tolist(), "arrives as": came[0].tolist()})
    return frame.assign(error=frame["arrives as"] - frame["weight"]).round(6)


def errors(seed: int = 0, rows: int = 1_000) -> pd.DataFrame:
    """A row a codec over random rows: bytes of a row, and the largest error as a share of the row's largest weight."""
    sent = _rows(seed, rows, DIM)
    found = []
    for kind in KINDS:
        share = (_through(kind, sent) - sent).abs().amax(1) / sent.abs().amax(1)
        width = codec(kind).width(DIM, sent.dtype)
        found.append(
            {
                "quantise": kind,
                f"bytes of a row of {DIM}": width,
                "saved": 1 - width / plain_width(DIM, sent.dtype),
                "largest error, of the row's largest weight": float(share.max()),
            }
        )
    return pd.DataFrame(found)


def _through(kind: str, rows: torch.Tensor) -> torch.Tensor:
    chosen = codec(kind)
    return chosen.decode(chosen.encode(rows), rows.shape[1], rows.dtype)


def _rows(seed: int, count: int, dim: int) -> torch.Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)) / 10
