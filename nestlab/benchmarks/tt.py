"""`tt`: forward and backward of a tensor-train table by TT-Rec, EL-Rec and EcoRec, in turns, two threads.

8 million rows × 64 as 200³ × 4³, one index a bag. Ids: `ranked`, skewed as Zipf 1.05 with hot rows beside each other,
as EL-Rec's reordering leaves them; `hashed`, the same skew scattered; `uniform`. A step is prepare (sorting and
deduplication), forward and backward. TT-Rec and EL-Rec run at the best of three chunks, each as one batched product a
core and as products grouped by the middle core's slice, on two threads or, where that is quicker, on one. `ecorec,
torch` is EcoRec without its kernels. Memory is that of bags of several indices, whose rows have to wait until they are
pooled: automatic slices against one. A pause before each piece of work lets torch's worker end its spin.

The keys `…_batched` are against the best batched product a core, which is what TT-Rec's and EL-Rec's own code does.

Prediction, from multiplications (TT-Rec does 4·E1 + 3·E2 an index, EcoRec 4·n_p·E1 + 3·n_u·E2) and rates (a kernel
whose sums stay in registers: 60 % of a large GEMM's rate; grouped products: 35 %, batched ones: 15 %): ranked 9 and 4,
hashed 6 and 3, uniform 3.5 and 3.5 times TT-Rec and EL-Rec; gflops_share 0.6; memory_saving 0.8.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nestlab.benchmarks.timing import interleave
from nestlab.benchmarks.tt_inputs import IDS, bags, draw
from nestlab.embedding.tensor_train import ecorec_numba
from nestlab.embedding.tensor_train.bags import Bags
from nestlab.embedding.tensor_train.schemes import EcoRec, ELRec, TTRec
from nestlab.embedding.tensor_train.schemes.scheme import Scheme
from nestlab.embedding.tensor_train.shape import TTShape
from nestlab.embedding.tensor_train.work import Work

_BASELINES = {"tt_rec": TTRec, "el_rec": ELRec}
_GEMM = "gemm"
_LONG = 0.3  # seconds


@dataclass(frozen=True)
class Scale:
    """How much is measured: tables of factor³ × q³, `batches` indices at a time, `pooled` a bag where memory counts."""

    factor: int = 200
    q: int = 4
    ranks: tuple[int, ...] = (32, 64)
    batches: tuple[int, ...] = (8192, 65536)
    chunks: tuple[int, ...] = (256, 1024, 4096)
    pooled: int = 16
    gemm: int = 2048
    repeats: int = 7
    threads: int = 2
    pause: float = 0.01


def run(scale: Scale | None = None) -> dict:
    """Measures; about three minutes at the default scale on two free cores; says on standard error where it is."""
    scale = scale or Scale()
    threads = torch.get_num_threads()
    torch.set_num_threads(scale.threads)
    ecorec_numba.warm_up(torch.float32)
    try:
        rows = [row for case in _cases(scale) for row in (*_speed(case, scale), *_memory(case, scale))]
    finally:
        torch.set_num_threads(threads)
    return {"bench": "tt", "how": "measured", "rows": rows, "summary": _summary(rows, scale)}


@dataclass(frozen=True, eq=False)
class _Case:
    """A table, indices, and what is known of them."""

    shape: TTShape
    ids: str
    rows: Tensor
    cores: list[Tensor]
    into: list[Tensor]

    def bags(self, length: int) -> Bags:
        return bags(self.rows, length)


@dataclass(frozen=True)
class _Setting:
    """How a scheme is run."""

    scheme: Scheme
    threads: int

    def __str__(self) -> str:
        return f"{self.scheme.chunk} {'grouped' if self.scheme.grouped else 'batched'}, {self.threads} thread(s)"


@dataclass(eq=False)
class _Step:
    """One step of a scheme, and what it cost.

    Attributes:
        prepared: seconds of `prepare`, of every step.
        work: of the last step.
    """

    setting: _Setting
    case: _Case
    bags: Bags
    grad: Tensor
    prepared: list[float] = field(default_factory=list)
    work: Work = field(default_factory=Work)

    def __call__(self) -> Tensor:
        torch.set_num_threads(self.setting.threads)
        self.work, case, scheme = Work(), self.case, self.setting.scheme
        start = time.perf_counter()
        plan = scheme.prepare(case.shape, self.bags)
        self.prepared.append(time.perf_counter() - start)
        pooled = scheme.forward(case.shape, case.cores, plan, self.work)
        scheme.backward(case.shape, case.cores, plan, self.grad, case.into, self.work)
        return pooled


def _cases(scale: Scale) -> Iterator[_Case]:
    for rank in scale.ranks:
        shape = TTShape((scale.factor,) * 3, (scale.q,) * 3, (rank, rank))
        generator = torch.Generator().manual_seed(1)
        sizes = list(zip(shape.row_factors, shape.widths, strict=True))
        cores = [torch.randn(size, generator=generator) * 0.1 for size in sizes]
        for batch in scale.batches:
            for ids in IDS:
                print(f"bench tt: rank {rank}, batch {batch:,}, {ids}", file=sys.stderr, flush=True)
                yield _Case(shape, ids, draw(ids, shape.rows, batch), cores, [torch.zeros(size) for size in sizes])


def _speed(case: _Case, scale: Scale) -> list[dict]:
    """A row a scheme; and the rate of a GEMM, taken in the same turns."""
    given = case.bags(1)
    grad = torch.randn(given.count, case.shape.dim, generator=torch.Generator().manual_seed(2))
    tried = {name: _try_settings(scheme, case, given, grad, scale) for name, scheme in _BASELINES.items()}
    settings = {name: min(each, key=lambda setting: each[setting]) for name, each in tried.items()}
    settings["ecorec"] = _Setting(EcoRec(slices=0), scale.threads)
    settings["ecorec, torch"] = _Setting(EcoRec(slices=0, kernels=False), scale.threads)
    steps = {name: _Step(setting, case, given, grad) for name, setting in settings.items()}
    _require_equal({name: step() for name, step in steps.items()})
    large = torch.randn(scale.gemm, scale.gemm)
    taken = _in_turns({**steps, _GEMM: lambda: _gemm(large, scale)}, scale)
    gemm = 2e-9 * scale.gemm**3 / float(np.median(taken[_GEMM]))
    shares = _shares(case, given)
    return [
        {
            **_row(case, name, taken[name], steps[name]),
            **(_settings(settings[name], tried[name]) if name in tried else {}),
            **shares,
            **{"gemm_gflops": round(gemm, 1), "repeats": scale.repeats, "threads": settings[name].threads},
        }
        for name in settings
    ]


def _gemm(large: Tensor, scale: Scale) -> Tensor:
    torch.set_num_threads(scale.threads)
    return large @ large


def _memory(case: _Case, scale: Scale) -> list[dict]:
    """Bags of several indices, of the largest batch: automatic slices against one."""
    if case.rows.numel() != max(scale.batches):
        return []
    given = case.bags(scale.pooled)
    grad = torch.randn(given.count, case.shape.dim, generator=torch.Generator().manual_seed(2))
    schemes = {"one slice": EcoRec(), "automatic slices": EcoRec(slices=0)}
    steps = {name: _Step(_Setting(each, scale.threads), case, given, grad) for name, each in schemes.items()}
    _require_equal({name: step() for name, step in steps.items()})
    taken = _in_turns(steps, scale)
    return [
        {**_row(case, f"ecorec, {name}", taken[name], steps[name]), "indices_a_bag": scale.pooled} for name in schemes
    ]


def _try_settings(baseline: type, case: _Case, given: Bags, grad: Tensor, scale: Scale) -> dict[_Setting, float]:
    """Seconds of a baseline, one run each: every chunk, batched and grouped; the best of either on one thread too."""
    seconds = {}

    def run(scheme: Scheme, threads: int) -> None:
        step = _Step(_Setting(scheme, threads), case, given, grad)
        for _ in range(2):  # again where the first run is short enough to suffer from being the first
            taken = interleave({"": step}, 1, 0, lambda _: time.sleep(scale.pause))
            seconds[step.setting] = float(taken[""][0, 0])
            if seconds[step.setting] > _LONG:
                break

    for grouped in (False, True):
        schemes = [baseline(chunk, grouped) for chunk in scale.chunks]
        for scheme in schemes:
            run(scheme, scale.threads)
        if scale.threads > 1:
            run(min(schemes, key=lambda scheme: seconds[_Setting(scheme, scale.threads)]), 1)
    return seconds


def _settings(best: _Setting, tried: dict[_Setting, float]) -> dict:
    """Of a baseline: what it ran with, and the milliseconds of each setting in one run."""
    batched = min(seconds for setting, seconds in tried.items() if not setting.scheme.grouped)
    each = {str(setting): round(1e3 * seconds, 2) for setting, seconds in tried.items()}
    chosen = {"chunk": best.scheme.chunk, "grouped": best.scheme.grouped}
    return {**chosen, "tried_ms": each, "batched_ms": round(1e3 * batched, 2)}


def _in_turns(work: dict[str, Callable[[], object]], scale: Scale) -> dict[str, np.ndarray]:
    """Seconds [repeats] of each."""
    taken = interleave(work, scale.repeats, warm_up=1, before=lambda _: time.sleep(scale.pause))
    return {name: seconds[:, 0] for name, seconds in taken.items()}


def _require_equal(pooled: dict[str, Tensor]) -> None:
    """What schemes give differs by rounding only."""
    first, *others = pooled.values()
    for other in others:
        torch.testing.assert_close(first, other, rtol=1e-3, atol=1e-5)


def _row(case: _Case, name: str, seconds: np.ndarray, step: _Step) -> dict:
    low, middle, high = (1e3 * np.percentile(seconds, [10, 50, 90])).tolist()
    return {
        **{"ids": case.ids, "rank": case.shape.ranks[0], "batch": case.rows.numel(), "scheme": name},
        **{"milliseconds": round(middle, 3), "p10": round(low, 3), "p90": round(high, 3)},
        "prepare_ms": round(1e3 * float(np.median(step.prepared[-len(seconds) :])), 3),
        "gflop": round(step.work.operations / 1e9, 4),
        "gflops": round(step.work.operations / middle / 1e6, 2),
        "peak_bytes": step.work.peak,
    }


def _shares(case: _Case, given: Bags) -> dict:
    """n_u and n_p an index: how much there is to reuse."""
    prefixes = EcoRec().prepare(case.shape, given).prefixes
    return {f"{name}/nnz": round(n / given.nnz, 4) for name, n in zip(("n_p", "n_u"), prefixes, strict=True)}


def _summary(rows: list[dict], scale: Scale) -> dict:
    """Geometric means over ranks and batches."""

    def column(key: str, scheme: str, ids: str | None = None) -> np.ndarray:
        return np.array([r[key] for r in rows if r["scheme"] == scheme and ids in (None, r["ids"])], float)

    def mean(values: np.ndarray) -> float:
        return round(float(np.exp(np.log(values).mean())), 3)

    def faster(ids: str, than: str, key: str = "milliseconds") -> float:
        return mean(column(key, than, ids) / column("milliseconds", "ecorec", ids))

    def sliced(key: str) -> float:
        return mean(column(key, "ecorec, automatic slices") / column(key, "ecorec, one slice"))

    ratios = {f"{ids}_vs_{than}": faster(ids, than) for ids in IDS for than in _BASELINES}
    return {
        **ratios,
        **{f"{ids}_vs_{than}_batched": faster(ids, than, "batched_ms") for ids in IDS for than in _BASELINES},
        **{f"{ids}_vs_ecorec_torch": faster(ids, "ecorec, torch") for ids in IDS},
        "memory_saving": round(1 - sliced("peak_bytes"), 3),
        "slices_time": sliced("milliseconds"),
        "gflops_share": mean(column("gflops", "ecorec") / column("gemm_gflops", "ecorec")),
        "threads": scale.threads,
    }
