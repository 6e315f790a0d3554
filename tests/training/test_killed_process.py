"""`nestlab train` killed with SIGKILL while it trains, started again, finished: the files of the undisturbed run."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from nestlab import cli
from nestlab.experiments.training import _description
from nestlab.tracing import read_chrome_trace
from nestlab.training import TrainOptions, assemble, export_model, recipe

FILES = ("tables.safetensors", "dense.safetensors", "model.json")
AS_OPTIONS = {"dataset": "criteo-synth", "rows": 2000, "batch_size": 32, "epochs": 2, "device": "cpu"}
AS_OPTIONS |= {"clip_norm": 0.5}
OPTIONS = [text for name, value in AS_OPTIONS.items() for text in (f"--{name.replace('_', '-')}", str(value))]
AHEAD = ["--techniques", "device_tier=dual_buffer,pipeline_depth=3"]
NESTED = ["--techniques", "device_tier=dual_buffer,pipeline_depth=3,micro_batches=2"]
STEPS = 100


@pytest.fixture(scope="module", autouse=True)
def prepared(tmp_path_factory):
    """Prepared data of these tests, away from the user's; made once, so that ranks find it."""
    from nestlab import data

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTLAB_PREPARED", str(tmp_path_factory.mktemp("prepared")))
        data.open_dataset("criteo-synth", rows=2000)
        yield


class Ranks:
    """`nestlab train` as so many processes, and what they print."""

    def __init__(self, world: int, folder: Path, *options: str) -> None:
        self.command = [sys.executable, "-m", "nestlab.cli", "train", *OPTIONS, "--results", str(folder / "results")]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self.processes = []
        for rank in range(world):
            place = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            env = {**os.environ, "OMP_NUM_THREADS": "1", **(place if world > 1 else {})}
            command = [*self.command, *options]
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            self.processes.append(subprocess.Popen(command, env=env, **streams))

    def end(self, timeout_s: float = 120.0) -> tuple[list[int], list[str], list[str]]:
        """Exit statuses, standard outputs, standard errors."""
        try:
            told = [process.communicate(timeout=timeout_s) for process in self.processes]
        finally:
            self.kill()
        return [process.returncode for process in self.processes], *map(list, zip(*told, strict=True))

    def kill(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGKILL)


def step_in(folder: Path) -> int:
    """Of the checkpoint: 0 where there is none yet."""
    try:
        return json.loads((folder / "manifest.json").read_text())["beside"]["content"]["step"]
    except FileNotFoundError:
        return 0


def await_the_middle(ranks: Ranks, folder: Path) -> None:
    limit = time.monotonic() + 120
    while step_in(folder) < 21 and time.monotonic() < limit:
        assert all(process.poll() is None for process in ranks.processes), ranks.end()
        time.sleep(0.005)


