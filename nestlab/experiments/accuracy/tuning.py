"""How the recipe was chosen: one plain training, looked at on the *validation* part after every epoch.

The validation part lies between the two borders in time; held-out samples lie behind the second one and are not read.
The recipe is one of a few tried: near the highest for HSTU within the epochs that the scale `quick` has time for, and
such that the rounding of float64 stays small. One before was given up after a whole study, whose held-out figures were
known when this one was chosen by those of the validation part (docs/log.md):

    from nestlab.experiments.accuracy import settings, tuning
    tuning.epochs(settings.settings("quick", data_root="…", world_size=1), "hstu")
"""

from __future__ import annotations

import pandas as pd

from nestlab import data
from nestlab.exchange import LocalTransport
from nestlab.experiments import compared
from nestlab.experiments.accuracy.encoders import POPULAR
from nestlab.experiments.accuracy.measuring import LOOK, PROTOCOL, named
from nestlab.experiments.accuracy.settings import ENCODERS, Settings
from nestlab.experiments.accuracy.training import Bench, Training, prepared
from nestlab.training.retrieval import evaluate_retrieval, rank_by_popularity

PART = "validation"


def epochs(settings: Settings, encoder: str, seed: int = 0) -> pd.DataFrame:
    """A row an epoch, on this process alone: model, epoch (0: popularity), loss, metrics of the validation part."""
    dataset = data.open_dataset(settings.dataset, settings.data_root, rows=settings.rows)
    ready = prepared(Bench(settings, dataset, LocalTransport()), Training(compared.REFERENCE, encoder, seed))
    popular = rank_by_popularity(ready.sequences, PART, PROTOCOL)
    rows = [{"model": POPULAR, "epoch": 0, "loss": None, **named(popular.metrics)}]
    for number in range(1, settings.epochs + 1):
        losses = [float(output.loss) for output in ready.pipeline.run(ready.loader)]
        looked = evaluate_retrieval(ready.pipeline, ready.sequences, PART, LOOK, PROTOCOL)
        row = {"model": ENCODERS[encoder], "epoch": number, "loss": sum(losses) / len(losses)}
        rows.append(row | named(looked.metrics))
    return pd.DataFrame(rows)
