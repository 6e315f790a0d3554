"""The study as a notebook runs it: the ranks train once, each part shows some of it, and all is one run."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from nestlab import data, results
from nestlab.experiments.answering import Answering
from nestlab.experiments.histories import needs_histories
from nestlab.experiments.parts import Part
from nestlab.experiments.placing import place
from nestlab.experiments.ranking import measuring
from nestlab.experiments.ranking.settings import MODELS, MULTITASK, settings
from nestlab.experiments.tables import Said
from nestlab.experiments.trained_once import TrainedOnce

NOTEBOOK = "notebooks/13_ranking.ipynb"
ELSEWHERE = tuple(f"RL-P-{number:03d}" for number in range(87, 93))  # figures of the register on ranking


@dataclass(eq=False)
class Study(TrainedOnce):
    """The parts done so far. `run` is open until `finish()`.

    Attributes:
        rows_of: how many rows are trained on, and how many are held out.
    """

    name = "ranking"
    package = "nestlab.experiments.ranking"
    parts = {  # noqa: RUF012
        "models": Part("Five models trained plainly, and what each predicts of clicks"),
        "tasks": Part("Eight actions predicted at once, by two models: bars from what a constant comes to"),
        "techniques": Part("What each technique changes of the clicks' metrics, against the plain loop"),
    }
    answering = Answering(NOTEBOOK)
    work = staticmethod(measuring.measure)
    elsewhere = ELSEWHERE
    smoke_says = (
        "This is a smoke run: it shows that everything runs. Its few rows teach a model nothing: its metrics mean "
        "nothing, and nothing is concluded from them. For that take scale quick or paper."
    )
    smoke_notes = ("SMOKE: metrics mean nothing", "Smoke: metrics mean nothing.")

    rows_of: tuple[int, int] = (0, 0)

    def about(self) -> Said:
        """What is trained on, and by which protocol."""
        s, (train, held) = self.settings, self.rows_of
        text = (
            f"{self.title}; {s.world_size} rank(s), {s.seeds} seed(s), scale `{self.scale}`. The rows in the order of "
            f"time: the first {train:,} are trained on, {s.epochs} epoch(s), and all of the last {held:,} are "
            f"predicted. A sample has at most {s.history} of the user's events before it."
        )
        return self.warned(text)


def ranking(
    *,
    dataset: str = "kuairand",
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
        UserError: an unknown scale, backend or data set, data without histories, real data asked for by name but
            absent, or no device for each rank.
    """
    where = place("ranking", device_name, backend, world_size)
    told = {"dataset": dataset, "data_root": str(data_root), "seed": seed}
    chosen = settings(scale, **told, device=where, world_size=world_size)
    opened = data.open_dataset(chosen.dataset, chosen.data_root, rows=chosen.rows)
    needs_histories("ranking", opened)
    params = {**asdict(chosen), "scale": scale, "backend": backend, "models": list(MODELS), "techniques_of": MULTITASK}
    run = results.start("ranking", params, results_dir=results_dir, seed=seed)
    run.dataset(opened.info)
    borders = [opened.rows(split) for split in ("train", "heldout")]
    train, held = (end - first for first, end in borders)
    run.protocol(split="the last fifth of the rows, by time", heldout=held, gauc="by user, weighted by rows")
    return Study(chosen, opened.info.title, run, scale, rows_of=(train, held))