def files_of(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def test_one_rank(tmp_path):
    """Under a pipeline that looks ahead, against `plain` without a checkpoint. The curve in the run folder is whole."""
    results = ["--results", str(tmp_path / "results")]
    assert cli.main(["train", *OPTIONS, *results, "--export", str(tmp_path / "plain")]) == 0
    saved = ["--checkpoint", str(tmp_path / "saved"), "--checkpoint-every", "7", "--restart", *AHEAD]
    ranks = Ranks(1, tmp_path, *saved)
    await_the_middle(ranks, tmp_path / "saved")
    ranks.kill()
    assert ranks.end()[0] == [-signal.SIGKILL]
    assert 21 <= (step := step_in(tmp_path / "saved")) < STEPS
    (status,), (out,), (err,) = Ranks(1, tmp_path, *saved, "--export", str(tmp_path / "again")).end()
    assert status == 0, err
    assert f"checkpoint: training goes on after step {step} of " in out
    assert files_of(tmp_path / "again") == files_of(tmp_path / "plain")
    run = Path(re.search(r"^run (.+)$", out, re.MULTILINE)[1])
    assert pd.read_parquet(run / "tables" / "steps.parquet")["step"].tolist() == list(range(1, STEPS + 1))
    assert json.loads((run / "manifest.json").read_text())["summary"]["checkpoint_ms_per_step"] > 0


def undisturbed(transport: Any, prepared: str, folder: Path) -> None:
    """What the command does, on ranks that are there already."""
    os.environ["NESTLAB_PREPARED"] = prepared
    recipe = assemble(TrainOptions(**AS_OPTIONS, techniques=NESTED[1]), transport)
    recipe.fit()
    export_model(recipe.model, folder, _description(recipe), transport)


@pytest.mark.slow
@pytest.mark.dist
def test_two_ranks(ranks, tmp_path):
    """As separate processes that find each other by the environment. One is killed: the other ends by itself, with a
    line that names both. Started again they are as never disturbed, to the bit. Rank 0 alone speaks.
    """
    link = ["--timeout", "20", "--network", "10us,10gbit"]
    saved = ["--checkpoint", str(tmp_path / "saved"), "--checkpoint-every", "20", "--restart", *link, *NESTED]
    first = Ranks(2, tmp_path, *saved)
    await_the_middle(first, tmp_path / "saved")
    first.processes[1].send_signal(signal.SIGKILL)
    began = time.monotonic()
    statuses, _, errors = first.end(60.0)
    assert statuses == [1, -signal.SIGKILL] and time.monotonic() - began < 25.0
    assert re.fullmatch(r"nestlab: error: rank 0: .*rank 1 .*\n", errors[0]), errors[0]
    assert 21 <= step_in(tmp_path / "saved") < STEPS
    statuses, out, errors = Ranks(2, tmp_path, *saved, "--export", str(tmp_path / "again")).end()
    assert statuses == [0, 0], errors
    assert "training goes on after step" in out[0] and out[1] == errors[1] == ""
    ranks.run(undisturbed, os.environ["NESTLAB_PREPARED"], tmp_path / "whole")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "whole")
    trace = read_chrome_trace(Path(re.search(r"^run (.+)$", out[0], re.MULTILINE)[1]) / "trace.json.gz")
    assert {event.rank for event in trace.events} == {0, 1}


@pytest.mark.dist
@pytest.mark.parametrize(
    ("number", "whom"), [(signal.SIGTERM, (0,)), (signal.SIGINT, (1,)), (signal.SIGINT, (0, 1, 0))]
)
def test_a_signal_ends_ranks_with_a_line_and_a_sealed_run(number, whom, tmp_path):
    """As a launcher sends it to whom is left, as it comes to one rank alone, and, an interrupt, to all and twice.

    Seen to fail without the handler: no reason after SIGTERM, and both ranks speak after SIGINT, of no step.
    """
    ranks = Ranks(2, tmp_path, "--steps", "5000", "--checkpoint", str(tmp_path / "saved"), "--checkpoint-every", "20")
    await_the_middle(ranks, tmp_path / "saved")
    for rank in whom:
        ranks.processes[rank].send_signal(number)
    statuses, out, errors = ranks.end(60.0)
    (folder,) = (tmp_path / "results" / "train").iterdir()
    run = json.loads((folder / "manifest.json").read_text())
    assert run["status"] == "killed" and run["exit_code"] == statuses[0]
    where = r"at step \d+; last checkpoint: step \d+ in '.+'; go on with --restart"
    assert re.search(where, run["exception"])
    if number == signal.SIGTERM:
        assert statuses == [143, 1]
        assert re.fullmatch(rf"nestlab: rank 0: stopped \(SIGTERM\) {where}\n", errors[0])
        assert re.fullmatch(r"nestlab: error: rank 1: rank 0 (was stopped \(SIGTERM\)|ended).+\n", errors[1])
    else:
        assert statuses == [130, 130] and errors[1] == ""
        assert re.fullmatch(rf"nestlab: interrupted {where}.*\n", errors[0]), errors[0]
    assert re.search(r"^step \d+: checkpoint written in [0-9.]+ s$", out[0], re.MULTILINE) and "2 ranks, " in out[0]


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("wrong", ["--techniques=replica_groups=3", "--techniques=slow=1", "--network=fast"])
def test_an_error_that_all_ranks_find_is_told_by_the_first(rank, wrong, monkeypatch, capsys, tmp_path):
    place = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert cli.main(["train", *OPTIONS, wrong]) == 2
    told = capsys.readouterr()
    line = json.loads((tmp_path / "error.json").read_text())["message"]["message"]  # what torchrun's summary repeats
    assert line.startswith("nestlab: error: ") and told.out == ""
    assert told.err == (f"{line}\n" if rank == "0" else "")


