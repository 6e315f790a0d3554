"""The study as a notebook runs it: the ranks train once, each part shows some of it, and all is one run."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pandas as pd

from nestlab import data, results
from nestlab.data import DatasetInfo
from nestlab.experiments.accuracy import claims, encoders, exactness, measuring
from nestlab.experiments.accuracy.settings import ENCODERS, settings
from nestlab.experiments.accuracy.training import sequence_options
from nestlab.experiments.histories import needs_histories
from nestlab.experiments.parts import Part
from nestlab.experiments.placing import place
from nestlab.experiments.tables import Said
from nestlab.experiments.trained_once import TrainedOnce


@dataclass(eq=False)
class Study(TrainedOnce):
    """The parts done so far. `run` is open until `finish()`.

    Attributes:
        sequences: what the samples are.
    """

    name = "accuracy"
    package = "nestlab.experiments.accuracy"
    parts = {  # noqa: RUF012
        "techniques": Part("What each technique changes of the ranking metrics, against the plain loop"),
        "exactness": Part("How far exact techniques are from the plain loop after the whole training"),
        "curves": Part("Training loss, and how far each technique's curve is from the plain loop's"),
        "encoders": Part("Three encoders, trained plainly, and popularity"),
    }
    answering = claims.ANSWERING
    work = staticmethod(measuring.measure)
    elsewhere = encoders.ELSEWHERE
    smoke_says = (
        "This is a smoke run: it shows that everything runs. Its few rows teach a model nothing: its metrics mean "
        "nothing, and it answers no claim. For those take scale quick or paper."
    )
    smoke_notes = ("SMOKE: metrics mean nothing", "Smoke: metrics mean nothing.")
    told_at_smoke = ("exactness", "curves")

    sequences: DatasetInfo | None = None

    def about(self) -> Said:
        """What is trained on, by which protocol, and what may be concluded."""
        s, info = self.settings, self.sequences
        text = (
            f"{self.title}; {ENCODERS[s.model]}, {s.world_size} rank(s), {s.seeds} seed(s), scale `{self.scale}`. "
            f"{info.counts['users']:,} users, {info.counts['items']:,} items, {info.counts['samples_train']:,} windows "
            f"to train on, {info.counts['samples_heldout']:,} held-out samples. Protocol: {info.convention}."
        )
        return self.warned(text)

    def measured(self, part: str) -> pd.DataFrame:
        """What the ranks measured of a part; what is exact follows from the trainings of the techniques."""
        return exactness.joined(self.frame("techniques")) if part == "exactness" else super().measured(part)


def accuracy(
    *,
    dataset: str = "kuairand",
    model: str = "hstu",
    data_root: str = "datasets",
    scale: str = "quick",
    device_name: str = "auto",
    backend: str = "gloo",
    world_size: int = 2,
    seed: int = 0,
    results_dir: str = "results",
) -> Study:
    """Opens a run; the trainings begin when something of them is first asked for.

    Raises:
        UserError: an unknown scale, model, backend or data set, data without histories, real data asked for by name but
            absent, or no device for each rank.
    """
    where = place("accuracy", device_name, backend, world_size)
    told = {"dataset": dataset, "model": model, "data_root": str(data_root), "seed": seed}
    chosen = settings(scale, **told, device=where, world_size=world_size)
    opened = data.open_dataset(chosen.dataset, chosen.data_root, rows=chosen.rows)
    needs_histories("accuracy", opened)
    sequences = opened.sequences(sequence_options(chosen, seed))
    params = {**asdict(chosen), "scale": scale, "backend": backend}
    run = results.start("accuracy", params, results_dir=results_dir, seed=seed)
    run.dataset(sequences.info)
    run.protocol(
        **measuring.PROTOCOL.facts,
        split=sequences.options.split,
        heldout=measuring.HeldOut(sequences, chosen.heldout).count,
    )
    return Study(chosen, opened.info.title, run, scale, sequences=sequences.info)
