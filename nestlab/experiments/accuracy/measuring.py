"""What the ranks do, once: every training of the study, and what each is compared by."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nestlab.data import Loader
from nestlab.data.kuairand_files import PURE
from nestlab.data.sequences import SequenceData
from nestlab.experiments import compared
from nestlab.experiments.accuracy import curves
from nestlab.experiments.accuracy.bound import Scorer, bound
from nestlab.experiments.accuracy.encoders import POPULAR
from nestlab.experiments.accuracy.settings import ENCODERS, Settings
from nestlab.experiments.accuracy.training import Bench, Trained, Training, train
from nestlab.experiments.accuracy.whole import Known, scorer
from nestlab.experiments.ranks import joined, rows_of_all
from nestlab.training.item_pairs import places_of, seen_pairs
from nestlab.training.ranking_metrics import retrieval_metrics
from nestlab.training.retrieval import HELDOUT, RankingProtocol, evaluate_retrieval, rank_by_popularity

Figures = dict[str, Any]
LOOK = 512  # samples of a held-out batch, over all ranks
PROTOCOL = RankingProtocol(leave_out_seen=True)  # an item that a user has seen hardly ever comes again in these logs


@dataclass(frozen=True)
class HeldOut:
    """Sequences, of which the first `samples` held-out ones are ranked, rounded up to whole batches; None: all."""

    sequences: SequenceData
    samples: int | None = None

    @property
    def items(self) -> np.ndarray:
        return self.sequences.items

    def batches(self, split: str, batch_size: int) -> Loader:
        limit = None if self.samples is None else -(-self.samples // batch_size)
        return self.sequences.batches(split, batch_size, limit=limit)

    def targets(self, split: str) -> np.ndarray:
        return self.sequences.targets(split)

    def seen(self, split: str, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.sequences.seen(split, samples)

    def popularity(self) -> np.ndarray:
        return self.sequences.popularity()

    @property
    def count(self) -> int:
        """Samples that are ranked."""
        there = self.sequences.samples(HELDOUT)
        return there if self.samples is None else min(there, -(-self.samples // LOOK) * LOOK)


@dataclass
class Measured:
    """By part the rows of its table and the seconds that it took; how many trainings there were, with those that are in
    no table."""

    rows: dict[str, list[Figures]] = field(default_factory=lambda: {"techniques": [], "curves": [], "encoders": []})
    seconds: dict[str, float] = field(default_factory=dict)
    trainings: int = 0

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - started


def named(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics of PROTOCOL without its prefix: all figures of the study are by this one protocol."""
    return {name.removeprefix(PROTOCOL.prefix): value for name, value in metrics.items()}


def measure(settings: Settings) -> Measured:
    """What a rank does; rank 0's result counts."""
    with joined(settings.device, "notebook 12_accuracy") as transport:
        bench = Bench.on(settings, transport)
        try:
            return _measure(bench)
        finally:
            bench.close()


def _measure(bench: Bench) -> Measured:
    s, found = bench.settings, Measured()
    for number in range(s.seeds):
        seed = s.seed + number
        with found.timed("techniques in float32"):
            plain = _in_float32(bench, seed, found)
        if number < s.exact_seeds:
            with found.timed("techniques in float64"):
                found.rows["techniques"] += _in_float64(bench, seed)
        with found.timed("encoders"):
            found.rows["encoders"] += _encoders(bench, seed, plain)
    found.trainings = len(bench.trained)
    return found


@dataclass(frozen=True)
class Looked:
    """A training and how it ranks: `ranks` [n] int64 of all held-out samples, the same on every rank."""

    training: Training
    trained: Trained
    ranks: np.ndarray
    known: Known | None = None

    def row(self, bench: Bench, reference: Looked) -> Figures:
        """What every training is told by; `reference` is the plain one of the same seed and dtype."""
        case, info = self.training.case, bench.dataset.info
        row = {"data": info.title, "how": "measured", "model": ENCODERS[self.training.encoder], "case": case.name}
        row |= {"dtype": str(self.training.dtype).removeprefix("torch."), "seed": self.training.seed}
        row |= {"declared": case.flags.exactness(), **retrieval_metrics(self.ranks), "samples": len(self.ranks)}
        last = len(self.trained.losses) // bench.settings.epochs
        row |= {"loss": float(self.trained.losses[-last:].mean()), "seconds": self.trained.seconds}
        row |= {"changed": int((self.ranks != reference.ranks).sum())}
        dense = self.trained.pipeline.model.dense
        row |= {"weights": sum(value.numel() for value in dense.parameters())}
        if self.known is not None and reference.known is not None:
            far = self.known.distance(reference.known)
            row |= {"weight_difference": far.largest, "equal_to_plain": far.equal}
        return row


def _in_float32(bench: Bench, seed: int, found: Measured) -> Looked:
    """The plain training; the inexact techniques and, in the first seeds, the exact ones, which are compared with their
    micro-batches in order too: what is exact has no spread to be learnt from further seeds."""
    s = bench.settings
    plain = _looked(bench, Training(compared.REFERENCE, s.model, seed), exact=True)
    serial: dict[tuple, Known] = {}
    exact = compared.exact(s.micro_batches) if seed - s.seed < s.exact_seeds else ()
    for case in (compared.REFERENCE, *exact, *compared.inexact(s.world_size, s.tt_rank)):
        training = Training(case, s.model, seed)
        looked = plain if case is compared.REFERENCE else _looked(bench, training, exact=case.exact)
        row = looked.row(bench, plain)
        if looked.known is not None:
            row["equal_in_order"] = looked.known.distance(_in_order(bench, training, plain, serial)).equal
        found.rows["techniques"].append(row)
        for step, loss in zip(*curves.thinned(looked.trained.losses), strict=True):
            curve = {name: row[name] for name in ("data", "how", "case", "seed")}
            found.rows["curves"].append(curve | {"step": int(step), "loss": float(loss)})
    return plain


