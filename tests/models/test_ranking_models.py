"""Ranking models by name: tables and batches that fit, what is refused, and Criteo without histories."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import nestlab.data as data
from nestlab.data.kuairand_format import ACTIONS
from nestlab.errors import UserError
from nestlab.models import ranking_batches, ranking_model
from nestlab.models.ranking import RANKING, TASKS, ranking_tables
from nestlab.pipeline import Inline, Pipeline
from nestlab.techniques import Techniques

sys.path.insert(0, str(Path(__file__).parent.parent / "data"))
import kuairand_oracle as oracle

HELD = 5


@pytest.fixture(scope="module")
def kuairand(tmp_path_factory):
    root = tmp_path_factory.mktemp("rows")
    oracle.write_log(root, oracle.made_rows(120, users=6))
    return data.open_dataset("kuairand-pure", root, prepared=root / "prepared")


@pytest.fixture(scope="module")
def criteo(tmp_path_factory):
    root = tmp_path_factory.mktemp("criteo")
    return data.open_dataset("criteo-synth", root, rows=300, prepared=root / "prepared")


def pipeline_of(model) -> Pipeline:
    return Pipeline(model, torch.optim.Adam(model.dense.parameters(), 0.01), Techniques(), executor=Inline())


def rows_in(model, table: str) -> int:
    return len(model.embedding.export(table)["ids"])


@pytest.mark.parametrize("name", RANKING)
def test_tables_labels_and_heads_fit_the_batches(kuairand, name):
    kind, loader = RANKING[name], ranking_batches(name, kuairand, "train", 32, history=HELD)
    batch = next(iter(loader))
    tables = ranking_tables(name, kuairand, 4)
    read = [feature for table in tables for feature in table.features]
    assert sorted(read) == sorted(set(batch.features) - {"hist_gap_ms"})
    model = ranking_model(name, kuairand, dim=4, history=HELD)
    predictions = pipeline_of(model).evaluate([batch])[1]
    assert predictions.shape == ((32, len(TASKS)) if kind.tasks else (32,))
    assert ((predictions > 0) & (predictions < 1)).all()
    masks = batch.labels.long()
    assert (masks.max() > 1) == kind.tasks and dict(TASKS) == ACTIONS
    if kind.history:
        longest = int(batch.feature_lengths()[batch.features.index("hist_video_id")].max())
        assert longest == HELD


@pytest.mark.parametrize("name", RANKING)
def test_weights_follow_the_seed_alone(kuairand, name):
    made = [ranking_model(name, kuairand, dim=4, history=HELD, seed=seed) for seed in (1, 1, 2)]
    for weights in zip(*(model.dense.parameters() for model in made), strict=True):
        assert torch.equal(weights[0], weights[1])
    first, other = (torch.cat([w.flatten() for w in made[at].dense.parameters()]) for at in (0, 2))
    assert not torch.equal(first, other)
    ids = np.array([-5, 0, 1 << 40])
    first, again, other = (model.embedding.full_weight("user_id", ids) for model in made)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_candidates_and_events_share_rows(kuairand):
    """Broken on purpose: a table of its own for `hist_video_id`; only candidates have rows then, and the attention
    compares vectors of two spaces."""
    model = ranking_model("din", kuairand, dim=4, history=HELD)
    last = list(ranking_batches("din", kuairand, "train", 3, history=HELD))[-1]
    for _ in pipeline_of(model).run([last]):
        pass
    candidates, events = (set(ids_of(last, name)) for name in ("video_id", "hist_video_id"))
    assert events - candidates and rows_in(model, "video_id") == len(candidates | events)


def ids_of(batch, feature: str) -> list[int]:
    counts = batch.feature_lengths().sum(1).tolist()
    return batch.ids.split(counts)[batch.features.index(feature)].tolist()


def test_crosses_learn_on_criteo(criteo):
    model, loader = ranking_model("dcnv2", criteo, dim=4), ranking_batches("dcnv2", criteo, "train", 60)
    pipeline = pipeline_of(model)
    losses = [float(output.loss) for _ in range(3) for output in pipeline.run(loader)]
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) and next(iter(loader)).features == criteo.features


@pytest.mark.parametrize("name", [name for name, kind in RANKING.items() if kind.history])
def test_a_data_set_without_histories_is_refused(criteo, name):
    for make in (lambda: ranking_model(name, criteo), lambda: ranking_batches(name, criteo, "train", 8)):
        with pytest.raises(UserError, match=f"'{name}': 'criteo-synth' has no histories of users; take a KuaiRand"):
            make()
    with pytest.raises(UserError, match="sequences: 'criteo-synth' has no histories of users; take a KuaiRand"):
        criteo.sequences()


def test_what_makes_no_sense_is_refused(kuairand):
    with pytest.raises(UserError, match="ranking model 'sim': choose one of dcnv2, din, multitask, multitask_hstu"):
        ranking_model("sim", kuairand)
    with pytest.raises(UserError, match="history=0: choose 1 or more events, or dcnv2"):
        ranking_batches("din", kuairand, "train", 8, history=0)
    with pytest.raises(UserError, match="a window of 6 events; the longest is 4"):
        model = ranking_model("multitask_hstu", kuairand, dim=4, history=3)
        loader = ranking_batches("multitask_hstu", kuairand, "train", 32, history=HELD)
        pipeline_of(model).evaluate(list(loader))
    with pytest.raises(UserError, match="ranking_batches: no option 'shufle'; did you mean 'shuffle'"):
        ranking_batches("din", kuairand, "train", 8, shufle=True)
    with pytest.raises(UserError, match="batches: no option 'lable'; did you mean 'label'"):
        kuairand.batches("train", 8, lable="is_like")


def test_attention_takes_any_number_of_events(kuairand):
    """It has no place of an event: a longer history than the model was asked for is the longer one's sum."""
    loader = list(ranking_batches("din", kuairand, "train", 32, history=HELD))
    short, fitting = (ranking_model("din", kuairand, dim=4, history=n) for n in (1, HELD))
    assert (pipeline_of(short).evaluate(loader)[1] == pipeline_of(fitting).evaluate(loader)[1]).all()
