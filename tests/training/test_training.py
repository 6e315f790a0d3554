"""Does it learn, is it the same every time, and can the result be compared byte by byte?"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nestlab import data
from nestlab.embedding import EmbeddingStore, TableConfig, optimizer
from nestlab.errors import UserError
from nestlab.models import DLRM, RecModel
from nestlab.pipeline import Pipeline
from nestlab.tracing import summary
from nestlab.training import FitConfig, TrainOptions, assemble, binary_metrics, export_model, fit, load_model
from nestlab.training.metrics import auc_interval

TWIN = TrainOptions(dataset="criteo-synth", rows=3_000, batch_size=256, evaluations=2)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Prepared data of these tests, away from the user's."""
    folder = tmp_path_factory.mktemp("prepared")
    before = os.environ.get("NESTLAB_PREPARED")
    os.environ["NESTLAB_PREPARED"] = str(folder)
    yield folder
    os.environ.pop("NESTLAB_PREPARED") if before is None else os.environ.update(NESTLAB_PREPARED=before)


@pytest.mark.data
def test_overfits_256_real_rows(real_data, prepared):
    """A model that cannot learn 256 rows by heart has a fault somewhere between ids and weights."""
    dataset = data.open_dataset("criteo-1tb", real_data)
    batches = list(dataset.batches("all", 256, limit=1)) * 120
    tables = [TableConfig(name, 16) for name in dataset.features]
    dense = DLRM(len(dataset.dense_names), dataset.features, 16)
    model = RecModel(EmbeddingStore(tables, optimizer("adagrad", lr=0.1)), dense)
    pipeline = Pipeline(model, torch.optim.Adam(dense.parameters(), lr=0.003))
    losses = [float(output.loss) for output in pipeline.run(batches)]
    metrics = binary_metrics(*pipeline.evaluate(batches[:1]))
    assert losses[0] > 0.1
    assert metrics["log_loss"] < 0.05
    assert metrics["auc"] > 0.99


def test_learns_the_planted_signal(prepared):
    """A tenth of `quick`: well above chance on rows never trained on."""
    recipe = assemble(TrainOptions(dataset="criteo-synth", rows=20_000, batch_size=256, evaluations=1))
    history = recipe.fit()
    assert history.evaluations[-1]["auc"] > 0.65


def test_every_look_and_step_is_in_the_history(prepared):
    recipe = assemble(TWIN)
    train = recipe.train
    history = fit(recipe.pipeline, train, recipe.judge, FitConfig(epochs=2, evaluations=3))
    steps = 2 * len(train)
    assert history.steps_frame()["step"].tolist() == list(range(1, steps + 1))
    assert history.samples == 2 * 2_400
    looks = history.evaluations_frame()["step"].tolist()
    assert looks == [-(-steps // 3), -(-2 * steps // 3), steps]
    assert history.metrics_frame()["which"].tolist() == ["final", "best AUC"]


def test_max_steps_may_end_inside_an_epoch(prepared):
    recipe = assemble(TWIN)
    history = fit(recipe.pipeline, recipe.train, recipe.judge, FitConfig(max_steps=13))
    assert len(history.losses) == 13


SCRIPT = """
import sys
from nestlab.training import TrainOptions, assemble, export_model
options = TrainOptions(dataset="criteo-synth", rows=2_000, batch_size=128, evaluations=1, executor=sys.argv[2])
recipe = assemble(options)
recipe.fit()
export_model(recipe.model, sys.argv[1])
"""


def run_fresh(folder: Path, executor: str, hash_seed: int) -> None:
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), executor],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
    )


