"""The loop around the pipeline: train, evaluate and save now and then, keep the curve."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from nestlab import data
from nestlab.batch import Batch
from nestlab.data import Position
from nestlab.errors import UserError
from nestlab.pipeline import Pipeline, StepOutput
from nestlab.training.checkpoint import Checkpoints
from nestlab.training.history import History
from nestlab.training.looks import ClickJudge, Judge
from nestlab.training.state import State

__all__ = ["FitConfig", "History", "Loader", "Report", "Saving", "fit"]


class Loader(Protocol):
    """A re-iterable source of batches that knows its length."""

    def __iter__(self) -> Iterator[Batch]: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class FitConfig:
    """How long to train and how often to look.

    Args:
        epochs: passes over the training batches.
        max_steps: stop after so many steps; None: when the epochs are over.
        evaluations: how many times held-out data are looked at, evenly spread, the last one at the end.
    """

    epochs: int = 1
    max_steps: int | None = None
    evaluations: int = 4

    def __post_init__(self) -> None:
        for name in ("epochs", "evaluations", "max_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"fit: {name}={value}: it must be at least 1")

    def steps(self, batches: int) -> int:
        """Steps in all, for a training split of so many batches."""
        return batches * self.epochs if self.max_steps is None else self.max_steps

    def looks(self, batches: int) -> list[int]:
        """The steps after which held-out data are looked at, ascending, the last step among them."""
        total = self.steps(batches)
        return sorted({math.ceil(total * (i + 1) / self.evaluations) for i in range(self.evaluations)})


@dataclass(frozen=True)
class Saving:
    """Where a training is saved, and where it goes on from; None: nowhere, and from the start.

    `history`: an empty curve that grows while `fit` trains, so that others can see how far it is; that of `begin`
    where there is one; None: a new one each time.
    """

    checkpoints: Checkpoints | None = None
    begin: State | None = None
    history: History | None = None

    def __post_init__(self) -> None:
        if self.begin is not None:
            object.__setattr__(self, "history", self.begin.history)

    @property
    def saved_step(self) -> int | None:
        """The step of the newest checkpoint; None: there is none."""
        history = self.history or History()
        return history.saves[-1]["step"] if history.saves else history.before or None


Report = Callable[[str], None]


def fit(
    pipeline: Pipeline,
    train: Loader,
    heldout: Loader | Judge,
    config: FitConfig | None = None,
    report: Report = lambda line: None,
    saving: Saving | None = None,
) -> History:
    """Trains and evaluates; evaluation changes nothing that training sees.

    Looks and saves come after the same steps under every schedule: what looks ahead is given batches up to there alone,
    so that nothing is in flight then.

    With several ranks every rank calls it, each with its own slices; the curve is the same on all. Time spent in
    evaluations and saves does not count in `train_seconds`.

    Args:
        heldout: batches of clicks, or what else a model is judged by.
        saving: steps count from the start of the training, whatever process made them: a training that is continued
            does what is left of `config`.

    Raises:
        UserError: there is nothing to train on, the loss is no finite number, a save fails, or the curve so far was
            judged by something else.
    """
    config, saving = config or FitConfig(), saving or Saving()
    if len(train) == 0:
        raise UserError("fit: the training split has no batch; use more rows or a smaller batch_size")
    judge = heldout if isinstance(heldout, Judge) else ClickJudge(heldout)
    loop = _Loop(pipeline, train, judge, config, report, saving)
    while loop.step < loop.total:
        loop.epoch(iter(train))
    return loop.end()


class _Loop:
    """One fit: where it is, and what it has seen."""

    def __init__(
        self,
        pipeline: Pipeline,
        train: Loader,
        judge: Judge,
        config: FitConfig,
        report: Report,
        saving: Saving,
    ) -> None:
        self.pipeline, self.train, self.judge, self.report = pipeline, train, judge, report
        self.checkpoints = saving.checkpoints
        self.history = History() if saving.history is None else saving.history
        self.history.best, self.history.shown = judge.best, judge.shown
        self.total = config.steps(len(train))
        if self.step > self.total:
            raise UserError(f"fit: {self.step} steps are trained already, and {self.total} asked for; give more")
        self.looks = [look for look in config.looks(len(train)) if look > self.step]
        self.position = self._begin(saving.begin)
        self._saved_at = self.step
        self._before = self.history.train_seconds
        self._started, self._elsewhere = time.perf_counter(), 0.0

    @property
    def step(self) -> int:
        return self.history.step

    def epoch(self, batches: Iterator[Batch]) -> None:
        """What is left of one, in passes of the pipeline, each up to the next look or save."""
        began, done = self.step, self.position.batch if isinstance(self.train, data.Loader) else 0
        end = min(began + len(self.train) - done, self.total)
        while self.step < end:
            stop = min(self._next_pause(), end)
            for output in self.pipeline.run(islice(batches, stop - self.step)):
                self._add(output)
            if self.step < stop:  # there were fewer than it says
                break
            self._pause()
        if self.step == began:
            raise UserError(f"fit: the training split says that it has {len(self.train)} batches, and gives none")

    def end(self) -> History:
        """Where nothing was left to train, what was trained is looked at all the same."""
        self._count_seconds()
        looks = self.history.evaluations
        if not looks or looks[-1]["step"] < self.step:
            self._evaluate()
        elif self.history.last_look is None:
            self.history.last_look = self.judge.look(self.pipeline).outputs
        return self.history

    def _begin(self, begin: State | None) -> Position:
        """Where the first batch is taken from."""
        if isinstance(self.train, data.Loader):
            if begin is not None:
                self.train.begin_at(begin.position)
            return self.train.start
        if begin is not None or self.checkpoints is not None:
            raise UserError("fit: checkpoints need a nestlab.data.Loader, which can begin anywhere; give one")
        return Position()

    def _add(self, output: StepOutput) -> None:
        loss = float(output.loss)
        if not math.isfinite(loss):
            raise UserError(f"fit: the loss of step {self.step + 1} is {loss}; use a smaller lr, or look at the labels")
        self.history.add(loss, self._samples(output))
        self.position = self.position.after(1, len(self.train))

    def _samples(self, output: StepOutput) -> int:
        """Of the global batch: a rank sees its own slice alone."""
        if isinstance(self.train, data.Loader):
            return self.train.samples_of(self.position.batch)
        return output.labels.shape[0]

    def _look_is_due(self) -> bool:
        return bool(self.looks) and self.step >= self.looks[0]

    def _save_is_due(self) -> bool:
        if self.checkpoints is None or self.step == self._saved_at:
            return False
        every = self.checkpoints.every
        return self.step // every > self._saved_at // every or self.step >= self.total

    def _next_pause(self) -> int:
        """The step after which there is something else to do."""
        every = self.checkpoints.every if self.checkpoints is not None else self.total
        return min((self._saved_at // every + 1) * every, self.total, *self.looks[:1])

    def _pause(self) -> None:
        self._count_seconds()
        started = time.perf_counter()
        if self._look_is_due():
            self._evaluate()
        if self._save_is_due():
            self._save()
        self._elsewhere += time.perf_counter() - started

    def _save(self) -> None:
        saved = self.checkpoints.save(State(self.position, self.history))
        self.history.saves.append(saved)
        self._saved_at = self.step
        self.report(f"step {self.step}: checkpoint written in {saved['seconds']:.2f} s")

    def _count_seconds(self) -> None:
        self.history.train_seconds = self._before + time.perf_counter() - self._started - self._elsewhere

    def _evaluate(self) -> None:
        self.looks = [look for look in self.looks if look > self.step]
        look = self.judge.look(self.pipeline)
        self.history.last_look = look.outputs
        self._add_look({"step": self.step, **look.metrics})
        recent = np.mean([loss for _, loss, _ in self.history.losses[-20:]])
        self.report(f"step {self.step}: train loss {recent:.4f}; held out: {self.judge.told(look.metrics)}")

    def _add_look(self, row: dict[str, float]) -> None:
        """A curve that a version saved which had fewer metrics goes on, without them so far."""
        looks = self.history.evaluations
        if looks and looks[0].keys() < row.keys():
            looks[:] = [{name: look.get(name, math.nan) for name in row} for look in looks]
        if looks and looks[0].keys() != row.keys():
            before, now = (", ".join(name for name in each if name != "step") for each in (looks[0], row))
            raise UserError(f"fit: the curve so far has {before}, and this look {now}; judge by what it was judged by")
        looks.append(row)
