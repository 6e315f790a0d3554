"""A training that is killed, taken up again, and compared with one that nobody disturbed; in float64.

The ranks are started twice: once to train undisturbed and then to be killed, and once, with everything else that the
study measures, to go on from the last checkpoint: on as many ranks, and on one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.numpy import load_file

from nestlab import data, device
from nestlab.embedding import EmbeddingStore, TableConfig, Tiers, optimizer
from nestlab.errors import RankFailed
from nestlab.exchange import LocalTransport, Transport
from nestlab.experiments.nestpipe.cases import DBP, fwp
from nestlab.experiments.nestpipe.model import LR, Positionwise
from nestlab.experiments.nestpipe.settings import Settings
from nestlab.experiments.nestpipe.training import Figures
from nestlab.experiments.ranks import joined, of_all, on_ranks
from nestlab.experiments.tables import Said, answer, chosen
from nestlab.models import RecModel
from nestlab.pipeline import Lanes, Pipeline
from nestlab.training import Checkpoints, FitConfig, History, Saving, Trained, export_model, fit, restore
from nestlab.training.export import FILES

EVERY = 10  # steps from one snapshot to the next, as the article has it
_DIM, _LAYERS, _BATCH = 8, 1, 128  # small: what is shown is equality
DONE = "undisturbed.json"
ROUNDING = 1e-10  # in float64: what another order of sums may change


def kill_in_the_middle(settings: Settings, folder: Path) -> None:
    """Trains undisturbed, then again with snapshots, and has the last rank killed by SIGKILL on the way. `folder` then
    holds the first training's export, and the checkpoint twice.

    Raises:
        RuntimeError: the ranks ended otherwise than by the kill.
    """
    try:
        on_ranks(_until_killed, settings, folder, world_size=settings.world_size)
    except RankFailed as error:
        if not (folder / "killed.json").exists():
            raise
        (folder / "survivors.json").write_text(json.dumps({"told": str(error).splitlines()[0]}))
    else:
        raise RuntimeError("restart: the training was to be killed in the middle, and came to its end")
    shutil.copytree(folder / "saved", folder / "saved_for_one")


def _until_killed(settings: Settings, folder: Path) -> None:
    rank = int(os.environ["RANK"])
    with joined(settings.device, "notebook 10_nestpipe, restart") as transport:
        history = _train(settings, transport, folder / "whole")
        if rank == 0:
            step_ms = 1e3 * history.train_seconds / history.step
            (folder / DONE).write_text(json.dumps({"step_ms": step_ms}))
        killer = threading.Thread(target=_kill_at, args=(folder, settings.save_steps // 2), daemon=True)
        if rank == settings.world_size - 1:
            killer.start()
        _train(settings, transport, folder / "unreached", folder / "saved")


def _kill_at(folder: Path, step: int) -> None:
    """Ends this process by SIGKILL, wherever it is, a moment after the checkpoint of that step or a later one."""
    while (reached := _step_in(folder / "saved")) < step:
        time.sleep(0.002)
    time.sleep(0.02)  # into the steps that follow
    (folder / "killed.json").write_text(json.dumps({"saved_step": reached}))
    os.kill(os.getpid(), signal.SIGKILL)


def _step_in(folder: Path) -> int:
    """Of the checkpoint: 0 where there is none yet."""
    try:
        return json.loads((folder / "manifest.json").read_text())["beside"]["content"]["step"]
    except FileNotFoundError:
        return 0


def go_on(settings: Settings, transport: Transport, folder: Path) -> list[Figures]:
    """Every rank calls it; the rows are rank 0's: as many ranks as before, and where these are several, one alone."""
    history = _train(settings, transport, folder / "again", folder / "saved")
    if transport.mesh.rank == 0 and settings.world_size > 1:
        _train(settings, LocalTransport(), folder / "one", folder / "saved_for_one")
    of_all(transport, {"done": 0.0})
    if transport.mesh.rank:
        return []
    saved_step = json.loads((folder / "killed.json").read_text())["saved_step"]
    told = {
        "killed_rank": settings.world_size - 1,
        "saved_step": saved_step,
        "of_steps": settings.save_steps,
        "every": EVERY,
        "survivors_told": json.loads((folder / "survivors.json").read_text())["told"],
        "step_ms": json.loads((folder / DONE).read_text())["step_ms"],
        "snapshot_ms": 1e3 * float(np.median([save["seconds"] for save in history.saves])),
        "snapshot_bytes": float(np.median([save["bytes"] for save in history.saves])),
        "how": "measured",
    }
    rows = [_compared(folder, "again", settings.world_size)]
    if settings.world_size > 1:
        rows.append(_compared(folder, "one", 1))
    return [told | row for row in rows]