def _in_order(bench: Bench, training: Training, plain: Looked, serial: dict[tuple, Known]) -> Known:
    """The same micro-batches, one after the other; where a batch is not cut, that is the plain loop."""
    case = training.case
    if not compared.reordered(case):
        return plain.known
    key = case.flags.micro_batches, case.flags.clustering
    if key not in serial:
        trained = _trained(bench, Training(case.serial(), training.encoder, training.seed, training.dtype))
        serial[key] = Known(trained, bench.transport)
    return serial[key]


def _in_float64(bench: Bench, seed: int) -> Iterator[Figures]:
    """What adds sums in another order against the plain loop: how far weights and scores are, and whether a rank could
    differ. What keeps every sum has its bits in float32 already."""
    s = bench.settings
    plain, plain_scorer = _scored(bench, Training(compared.REFERENCE, s.model, seed, torch.float64))
    yield plain.row(bench, plain)
    for case in compared.in_float64(s.micro_batches):
        looked, own = _scored(bench, Training(case, s.model, seed, torch.float64))
        yield looked.row(bench, plain) | _bound(bench, looked, plain_scorer, own)


def _bound(bench: Bench, looked: Looked, plain: Scorer, own: Scorer) -> Figures:
    """Over the samples of all ranks."""
    held = HeldOut(looked.trained.sequences, bench.settings.heldout)
    found = bound(plain, own, torch.from_numpy(_places(held, _numbers(bench, held))))
    columns = torch.stack([found.difference, found.gap, found.ratio, (~found.proven).double()], dim=1)
    difference, gap, ratio, unproven = rows_of_all(bench.transport, columns).unbind(dim=1)
    return {
        "score_difference": float(difference.max()),
        "least_gap": float(gap.min()),
        "least_ratio": float(ratio.min()),
        "unproven": int(unproven.sum()),
    }


def _encoders(bench: Bench, seed: int, plain: Looked) -> Iterator[Figures]:
    """The plain trainings: the study's model and SASRec; in the first seeds every encoder, and popularity once."""
    about = {"real_pure": bench.dataset.info.kind == "real" and bench.dataset.info.id == f"kuairand-{PURE.key}"}
    if seed == bench.settings.seed:
        ranks = rank_by_popularity(plain.trained.sequences, protocol=PROTOCOL).ranks[: len(plain.ranks)]
        row = {"data": bench.dataset.info.title, "how": "measured", "model": POPULAR, "seed": seed, "weights": 0}
        yield row | retrieval_metrics(ranks) | {"seconds": 0.0, "samples": len(ranks)} | about
    s = bench.settings
    names = ENCODERS if seed - s.seed < s.exact_seeds else dict.fromkeys(("sasrec", s.model))
    for name in names:
        training = Training(compared.REFERENCE, name, seed)
        looked = plain if name == s.model else _looked(bench, training)
        yield looked.row(bench, looked) | about


def _looked(bench: Bench, training: Training, exact: bool = False) -> Looked:
    """Trained, and ranked as a user would. `exact`: its rows are kept, to be compared bit by bit."""
    trained = _trained(bench, training)
    held = HeldOut(trained.sequences, bench.settings.heldout)
    ranking = evaluate_retrieval(trained.pipeline, held, batch_size=LOOK, protocol=PROTOCOL)
    return Looked(training, trained, ranking.ranks, Known(trained, bench.transport) if exact else None)


def _scored(bench: Bench, training: Training) -> tuple[Looked, Scorer]:
    """Trained, and ranked without any rounding of states, rows and scores; the scorer is of this rank's samples."""
    trained = _trained(bench, training)
    known = Known(trained, bench.transport)
    held = HeldOut(trained.sequences, bench.settings.heldout)
    numbers = _numbers(bench, held)
    places = _places(held, numbers)
    left_out = seen_pairs(held.seen(HELDOUT, numbers), held.items, places)
    pairs = torch.from_numpy(left_out.samples), torch.from_numpy(left_out.places)
    own = scorer(trained, known, _slice(bench, held), pairs)
    ranks = rows_of_all(bench.transport, own.ranks(torch.from_numpy(places)).unsqueeze(1)).squeeze(1).numpy()
    return Looked(training, trained, ranks, known), own


def _trained(bench: Bench, training: Training) -> Trained:
    trained = train(bench, training)
    if bench.transport.mesh.rank == 0:  # in the run's logs: what was trained so far
        name = f"seed {training.seed}, {training.encoder}, {training.dtype}, {training.case.name}"
        print(f"{name}: loss {trained.losses[-1]:.4f}, {trained.seconds:.1f} s", flush=True)
    return trained


def _slice(bench: Bench, held: HeldOut) -> Loader:
    """This rank's samples."""
    mesh = bench.transport.mesh
    return held.batches(HELDOUT, LOOK).slice(mesh.rank, mesh.world_size)


def _numbers(bench: Bench, held: HeldOut) -> np.ndarray:
    """[n] int64: of this rank's samples in their part."""
    numbers = [batch.labels for batch in _slice(bench, held)]
    return torch.cat(numbers).long().numpy() if numbers else np.zeros(0, np.int64)


def _places(held: HeldOut, numbers: np.ndarray) -> np.ndarray:
    """[n] int64: where the targets of these samples are among the items."""
    return places_of(held.items, held.targets(HELDOUT)[numbers])