def test_fresh_processes_give_equal_bytes(prepared, tmp_path):
    """Same seed, other hash seed, other executor: the same weights, states and dense parameters to the bit."""
    assemble(TrainOptions(dataset="criteo-synth", rows=2_000))  # made once, so that both read the same
    run_fresh(tmp_path / "a", "inline", 1)
    run_fresh(tmp_path / "b", "shuffled", 2)
    for name in ("tables.safetensors", "dense.safetensors", "model.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_another_seed_gives_other_weights(prepared):
    models = [assemble(TrainOptions(dataset="criteo-synth", rows=2_000, seed=seed)).model for seed in (0, 1)]
    first, second = (model.dense.bottom[0].weight for model in models)
    assert not torch.equal(first, second)


def test_export_replaces_as_a_whole_and_is_readable(prepared, tmp_path):
    recipe = assemble(TWIN)
    target = tmp_path / "export"
    export_model(recipe.model, target)
    fit(recipe.pipeline, recipe.train, recipe.judge, FitConfig(max_steps=2))
    export_model(recipe.model, target, {"seed": 0})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["export"]
    assert sorted(p.name for p in target.iterdir()) == ["dense.safetensors", "model.json", "tables.safetensors"]
    other = assemble(TWIN).model
    assert load_model(other, target)["seed"] == 0
    export_model(other, tmp_path / "again", {"seed": 0})
    assert all((tmp_path / "again" / p.name).read_bytes() == p.read_bytes() for p in target.iterdir())
    with pytest.raises(UserError, match="tables have rows already; give a new model"):
        load_model(recipe.model, target)
    with pytest.raises(UserError, match=r"'bottom.4.bias' is float32\[16\] there and float32\[8\] in the model"):
        load_model(assemble(replace(TWIN, dim=8)).model, target)
    with pytest.raises(UserError, match="trained with seed=0, and the model has seed=5"):
        load_model(assemble(replace(TWIN, seed=5)).model, target)
    with pytest.raises(UserError, match="no exported model in"):
        load_model(recipe.model, tmp_path)
    tables = load_file(target / "tables.safetensors")
    shapes = json.loads((target / "model.json").read_text())["shapes"]
    assert all(list(tensor.shape) == shapes[name] for name, tensor in tables.items())
    ids = tables["C3.ids"]
    assert (ids[1:] > ids[:-1]).all()
    weights = recipe.model.embedding.full_weight("C3", ids)
    assert torch.equal(torch.as_tensor(weights), tables["C3.weight"])


def test_export_never_removes_what_is_not_its_own(prepared, tmp_path, monkeypatch):
    recipe = assemble(TWIN)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    (tmp_path / "script.py").write_text("pass")
    monkeypatch.chdir(tmp_path / "thesis")
    for target in (tmp_path / "thesis", tmp_path / "script.py", "."):
        with pytest.raises(UserError, match="export: "):
            export_model(recipe.model, target)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["script.py", "thesis"]


def test_a_loss_that_is_no_number_ends_in_one_line(prepared):
    recipe = assemble(replace(TWIN, lr=1e30, dense_lr=1e30))
    with pytest.raises(UserError, match=r"the loss of step \d+ is (nan|inf)"):
        recipe.fit()


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_run_of_few_steps_has_a_trace(prepared, steps):
    recipe = assemble(replace(TWIN, max_steps=steps))
    recipe.fit()
    assert summary(recipe.trace())["steps"] >= 1


def test_evaluation_is_no_part_of_the_traced_time(prepared):
    """A look after every step: the trace holds steps alone, whatever the looks take."""
    recipe = assemble(replace(TWIN, max_steps=10, evaluations=10))
    recipe.fit()
    told = summary(recipe.trace())
    assert told["steps"] == 6
    assert told["exposed_overhead_share"] < 0.5


def test_metrics_by_hand():
    labels, predictions = np.array([1.0, 0.0, 1.0, 0.0]), np.array([0.9, 0.4, 0.35, 0.1])
    metrics = binary_metrics(labels, predictions)
    assert metrics["auc"] == 0.75  # 3 of the 4 pairs are in order
    expected = -np.mean(np.log([0.9, 0.6, 0.35, 0.9]))
    assert metrics["log_loss"] == pytest.approx(expected)
    assert metrics["ne"] == pytest.approx(expected / np.log(2))
    low, high = auc_interval(labels, predictions)
    assert 0.0 <= low <= 0.75 <= high <= 1.0


def test_metrics_without_a_value():
    for labels in (np.zeros(3), np.zeros(0)):
        assert np.isnan(binary_metrics(labels, np.full(len(labels), 0.2))["auc"])
        assert np.isnan(auc_interval(labels, np.full(len(labels), 0.2))).all()


def test_predictions_that_are_no_numbers_are_refused():
    """A step's loss is that of the model before the step: it may be finite where what was learnt is not."""
    with pytest.raises(UserError, match="metrics: a prediction is not finite; train with a smaller learning rate"):
        binary_metrics(np.array([0, 1]), np.array([0.5, np.nan]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("batch_size", 0), ("epochs", 0), ("dim", -1), ("executor", "streams"), ("evaluations", 0)),
        *(("clip_norm", -1.0), ("timeout", 0.0), ("max_steps", 0), ("rows", -5)),
        *(
            ("lr", 0.0),
            ("lr", math.nan),
            ("dense_lr", -1.0),
            ("dense_lr", math.inf),
            ("seed", -1),
            ("data_seed", 1 << 63),
        ),
    ],
)
def test_options_out_of_range_are_refused(name, value):
    with pytest.raises(UserError, match=name):
        TrainOptions(**{name: value})


def test_too_few_rows_to_train_on(prepared):
    recipe = assemble(TWIN)
    with pytest.raises(UserError, match="no batch"):
        fit(recipe.pipeline, [], [], FitConfig())