def _compared(folder: Path, name: str, ranks: int) -> Figures:
    """What a restarted training ended with against the undisturbed one."""
    same = all((folder / name / file).read_bytes() == (folder / "whole" / file).read_bytes() for file in FILES)
    largest = 0.0
    for file in FILES[:2]:
        one, other = (load_file(folder / which / file) for which in (name, "whole"))
        largest = max(largest, *(float(np.abs(one[k].astype(float) - other[k]).max(initial=0)) for k in other))
    return {"restarted_at_ranks": ranks, "bit_equal": same, "difference": largest}


def _train(settings: Settings, transport: Transport, export: Path, saved: Path | None = None) -> History:
    """To the end, from the checkpoint in `saved` if there is one, saving there every EVERY steps."""
    flags, where = fwp(settings.micro_batches, "greedy", DBP), device.resolve(settings.device)
    dataset = data.open_dataset(settings.dataset, settings.data_root, rows=settings.rows)
    names = dataset.features
    size = _BATCH * settings.world_size
    loaders = [dataset.batches(*split) for split in (("train", size), ("heldout", size))]
    train, heldout = (loader.slice(transport.mesh.rank, transport.mesh.world_size) for loader in loaders)
    store = EmbeddingStore(
        [TableConfig(name, _DIM) for name in names],
        optimizer("adagrad", lr=LR),
        dtype=torch.float64,
        tiers=Tiers.of(flags, where),
    )
    model = RecModel(store, Positionwise(len(dataset.dense_names), names, _DIM, _LAYERS).double().to(where))
    adam = torch.optim.Adam(model.dense.parameters(), lr=0.001)
    trained = Trained(model, adam, transport, where)
    begin = restore(saved, trained) if saved is not None and _step_in(saved) else None
    saving = Saving(None if saved is None else Checkpoints(saved, trained, EVERY), begin)
    pipeline = Pipeline(model, adam, flags, executor=Lanes(), device=where, transport=transport)
    config = FitConfig(max_steps=settings.save_steps, evaluations=1)
    history = fit(pipeline, train, _First(heldout), config, saving=saving)
    export_model(model, export, transport=transport)
    return history


class _First:
    """The first batch of a loader: the look at held-out data is no matter here."""

    def __init__(self, loader) -> None:
        self._loader = loader

    def __iter__(self):
        yield next(iter(self._loader))

    def __len__(self) -> int:
        return 1


_DIGEST = {
    "restarted_at_ranks": "ranks after the restart",
    "killed_rank": "rank that was killed",
    "saved_step": "last snapshot, step",
    "of_steps": "steps in all",
    "every": "a snapshot is due every, steps",
    "bit_equal": "bits equal to undisturbed",
    "difference": "largest difference, float64",
}


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a restart."""
    return chosen(frame, _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    same, one = frame.iloc[0], frame.iloc[-1]
    alone = f"; on one rank, where sums come in another order, {one['difference']:.1e} from it (float64)"
    after = f"{same['snapshot_ms']:.3g} ms for {same['snapshot_bytes'] / 1e6:.2f} MB"
    return Said(
        f"Rank {same['killed_rank']} was killed by SIGKILL after the snapshot of step {same['saved_step']} of "
        f"{same['of_steps']}. The launcher said: *{same['survivors_told']}*. Started again on as many ranks, "
        f"the training "
        f"ends {'equal to the undisturbed one, byte by byte' if same['bit_equal'] else '**unequal**'}"
        f"{alone if len(frame) > 1 else ''}. A snapshot takes {after}: "
        f"{same['snapshot_ms'] / EVERY:.3g} ms a step at one every {EVERY} steps, beside a step of "
        f"{same['step_ms']:.3g} ms. "
        "Each is of the step at which it is due: nothing is in flight then, and both buffers have been written back."
    )


def answers(frame: pd.DataFrame) -> list[dict]:
    """NP-A-010."""
    same, one = frame.iloc[0], frame.iloc[-1]
    held = bool(same["bit_equal"] and one["difference"] <= ROUNDING)
    note = (
        f"killed after step {same['saved_step']}; a snapshot costs {same['snapshot_ms'] / EVERY:.3g} ms a step; on one "
        f"rank {one['difference']:.1e} apart in float64"
    )
    return [answer("NP-A-010", held, "measured", note)]
