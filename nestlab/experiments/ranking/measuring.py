"""What the ranks do, once: every training of the study, and what each predicts of the held-out rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nestlab.experiments import compared
from nestlab.experiments.accuracy.measuring import Measured
from nestlab.experiments.accuracy.training import Bench
from nestlab.experiments.accuracy.whole import Known
from nestlab.experiments.nestpipe.cases import Case
from nestlab.experiments.ranking.looking import CLICK, HeldOut, by_task, training_rate
from nestlab.experiments.ranking.settings import MODELS, MULTITASK, Settings
from nestlab.experiments.ranking.training import Trained, Training, batches_of, train
from nestlab.experiments.ranking.tuning import LOOK
from nestlab.experiments.ranks import joined

Figures = dict[str, Any]
CONSTANT = "constant"  # predicts of every row the training rows' rate
PARTS = ("models", "tasks", "techniques")


def measure(settings: Settings) -> Measured:
    """What a rank does; rank 0's result counts."""
    with joined(settings.device, "notebook 13_ranking") as transport:
        bench = Bench.on(settings, transport)
        try:
            return _measure(bench)
        finally:
            bench.close()


def _measure(bench: Bench) -> Measured:
    s, held = bench.settings, HeldOut(bench.dataset)
    found = Measured({part: [] for part in PARTS})
    for seed in range(s.seed, s.seed + s.seeds):
        with found.timed("models"):
            plain = _models(bench, held, seed, found)
        with found.timed("techniques in float32"):
            found.rows["techniques"] += _techniques(bench, held, plain)
        if seed - s.seed < s.exact_seeds:
            with found.timed("techniques in float64"):
                found.rows["techniques"] += _in_float64(bench, held, seed)
    found.trainings = len(bench.trained)
    return found


@dataclass(frozen=True)
class Looked:
    """A training and what it predicts: `predictions` [n] or [n, T] of all held-out rows, the same on every rank.

    Attributes:
        known: its weights and states, where they are to be compared.
    """

    training: Training
    trained: Trained
    predictions: np.ndarray
    known: Known | None = None

    def row(self, bench: Bench, held: HeldOut) -> Figures:
        """What every training is told by."""
        training = self.training
        row = {"data": bench.dataset.info.title, "how": "measured", "model": MODELS[training.model]}
        row |= {"case": training.case.name, "declared": training.case.flags.exactness()}
        row |= {"dtype": str(training.dtype).removeprefix("torch."), "seed": training.seed}
        row |= held.metrics(CLICK, by_task(training.model, self.predictions)[CLICK])
        last = len(self.trained.losses) // bench.settings.epochs
        dense = self.trained.pipeline.model.dense
        row |= {"loss": float(self.trained.losses[-last:].mean()), "seconds": self.trained.seconds}
        return row | {"weights": sum(value.numel() for value in dense.parameters())}

    def apart(self, reference: Looked) -> Figures:
        """How far it is from another training of the same seed and dtype."""
        row = {
            "changed": int((self.predictions != reference.predictions).reshape(len(self.predictions), -1).any(1).sum())
        }
        if self.known is not None and reference.known is not None:
            far = self.known.distance(reference.known)
            row |= {"weight_difference": far.largest, "equal_to_plain": far.equal}
        return row


def _models(bench: Bench, held: HeldOut, seed: int, found: Measured) -> Looked:
    """The plain training of every model, and a constant; the one that techniques are compared with."""
    if seed == bench.settings.seed:
        found.rows["models"].append(_constant(bench, held, seed))
    plain = None
    for name in MODELS:
        looked = _looked(bench, Training(compared.REFERENCE, name, seed), exact=name == MULTITASK)
        predictions = by_task(name, looked.predictions)
        row = looked.row(bench, held)
        if seed == bench.settings.seed:
            row |= held.interval(CLICK, predictions[CLICK])
        found.rows["models"].append(row)
        if len(predictions) > 1:
            found.rows["tasks"] += _tasks(row, held, predictions)
        plain = looked if name == MULTITASK else plain
    assert plain is not None
    return plain


def _constant(bench: Bench, held: HeldOut, seed: int) -> Figures:
    rate = training_rate(bench.dataset)
    predictions = np.full(len(held.users), rate, np.float32)
    row = {"data": bench.dataset.info.title, "how": "measured", "model": CONSTANT, "case": compared.PLAIN}
    return row | {"seed": seed, **held.metrics(CLICK, predictions), "seconds": 0.0, "weights": 0}


def _tasks(row: Figures, held: HeldOut, predictions: Mapping[str, np.ndarray]) -> Iterator[Figures]:
    """A row an action."""
    told = {name: row[name] for name in ("data", "how", "model", "seed")}
    for task, own in predictions.items():
        yield told | {"task": task, **held.metrics(task, own)}


def _techniques(bench: Bench, held: HeldOut, plain: Looked) -> Iterator[Figures]:
    """Every technique in float32, beside the plain training of the same seed."""
    yield plain.row(bench, held) | plain.apart(plain)
    for case in techniques(bench.settings):
        looked = _looked(bench, Training(case, MULTITASK, plain.training.seed), exact=case.exact)
        yield looked.row(bench, held) | looked.apart(plain)


def _in_float64(bench: Bench, held: HeldOut, seed: int) -> Iterator[Figures]:
    """What adds sums in another order. What keeps every sum has the plain loop's bits in float32 already."""
    plain = _looked(bench, Training(compared.REFERENCE, MULTITASK, seed, torch.float64), exact=True)
    yield plain.row(bench, held) | plain.apart(plain)
    for case in filter(compared.reordered, compared.exact(bench.settings.micro_batches)):
        looked = _looked(bench, Training(case, MULTITASK, seed, torch.float64), exact=True)
        yield looked.row(bench, held) | looked.apart(plain)


def techniques(settings: Settings) -> list[Case]:
    """Exact ones first; of the inexact ones those that leave the tables as they are."""
    inexact = compared.inexact(settings.world_size, tt_rank=1)
    return [*compared.exact(settings.micro_batches), *(c for c in inexact if c.name in (compared.STALE, compared.INT8))]


def _looked(bench: Bench, training: Training, exact: bool = False) -> Looked:
    """Trained, and all held-out rows predicted. `exact`: its weights are kept, to be compared bit by bit."""
    trained = train(bench, training)
    mesh = bench.transport.mesh
    if mesh.rank == 0:  # in the run's logs: what was trained so far
        name = f"seed {training.seed}, {training.model}, {training.dtype}, {training.case.name}"
        print(f"{name}: loss {trained.losses[-1]:.4f}, {trained.seconds:.1f} s", flush=True)
    loader = batches_of(training.model, bench.dataset, "heldout", LOOK, history=bench.settings.history)
    predictions = trained.pipeline.evaluate(loader.slice(mesh.rank, mesh.world_size))[1]
    return Looked(training, trained, predictions, Known(trained, bench.transport) if exact else None)
