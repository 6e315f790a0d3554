"""What must hold whatever the machine: gradients, slices, splitting of row numbers, hot rows. In float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch

from nestlab.embedding import SGD, StepInfo, TableConfig
from nestlab.embedding.tensor_train import TensorTrain, TTTable
from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.cores import expand
from nestlab.embedding.tensor_train.schemes import EcoRec
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work
from nestlab.experiments.ecorec.memory import BatchedProducts
from nestlab.experiments.ecorec.settings import Settings
from nestlab.experiments.tables import Said, answer

_SHAPE = TTShape((6, 5, 4), (2, 2, 3), (3, 4))
_COLUMNS = ["check", "obtained", "wanted", "holds", "claim", "peak_bytes", "how", "note"]


def run(settings: Settings) -> pd.DataFrame:
    """A row a check: check, obtained (a number, or 1 and 0), wanted, holds, claim (that it answers), peak_bytes (of the
    intermediates of its look-ups; 0 where none is made), how, note."""
    return pd.DataFrame([each(settings.seed) for each in CHECKS], columns=_COLUMNS)


def _row(check: str, obtained: float, most: float | None, claim: str, **more: Any) -> dict[str, Any]:
    wanted = "yes" if most is None else f"at most {most:g}"
    holds = bool(obtained) if most is None else bool(obtained <= most)
    told = {"check": check, "obtained": float(obtained), "wanted": wanted, "holds": holds, "claim": claim}
    return {**told, "peak_bytes": 0, "how": "measured", "note": "", **more}


def _problem(seed: int) -> tuple[list[torch.Tensor], Bags, torch.Tensor]:
    """Cores, weighted bags with duplicates and one that is empty, and a gradient of the pooled rows; float64."""
    rng = torch.Generator().manual_seed(seed)
    factors = zip(_SHAPE.row_factors, _SHAPE.widths, strict=True)
    cores = [torch.randn(p, width, dtype=torch.float64, generator=rng) for p, width in factors]
    lengths = torch.tensor([5, 0, 17, 1, 40])
    rows = torch.randint(0, _SHAPE.rows, (int(lengths.sum()),), generator=rng)
    weights = torch.rand(rows.numel(), dtype=torch.float64, generator=rng)
    bags = Bags.of(rows, lengths, weights=weights, dtype=torch.float64)
    return cores, bags, torch.randn(bags.count, _SHAPE.dim, dtype=torch.float64, generator=rng)


def _ours(cores: list[torch.Tensor], bags: Bags, grad: torch.Tensor, scheme) -> tuple[list[torch.Tensor], Work]:
    """Gradients of the cores."""
    work, into = Work(), [torch.zeros_like(core) for core in cores]
    plan = scheme.prepare(_SHAPE, bags)
    scheme.forward(_SHAPE, cores, plan, work)
    scheme.backward(_SHAPE, cores, plan, grad, into, work)
    return into, work


def batched(slices: int) -> BatchedProducts:
    return BatchedProducts(EcoRec(slices))


def _gradients(seed: int) -> dict[str, Any]:
    """Against autograd through the table, decompressed."""
    cores, bags, grad = _problem(seed)
    leaves = [core.clone().requires_grad_() for core in cores]
    table = torch.cat([expand(block, leaves[1:], _SHAPE) for block in leaves[0]])
    bag = torch.repeat_interleave(torch.arange(bags.count), bags.offsets.diff())
    pooled = torch.zeros(bags.count, _SHAPE.dim, dtype=torch.float64)
    pooled = pooled.index_add(0, bag, table[bags.rows] * bags.weights[:, None])
    wanted = torch.autograd.grad(pooled, leaves, grad)
    got, work = _ours(cores, bags, grad, EcoRec())
    off = max(float((a - b).abs().max()) for a, b in zip(got, wanted, strict=True))
    name = "largest difference of a core's gradient to autograd through the decompressed table"
    return _row(name, off, 1e-10, "ER-P-013", peak_bytes=work.peak, note="weighted bags, duplicates, an empty bag")


def _slices(seed: int) -> dict[str, Any]:
    """Cores after an update, for any number of slices."""
    cores, bags, grad = _problem(seed)
    once, work = _ours(cores, bags, grad, EcoRec())
    sliced = [kind(slices) for slices in (1, 2, 3, 7, 50) for kind in (EcoRec, batched)]
    others = [_ours(cores, bags, grad, scheme)[0] for scheme in sliced]
    after = [[core - 0.1 * g for core, g in zip(cores, grads, strict=True)] for grads in (once, *others)]
    off = max(float((a - b).abs().max()) for each in after[1:] for a, b in zip(each, after[0], strict=True))
    name = "largest difference of a core after an update, over 1, 2, 3, 7 and 50 slices"
    return _row(name, off, 1e-12, "ER-P-014", peak_bytes=work.peak, note="kernels and batched products")


def _repeated(seed: int) -> dict[str, Any]:
    """Prefixes multiplied again at a boundary of slices."""
    cores, bags, grad = _problem(seed)
    (_, whole), (_, cut) = (_ours(cores, bags, grad, batched(slices)) for slices in (1, 7))
    again = (cut.operations - whole.operations) / _SHAPE.products[0] / 6
    note = "a slice ends where a prefix does"
    return _row(
        "prefixes multiplied again, a boundary of 7 slices", again, 1, "ER-P-016", peak_bytes=cut.peak, note=note
    )


def _float_split(seed: int) -> dict[str, Any]:
    """Whether an index split by a division in single precision gives the digits, beyond 2³¹."""
    factors = np.array((4001, 3001, 2003))
    rows = np.random.default_rng(seed).integers(2**31, int(factors.prod()), 1000)
    exact = TTShape(tuple(factors.tolist()), (1, 1, 1), (1, 1)).digits(rows)
    upper = np.floor(rows.astype(np.float32) / np.float32(factors[2])).astype(np.int64)
    split = np.stack((upper // factors[1], upper % factors[1], rows - upper * factors[2]))
    right = float((split == exact).all(axis=0).mean())
    name = "rows split by a division in single precision have the right digits, beyond 2³¹"
    return _row(name, right == 1, None, "RL-P-023", how="computed", note=f"right for {right:.1%} of 1,000 rows")


def _small_buffer(seed: int) -> dict[str, Any]:
    """Whether a buffer of p₂·p₃ prefixes holds all p₁·p₂."""
    shape = TTShape((40, 7, 3), (1, 1, 1), (1, 1))
    prefixes = np.unique(np.arange(shape.rows) // shape.row_factors[2]).size
    room = shape.row_factors[1] * shape.row_factors[2]
    name = "a buffer of the last two row counts holds every prefix of unequal ones"
    return _row(name, prefixes <= room, None, "RL-P-024", how="computed", note=f"{prefixes} prefixes, room for {room}")


def _hot_rows(seed: int) -> dict[str, Any]:
    """Hot rows equal decompressed ones when they enter; decompressed rows spread as an ordinary table's."""
    train = TensorTrain(rows=20_000, rank=16, hot_rows=64, hot_every=1)
    table = TTTable(TableConfig("checked", 32, tensor_train=train), SGD(lr=0.0), seed=seed, dtype=torch.float64)
    ids = torch.arange(64).repeat(4)
    for number in (1, 2, 3):
        out = table.embed(ids, torch.ones(ids.numel(), dtype=torch.int64))
        out.backward(torch.zeros_like(out))
        table.apply(StepInfo(number))
    held = table.hot.held[table.hot.held >= 0]
    off = float((table.full_weight(ids) - table.cores.rows(table.rows(ids))).abs().max())
    spread = float(table.cores.table(20_000).std()) / (table.config.bound / 3**0.5)
    good = held.numel() > 0 and off < 1e-12 and abs(spread - 1) < 0.1
    note = f"{held.numel()} hot rows, off by {off:.1g}; spread of the rows over an ordinary table's {spread:.3f}"
    name = "hot rows equal decompressed ones, rows start with an ordinary table's spread"
    return _row(name, good, None, "RL-P-014", peak_bytes=table.work.peak, note=note)


CHECKS: tuple[Callable[[int], dict[str, Any]], ...] = (
    _gradients,
    _slices,
    _repeated,
    _float_split,
    _small_buffer,
    _hot_rows,
)
_NUMBERS = {"ER-P-016"}  # whose verdict is on the number


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def says(frame: pd.DataFrame) -> Said:
    no = frame.loc[~frame["holds"], "claim"].tolist()
    return Said(
        f"{frame['holds'].sum()} of {len(frame)} hold. "
        + (f"Those that do not are readings of other systems' code, shown to fail: {', '.join(no)}." if no else "")
    )


def answers(frame: pd.DataFrame) -> list[dict]:
    found = []
    for row in frame.itertuples():
        obtained = row.obtained if row.claim in _NUMBERS else bool(row.holds)
        found.append(answer(row.claim, obtained, row.how, f"{row.check}: {row.obtained:.3g}. {row.note}".strip()))
    return found