def test_restart_needs_a_place(capsys):
    assert cli.main(["train", *OPTIONS, "--restart"]) == 2
    assert "--checkpoint DIR" in capsys.readouterr().err


def test_a_training_is_not_written_over(tmp_path, capsys, monkeypatch):
    argv = ["train", *OPTIONS, "--steps", "3", "--results", str(tmp_path), "--checkpoint", str(tmp_path / "saved")]
    assert cli.main(argv) == 0
    assert cli.main(argv) == 2
    assert len(list((tmp_path / "train").iterdir())) == 1
    assert "holds a training of 3 steps; add --restart" in capsys.readouterr().err
    assert step_in(tmp_path / "saved") == 3
    monkeypatch.setattr(recipe, "open_data", None)  # what options tell is said before data are opened
    assert cli.main([*argv, "--restart", "--model", "dcnv2"]) == 2
    assert "trained with model=dlrm, and this run has model=dcnv2" in capsys.readouterr().err


def test_what_options_come_to_is_said(tmp_path, capsys):
    where = ["--results", str(tmp_path), "--checkpoint", str(tmp_path / "saved")]
    argv = ["train", *OPTIONS, "--batch-size", "800", "--steps", "3", *where, "--export", str(tmp_path / "model")]
    assert cli.main(argv) == 0
    said = capsys.readouterr().out
    assert "samples in 2 batches; 1.5 epochs, 3 steps; learning rates 0.02 (adagrad, tables), 0.001 (Adam" in said
    assert "every 100 steps, and 3 to come: saved at the end" in said
    (run,) = (tmp_path / "train").iterdir()
    assert json.loads((run / "manifest.json").read_text())["export"] == str(tmp_path / "model")
    told = files_of(tmp_path / "model"), (tmp_path / "model" / "run.json").read_text()
    assert json.loads(told[1]) == {"run": run.name} and json.loads(told[0][2])["model"] == "dlrm"
    assert cli.main([*argv[:-4], *argv[-2:]]) == 2  # without a checkpoint
    assert f"holds an exported model of run {run.name}; name another folder" in capsys.readouterr().err


def test_a_restart_that_trains_nothing_files_no_run(tmp_path, capsys):
    """It looks and exports again; among the runs it would be the newest of its seed, and stand for the one that
    trained. Broken on purpose: filed."""
    where = ["--results", str(tmp_path), "--checkpoint", str(tmp_path / "saved"), "--restart"]
    argv = ["train", *OPTIONS, "--batch-size", "800", "--steps", "3", *where, "--export", str(tmp_path / "model")]
    assert cli.main(argv) == 0
    (run,) = (tmp_path / "train").iterdir()
    told = files_of(tmp_path / "model"), (tmp_path / "model" / "run.json").read_text()
    capsys.readouterr()
    assert cli.main(argv) == 0
    said = capsys.readouterr().out
    assert f"holds step 3 of 3, which run {run.name} trained; no new run is filed\n" in said
    assert "samples/s" not in said and "\nrun " not in said and list((tmp_path / "train").iterdir()) == [run]
    assert (files_of(tmp_path / "model"), (tmp_path / "model" / "run.json").read_text()) == told
    (tmp_path / "model" / "model.json").write_text(json.dumps({"format": 1, "model": "dlrm", "seed": 5}))
    assert cli.main(argv) == 2 and ", of another dataset; name another folder" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["--checkpoint={}/file/saved", "--dataset=no-such", "--checkpoint-every=5"])
def test_a_wrong_option_leaves_no_run(wrong, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["train", *OPTIONS, "--results", str(tmp_path / "results"), wrong.format(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("nestlab: error: ")
    assert not list(tmp_path.glob("results/*/*"))
