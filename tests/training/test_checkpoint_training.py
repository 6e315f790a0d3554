"""A training that is saved, killed and continued is the one that was never disturbed, to the bit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from killed_writes import Killed, killed_at
from saved_training import Noisy, Training, assert_equal, curve
from torch import nn

from nestlab.data import Position
from nestlab.embedding import checkpoint as tables
from nestlab.errors import UserError
from nestlab.pipeline import Inline, Lanes, Shuffled
from nestlab.training import Checkpoints, FitConfig, State, fit, restore, save
from nestlab.training.checkpoint import step_of

WAYS = [
    ("", Inline()),
    ("device_tier=dual_buffer,pipeline_depth=5", Lanes()),
    ("device_tier=slot_cache,cache_slots=0.9,cache_policy=oracle,look_ahead=3,pipeline_depth=3", Inline()),
    ("device_tier=slot_cache,cache_slots=70,pipeline_depth=4,evict=age,evict_after=4,evict_every=10", Shuffled(3)),
]


@pytest.mark.parametrize("killed_at_load", [8, 17])
@pytest.mark.parametrize(("techniques", "executor"), WAYS, ids=["plain", "dual", "oracle", "evict"])
def test_killed_and_continued_it_is_the_same(techniques, executor, killed_at_load, tmp_path):
    """Whatever tier and depth, in the first epoch and in the third; what was trained since the last save is lost.

    Broken on purpose: the position one further, or put down as the epoch's start; the random generator, the dense
    parameters, the optimizer's state, the buffers, the tables' step number not restored; saved without a drain. Each
    failed.
    """
    whole = Training(None, techniques, executor)
    expected = whole.fit(20)
    first = Training(tmp_path, techniques, executor, killed_at_load=killed_at_load)
    with pytest.raises(Killed):
        first.fit(20)
    torch.manual_seed(5)  # another process has another generator
    second = Training(tmp_path, techniques, executor, restart=True)
    begin = second.saving.begin.history.step
    assert 3 <= begin <= killed_at_load and second.saving.begin.position == Position(begin // 8, begin % 8)
    history = second.fit(20)
    assert_equal(second.everything(), whole.everything())
    assert history.losses == expected.losses and history.samples == expected.samples == 304
    assert history.own_steps == 20 - begin
    assert curve(history) == curve(expected)  # looks come after the same steps under every schedule


def test_a_save_killed_at_any_operation_leaves_one_whole_training(tmp_path):
    """Tables, weights, optimizer and position are all of the save before, or all of the new one.

    Broken on purpose: the training's state made valid after the tables, by another manifest; what the save before named
    removed ahead of the manifest. Each failed.
    """
    training, before = Training(tmp_path / "before"), tmp_path / "before"
    training.fit(6)
    point = training.model.embedding.save_point
    states = {6: training.everything()}
    checkpoints, training.saving = training.saving.checkpoints, replace(training.saving, checkpoints=None)
    history = training.fit(2)
    state = State(Position(1, 0), replace(history, losses=[(i + 1, 0.5, 16) for i in range(8)]))
    states[8] = training.everything()
    whole = shutil.copytree(before, tmp_path / "whole")
    with killed_at(0) as operations:
        replace(checkpoints, folder=whole).save(state)
    assert len(operations) > 25 and set(operations) >= {"write", "fsync", "rename", "replace", "mkdir", "unlink"}
    outcomes = []
    for number in range(1, len(operations) + 1):
        folder = shutil.copytree(before, tmp_path / f"killed-{number}")
        training.model.embedding.save_point = point
        torch.set_rng_state(torch.from_numpy(states[8]["rng"]))
        with killed_at(number), pytest.raises(Killed):
            replace(checkpoints, folder=folder).save(state)
        again = Training(folder, restart=True)
        outcomes.append(again.saving.begin.history.step)
        assert again.saving.begin.position == Position(outcomes[-1] // 8, outcomes[-1] % 8)
        assert_equal(again.everything(), states[outcomes[-1]])
        with killed_at(0):
            again.saving.checkpoints.save(
                again.saving.begin
            )  # the next one works, and leaves nothing of the killed one
        names = [path.name for path in folder.iterdir()]
        assert sorted(names) == sorted([*tables.read_manifest(folder).folders, "manifest.json"])
        assert sum(".beside." in name for name in names) == 1
        shutil.rmtree(folder)
    published = operations.index("replace") + 1
    assert outcomes == [6] * published + [8] * (len(operations) - published)


def test_saves_are_incremental_and_now_and_then_full(tmp_path):
    training = Training(tmp_path)
    history = training.fit(20)
    saves = history.saves_frame()
    assert saves["step"].tolist() == [3, 6, 9, 12, 15, 18, 20]
    assert saves["kind"].tolist() == ["full", "increment", "increment"] * 2 + ["full"]
    assert (saves["seconds"] > 0).all() and (saves["bytes"] > 0).all()
    assert saves["number"].tolist() == list(range(1, 8))


def test_nothing_left_to_train(tmp_path):
    """A finished training is looked at again, and no row comes twice; fewer steps than trained are refused."""
    whole = Training(tmp_path)
    expected = whole.fit(6)
    again = Training(tmp_path, restart=True)
    history = again.fit(6)
    assert curve(history) == curve(expected) and history.saves == []
    assert np.array_equal(history.last_look[1], expected.last_look[1])
    with pytest.raises(UserError, match="6 steps are trained already, and 5 asked for"):
        Training(tmp_path, restart=True).fit(5)
    assert [list(look) for look in history.evaluations] == [list(look) for look in expected.evaluations]
    longer = Training(tmp_path, restart=True).fit(9)
    assert longer.step == 9 and [look["step"] for look in longer.evaluations] == [2, 4, 6, 9]


def other_width() -> nn.Module:
    dense = Noisy()
    dense.last = nn.Linear(8, 1, bias=False)
    return dense


def refused(match: str, call, *args) -> None:
    with pytest.raises(UserError, match=match) as error:
        call(*args)
    assert "\n" not in str(error.value)


def test_what_is_refused_in_one_line(tmp_path):
    """Nothing is changed then: neither the tables nor a parameter."""
    folder = tmp_path / "folder"
    refused("there is none in", restore, folder, Training().trained, {})
    assert step_of(folder) is None
    training = Training(folder)
    training.fit(3)
    assert step_of(folder) == 3
    other = Training(dense=other_width)
    before = other.everything()
    refused(
        r"parameter 'last.bias' is float32\[1\] in the checkpoint and absent",
        restore,
        folder,
        other.trained,
        {"seed": 0},
    )
    refused("trained with seed=0, and this run has seed=1", restore, folder, other.trained, {"seed": 1})
    sgd = replace(Training().trained, optimizer=torch.optim.SGD(training.model.dense.parameters(), lr=0.1))
    refused("optimizer is Adam over 6 parameters, the run's SGD", restore, folder, sgd, {"seed": 0})
    (state,) = folder.glob("*.beside.*/state.safetensors")
    content = state.read_bytes()
    state.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refused("is damaged", restore, folder, other.trained, {"seed": 0})
    state.write_bytes(content)
    assert_equal(other.everything(), before)
    tables.save(training.model.embedding, folder)
    refused("holds tables alone", step_of, folder)
    refused("every=0", lambda: Checkpoints(folder, training.trained, every=0))


def test_what_no_checkpoint_can_hold(tmp_path):
    training = Training()
    training.fit(2)
    parameter = next(training.model.dense.parameters())
    training.optimizer.state[parameter]["hook"] = object()
    begin = State(Position(0, 2), training.fit(1))
    refused("keeps 'hook', a object, which is no tensor and no scalar", save, tmp_path, training.trained, begin)
    with pytest.raises(UserError, match=r"need a nestlab\.data\.Loader"):
        other = Training(tmp_path)
        fit(other.pipeline, list(other.train), other.heldout, FitConfig(), saving=other.saving)


def test_the_state_is_readable_without_nestlab(tmp_path):
    """The manifest is JSON, the state safetensors by parameter name: no pickle anywhere."""
    from safetensors.torch import load_file

    training = Training(tmp_path)
    training.fit(3)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    content, (file,) = manifest["beside"]["content"], manifest["beside"]["files"]
    assert content["position"] == {"epoch": 0, "batch": 3} and content["step"] == 3 and content["world_size"] == 1
    assert content["optimizer"]["groups"][0]["lr"] == 0.01
    tensors = load_file(tmp_path / file["path"])
    assert torch.equal(tensors["dense.first.weight"], training.model.dense.first.weight)
    assert tensors["optimizer.first.weight.exp_avg"].shape == tensors["dense.first.weight"].shape
    assert torch.equal(tensors["rank.0.buffer.norm.running_mean"], training.model.dense.norm.running_mean)
    assert tensors["curve.loss"].shape == (3,)
