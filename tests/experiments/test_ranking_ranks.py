"""The trainings of the ranking study on two ranks: what is exact, what is not, and rows in their order."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from nestlab.experiments.accuracy.training import Bench
from nestlab.experiments.compared import INT8, PLAIN, REFERENCE, STALE
from nestlab.experiments.over_seeds import FLOAT32, FLOAT64, differences
from nestlab.experiments.ranking import measuring
from nestlab.experiments.ranking.looking import CLICK, METRICS, HeldOut
from nestlab.experiments.ranking.measuring import CONSTANT
from nestlab.experiments.ranking.settings import MODELS, Settings, settings
from nestlab.experiments.ranking.techniques import TOLERANCE
from nestlab.experiments.ranking.training import Training, batches_of, train
from nestlab.models.ranking import TASKS

# Slow: the notebook's smoke run takes the same path in every `make test`.
pytestmark = [pytest.mark.dist, pytest.mark.slow]


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Settings:
    """Prepared once, so that ranks find it."""
    from nestlab import data

    root, prepared = (str(tmp_path_factory.mktemp(name)) for name in ("data", "prepared"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTLAB_PREPARED", prepared)
        found = settings("smoke", dataset="kuairand-synth", data_root=root)
        data.open_dataset(found.dataset, found.data_root, rows=found.rows)
        yield replace(found, batch_size=100)


def bench_of(transport, chosen: Settings, prepared: str) -> Bench:
    os.environ["NESTLAB_PREPARED"] = prepared
    return Bench.on(chosen, transport)


def everything(transport, chosen: Settings, prepared: str) -> dict[str, pd.DataFrame]:
    bench = bench_of(transport, chosen, prepared)
    try:
        return {part: pd.DataFrame(rows) for part, rows in measuring._measure(bench).rows.items()}
    finally:
        bench.close()


@pytest.fixture(scope="module")
def measured(small, ranks) -> dict[str, pd.DataFrame]:
    one, other = ranks.run(everything, small, os.environ["NESTLAB_PREPARED"])
    for part in one:
        told = [name for name in one[part] if name != "seconds"]
        assert one[part][told].equals(other[part][told])
    return one


def test_every_model_action_and_technique_is_there(measured):
    assert measured["models"]["model"].tolist() == [CONSTANT, *MODELS.values()]
    assert measured["tasks"]["task"].tolist() == [*TASKS, *TASKS]
    single = measured["techniques"][measured["techniques"]["dtype"] == FLOAT32]
    assert single["case"].tolist()[0] == PLAIN and single["case"].tolist()[-2:] == [STALE, INT8]
    plain, model = single.iloc[0], measured["models"].set_index("model").loc[MODELS["multitask"]]
    assert plain["AUC"] == model["AUC"] and measured["tasks"].iloc[0]["AUC"] == model["AUC"]


def test_exact_is_exact_and_inexact_is_not(measured):
    frame = measured["techniques"]
    apart = differences(frame, METRICS).set_index(["case", "dtype"])
    assert apart.loc[("DBP", FLOAT32), "equal_to_plain"]
    double = apart.xs(FLOAT64, level="dtype")
    assert len(double) == 3 and double["weight_difference"].between(0, TOLERANCE, inclusive="right").all()
    inexact = apart[apart["declared"].str.startswith("inexact")]
    assert len(inexact) == 2 and (inexact["changed"] > 0).all()


def two_ways(transport, chosen: Settings, prepared: str) -> tuple[np.ndarray, ...]:
    bench = bench_of(transport, chosen, prepared)
    try:
        pipeline = train(bench, Training(REFERENCE, "din", 0)).pipeline
        loader = batches_of("din", bench.dataset, "heldout", 64, history=chosen.history)
        mesh = transport.mesh
        return *pipeline.evaluate(loader.slice(mesh.rank, mesh.world_size)), HeldOut(bench.dataset).labels(CLICK)
    finally:
        bench.close()


def test_slices_of_two_ranks_join_in_the_order_of_the_rows(small, ranks):
    """What would break it: users beside predictions of other rows, where ranks are joined after the last batch."""
    labels, predictions, expected = ranks.run(two_ways, small, os.environ["NESTLAB_PREPARED"])[0]
    assert np.array_equal(labels, expected) and len(predictions) == len(labels)
