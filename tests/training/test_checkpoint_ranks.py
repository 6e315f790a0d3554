"""Checkpoints, exports and restarts of two ranks, and from two ranks to one and back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from saved_training import FEATURES, Noisy, Training, assert_equal, curve

from nestlab.embedding import checkpoint as tables
from nestlab.errors import RankFailed, UserError
from nestlab.pipeline import Inline, Lanes
from nestlab.training import export_model
from nestlab.training.gathering import gather_texts, to_first_shard, together

pytestmark = pytest.mark.dist

PIPELINED = "device_tier=dual_buffer,pipeline_depth=4,micro_batches=2"


def exact() -> Noisy:
    """float64, and nothing random: comparable between numbers of ranks."""
    return Noisy(dropout=0.0, norm=False, dtype=torch.float64)


def steps_on_ranks(
    transport: Any, folder: Path | None, steps: int, techniques: str = "", restart: bool = False, alike: bool = False
) -> dict[str, Any]:
    """Trains up to `steps`; what this rank then has, and the export of all ranks."""
    options = {"dense": exact, "dtype": torch.float64} if alike else {}
    executor = Lanes() if techniques else Inline()
    training = Training(folder, techniques, executor, transport=transport, restart=restart, **options)
    history = training.fit(steps)
    if folder is not None:
        export_model(training.model, folder.parent / f"export-{steps}", transport=transport)
    return {"state": training.everything(), "curve": curve(history), "saves": history.saves, "own": history.own_steps}


def joined(answers: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Tables of two shards as one store would export them, and the dense part of rank 0."""
    found = {name: value for name, value in answers[0]["state"].items() if name.startswith("dense.")}
    for name in FEATURES:
        parts = [answer["state"] for answer in answers]
        order = np.argsort(np.concatenate([part[f"{name}.ids"] for part in parts]))
        for key in ("ids", "weight", "state"):
            found[f"{name}.{key}"] = np.concatenate([part[f"{name}.{key}"] for part in parts])[order]
    return found


@pytest.mark.parametrize("techniques", ["", PIPELINED], ids=["plain", "nested"])
def test_two_ranks_continued_are_the_ones_never_disturbed(techniques, ranks, tmp_path):
    """To the bit, each rank with its own random numbers and running statistics.

    Broken on purpose: every rank given rank 0's generator and buffers. It failed.
    """
    whole = ranks.run(steps_on_ranks, None, 20, techniques)
    first = ranks.run(steps_on_ranks, tmp_path / "folder", 13, techniques)
    assert [save["step"] for save in first[0]["saves"]][-1] == 13
    assert not np.array_equal(first[0]["state"]["rng"], first[1]["state"]["rng"])
    assert not np.array_equal(*(first[rank]["state"]["dense.norm.running_mean"] for rank in (0, 1)))
    second = ranks.run(steps_on_ranks, tmp_path / "folder", 20, techniques, restart=True)
    for rank in (0, 1):
        assert second[rank]["own"] == 7
        assert_equal(second[rank]["state"], whole[rank]["state"])
        assert second[rank]["curve"][0] == whole[rank]["curve"][0] == whole[0]["curve"][0]
        assert second[rank]["curve"][2] == 304


def test_the_number_of_ranks_may_change(ranks, tmp_path):
    """Two ranks, one, two again: as one rank from the start, to 1e-10. An export has the bytes of one rank's."""
    plain = Training(dense=exact, dtype=torch.float64)
    losses = [loss for _, loss, _ in plain.fit(20).losses]
    two = tmp_path / "folder"
    ranks.run(steps_on_ranks, two, 6, alike=True)
    one = Training(two, dense=exact, dtype=torch.float64, restart=True)
    export_model(one.model, tmp_path / "by-one")
    for name in ("tables.safetensors", "dense.safetensors", "model.json"):
        assert (tmp_path / "export-6" / name).read_bytes() == (tmp_path / "by-one" / name).read_bytes()
    one.fit(13)
    assert [save.shards for save in tables.read_manifest(two).saves] in ([2, 2, 1], [1], [1, 1])
    answers = ranks.run(steps_on_ranks, two, 20, restart=True, alike=True)
    np.testing.assert_allclose([loss for _, loss, _ in answers[0]["curve"][0]], losses, rtol=0, atol=1e-10)
    expected = plain.everything()
    for name, value in joined(answers).items():
        if value.dtype == np.int64:
            assert np.array_equal(value, expected[name]), name
        else:
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-10, err_msg=name)


def generators(transport: Any, folder: Path) -> np.ndarray:
    torch.manual_seed(99)
    Training(folder, transport=transport, restart=True)
    return torch.get_rng_state().numpy()


def test_a_rank_without_a_predecessor_draws_its_own_numbers(ranks, tmp_path):
    training = Training(tmp_path / "folder")
    training.fit(3)
    before = torch.get_rng_state().numpy()
    first, again = (ranks.run(generators, tmp_path / "folder") for _ in range(2))
    assert np.array_equal(first[0], before)
    assert not np.array_equal(first[1], before) and np.array_equal(first[1], again[1])


def agree(transport: Any, error: Exception | None) -> list[str] | tuple[type, str]:
    def do() -> str:
        if error is not None and transport.mesh.rank == 1:
            raise error
        return "π" * (3 * transport.mesh.rank)

    try:
        return together(transport, do)
    except Exception as raised:
        return type(raised), str(raised)


def test_all_go_on_or_none_does(ranks):
    assert ranks.run(agree, None) == [["", "πππ"]] * 2
    user, other = UserError("no room; make some"), ValueError("odd")
    assert ranks.run(agree, user) == [(UserError, f"rank 1: {user}"), (UserError, str(user))]
    assert ranks.run(agree, other) == [(RankFailed, f"rank 1: ValueError: {other}"), (ValueError, str(other))]


def sends(transport: Any) -> list[Any]:
    rank = transport.mesh.rank
    rows = torch.arange(6).reshape(3, 2)[: 2 * rank] + 100 * rank
    found = [
        to_first_shard(transport, rows),
        to_first_shard(transport, rows[:, :0]),
        to_first_shard(transport, rows[:0]),
    ]
    return [None if each is None else each.tolist() for each in found] + gather_texts(transport, "")


def test_rows_of_uneven_shards_reach_the_first(ranks):
    assert ranks.run(sends) == [[[[100, 101], [102, 103]], [[], []], [], "", ""], [None, None, None, "", ""]]


def save_where_one_cannot(transport: Any, folder: Path) -> str:
    training = Training(folder, transport=transport)
    training.fit(3)
    if transport.mesh.rank == 1:
        shutil.rmtree(folder)
        folder.write_text("a file is in the way")
    try:
        training.fit(6)
    except UserError as error:
        return str(error)
    return "saved"


def test_a_save_that_fails_on_one_rank_fails_on_all(ranks, tmp_path):
    """Instead of a rank that waits for the other: one line each, which names the rank that could not."""
    answers = ranks.run(save_where_one_cannot, tmp_path / "folder")
    assert all("cannot be written" in answer or "cannot be read" in answer for answer in answers)
