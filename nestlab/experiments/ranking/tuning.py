"""How the recipe was chosen: one plain training of each model, looked at after every epoch on the newest fifth of the
*training* rows. What is held out is not read.

    from nestlab.experiments.ranking import settings, tuning
    tuning.epochs(settings.settings("quick", data_root="…", world_size=1, epochs=3), "din")
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pandas as pd

from nestlab import data
from nestlab.data import Dataset
from nestlab.exchange import LocalTransport
from nestlab.experiments import compared
from nestlab.experiments.accuracy.training import Bench
from nestlab.experiments.ranking.looking import CLICK, HeldOut, by_task
from nestlab.experiments.ranking.settings import MODELS, Settings
from nestlab.experiments.ranking.training import Training, batches_of, prepared

LOOK = 2048  # samples of a batch that is only predicted


def training_rows(dataset: Dataset) -> Dataset:
    """The training rows as if there were no others: their own last fifth is its `heldout`."""
    cut = copy.copy(dataset)
    cut.info = replace(dataset.info, rows=dataset.rows("train")[1])
    return cut


def epochs(settings: Settings, model: str, seed: int = 0) -> pd.DataFrame:
    """A row an epoch, on this process alone: model, epoch, training loss, metrics of clicks on the validation rows."""
    s = settings
    dataset = training_rows(data.open_dataset(s.dataset, s.data_root, rows=s.rows))
    pipeline = prepared(Bench(s, dataset, LocalTransport()), Training(compared.REFERENCE, model, seed))
    train, look = (
        batches_of(model, dataset, split, size, history=s.history, **order)
        for split, size, order in (
            ("train", s.batch_size, {"shuffle": True, "seed": seed}),
            ("heldout", LOOK, {}),
        )
    )
    held, rows = HeldOut(dataset), []
    for number in range(1, s.epochs + 1):
        losses = [float(output.loss) for output in pipeline.run(train)]
        predictions = by_task(model, pipeline.evaluate(look)[1])[CLICK]
        row = {"model": MODELS[model], "epoch": number, "loss": sum(losses) / len(losses)}
        rows.append(row | held.metrics(CLICK, predictions))
    return pd.DataFrame(rows)
