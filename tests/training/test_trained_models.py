"""`nestlab train` with every model: options, judges, techniques, restarts, runs that compare or do not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from nestlab import cli, results
from nestlab.cli import train as command
from nestlab.data.sequences import SequenceData, SequenceOptions
from nestlab.errors import UserError
from nestlab.exchange import LocalTransport, Transport
from nestlab.experiments.accuracy.settings import Settings
from nestlab.experiments.accuracy.training import Bench, Training
from nestlab.experiments.accuracy.training import train as train_as_the_study
from nestlab.experiments.nestpipe.cases import Case
from nestlab.models.ranking.building import RANKING
from nestlab.models.sequence import ENCODERS
from nestlab.models.sequence.building import TEMPERATURE
from nestlab.techniques import Techniques
from nestlab.training import History, SaveOptions, TrainOptions, assemble, families, recipe
from nestlab.training.choices import MODELS, OWN, taking
from nestlab.training.continuing import facts_of
from nestlab.training.facts import check_facts
from nestlab.training.families import open_data
from nestlab.training.looks import ClickJudge, RetrievalJudge, TaskJudge
from nestlab.training.options import check_data
from nestlab.training.plots import plot_curve
from nestlab.training.retrieval import RankingProtocol, rank_by_popularity

SMALL = {"rows": 2_500, "batch_size": 64, "dim": 8, "evaluations": 1, "device": "cpu", "dataset": "kuairand-synth"}
NEXT_ITEM = {**SMALL, "history": 12, "negatives": 8, "blocks": 1, "max_steps": 8}


@contextmanager
def prepared_in(folder: str) -> Iterator[None]:
    """Prepared data of these tests, on a rank of its own environment too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTLAB_PREPARED", folder)
        yield


@pytest.fixture(scope="module", autouse=True)
def prepared(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("prepared"))
    with prepared_in(folder):
        yield folder


def quiet(line: str) -> None:
    pass


def trained(options: TrainOptions, transport: Transport | None = None, saves: SaveOptions | None = None) -> History:
    return assemble(options, transport or LocalTransport(), saves, quiet).fit()


def losses(history: History) -> list[float]:
    return [loss for _, loss, _ in history.losses]


# Options.


def test_every_model_of_the_library_is_a_choice():
    assert {"dlrm", *RANKING, *ENCODERS} == set(MODELS) == set(command.MODELS)


def test_defaults_are_the_models_own_and_are_told():
    """Those of retrieval are the accuracy study's, which chose them; whatever is given stands."""
    study, options = Settings(), TrainOptions.of("hstu", lr=None, batch_size=32)
    names = ("dataset", "dim", "blocks", "history", "negatives", "epochs", "lr", "dense_lr")
    assert all(getattr(options, name) == getattr(study, name) for name in names)
    assert (study.heads, study.temperature) == (families.HEADS, TEMPERATURE)
    assert (options.optimizer, options.batch_size) == ("rowwise_adagrad", 32)
    assert options.parameters["negatives"] == 128 and options.parameters["model"] == "hstu"
    assert TrainOptions.of() == TrainOptions() and not set(OWN) & set(TrainOptions().parameters)
    assert taking("history") == ["din", "multitask", "multitask_hstu", "hstu", "fuxi", "sasrec"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"negatives": 5}, "negatives=5: model=dlrm takes none; leave it out, or choose a model that does .hstu, fuxi"),
        ({"model": "dcnv2", "history": 5}, "history=5: model=dcnv2 takes none"),
        ({"model": "din", "blocks": 1}, "blocks=1: model=din takes none"),
        ({"model": "hstu", "history": 0}, "history=0: it must be at least 1"),
        ({"model": "sasrec", "negatives": -1}, "negatives=-1: it must be at least 1"),
        ({"model": "hstu", "reorder": "frequency"}, "reorder=frequency: model=hstu reads items as they are"),
        ({"model": "fuxi", "techniques": "evict=score"}, "evict=score counts clicks, which model=fuxi has not"),
        ({"model": "multitask", "techniques": "admit=show_click"}, "admit=show_click counts clicks, which model=multi"),
        (
            {"reorder": "frequency", "convention": "dlrm"},
            "reorder=frequency: convention=dlrm numbers ids in an order of",
        ),
        ({"model": "bert4rec"}, "model=bert4rec: it must be one of dlrm, dcnv2"),
    ],
)
def test_an_option_without_effect_or_out_of_range_is_refused(given, message):
    with pytest.raises(UserError, match=f"train: (techniques: )?{message}"):
        TrainOptions.of(**given)


@pytest.mark.parametrize("model", [name for name, each in MODELS.items() if each.reads_histories])
def test_data_without_histories_are_refused_before_they_are_opened(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NESTLAB_PREPARED", str(tmp_path / "prepared"))
    assert cli.main(["train", "--model", model, "--dataset", "criteo-synth", "--results", str(tmp_path / "r")]) == 2
    told = capsys.readouterr().err
    assert f"model={model} reads histories of users, and 'criteo-synth' has none; give --dataset kuairand" in told
    assert list(tmp_path.iterdir()) == []
    check_data(TrainOptions.of(model, data_root=str(tmp_path)))


@pytest.mark.parametrize(
    ("dataset", "name", "message"),
    [
        (
            "criteo",
            "own",
            "'criteo-synth' has no such convention; choose one of dlrm-log1p, dlrm, mlperf, x4_001, crit",
        ),
        ("kuairand-synth", "dlrm", "'kuairand-synth' has no conventions to choose from; leave it out, or"),
    ],
)
def test_a_convention_that_the_data_have_not_is_refused_before_they_are_opened(
    dataset, name, message, tmp_path, capsys
):
    command = ["train", "--dataset", dataset, "--data-root", str(tmp_path), "--results", str(tmp_path / "r")]
    assert cli.main([*command, "--convention", name]) == 2
    assert f"train: convention={name}: {message}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# Models and judges.


@pytest.mark.parametrize(
    ("model", "judge"),
    [("dcnv2", ClickJudge), ("din", ClickJudge), ("multitask", TaskJudge), ("sasrec", RetrievalJudge)],
    ids=["dcnv2", "din", "multitask", "sasrec"],
)
def test_each_family_has_its_judge(model, judge):
    given = NEXT_ITEM if judge is RetrievalJudge else SMALL | {"max_steps": 2}
    options = TrainOptions.of(model, **given, **({"history": 5} if model in ("din", "multitask") else {}))
    made = assemble(options, LocalTransport(), report=quiet)
    history = made.fit()
    assert isinstance(made.judge, judge) and history.best == made.judge.best
    assert set(made.judge.shown) < set(history.evaluations[-1])
    assert np.isfinite(losses(history)).all()
    figure = plot_curve(history, {"dataset": made.info.title, "how": "measured"})
    assert isinstance(figure, Figure) and len(figure.axes) == {ClickJudge: 3, TaskJudge: 3, RetrievalJudge: 4}[judge]
    if judge is not RetrievalJudge:  # one protocol, and one name for one thing: a click's figures compare
        assert made.protocol == {"split": "last rows", "heldout": 500, "groups": "user_id"}
        assert {"auc", "gauc", "log_loss", "ne"} <= set(made.judge.figures(history.evaluations[-1]))
        assert "500 rows, the last 20% of them" in made.heldout
    if judge is TaskJudge:
        figures = made.judge.figures(history.evaluations[-1])
        assert figures["auc"] == history.evaluations[-1]["is_click.auc"]
        assert 1 <= figures["mean_auc_tasks"] <= len(made.judge.tasks)
        assert "is_click.gauc" in history.evaluations[-1]
        users = made.dataset.table.column("user_id").to_numpy()[2_000:]
        assert (made.judge.groups == users).all() and len(history.last_look[0]) == len(users)
        assert [len(axes.lines) for axes in figure.axes[1:]] == [len(made.judge.tasks)] * 2


def test_retrieval_is_what_the_accuracy_study_trains(tmp_path):
    """Both make model, windows and order of their own options: equal losses, in cores of a tensor train too.

    Broken on purpose: the newest windows alone; another seed of negatives. It failed.
    """
    names = ("dataset", "rows", "dim", "history", "negatives", "blocks", "batch_size")
    same = {name: NEXT_ITEM[name] for name in names} | {"data_root": str(tmp_path), "epochs": 1, "seed": 3}
    settings = Settings(**same, world_size=1)
    for flags in ("", "table_kind=tt,tt_rank=4,tt_from=10"):
        given = NEXT_ITEM | {"max_steps": None, "epochs": 1, "seed": 3, "techniques": flags}
        own = losses(trained(TrainOptions.of("hstu", **given, data_root=str(tmp_path))))
        case = Case("", Techniques.parse(flags))
        study = train_as_the_study(Bench.on(settings, LocalTransport()), Training(case, "hstu", 3))
        assert own == study.losses.tolist() and len(own) > 2


def test_negatives_and_windows_are_those_of_the_protocol():
    made = assemble(TrainOptions.of("hstu", **NEXT_ITEM), LocalTransport(), report=quiet)
    options = SequenceOptions(history=12, split="time", windows="all", negatives=8, seed=0)
    assert made.info.convention.endswith(options.protocol)
    assert made.protocol == {
        **{"ranking": "full", "seen": "left out", "k": "10,50", "ties": "half, rounded up", "split": "time"},
        "heldout": len(made.judge.data.targets("heldout")),
    }
    assert len(trained(TrainOptions.of("hstu", **NEXT_ITEM)).last_look[0]) == made.protocol["heldout"] > 0


# Techniques.


@pytest.mark.parametrize(
    "flags",
    [
        "pipeline_depth=3,device_tier=dual_buffer",
        "pipeline_depth=5,device_tier=slot_cache,cache_slots=4000",
        "admit=count,admit_threshold=1",
    ],
)
def test_what_moves_work_only_keeps_every_bit_of_retrieval(flags):
    plain = trained(TrainOptions.of("hstu", **NEXT_ITEM))
    other = trained(TrainOptions.of("hstu", **NEXT_ITEM, techniques=flags))
    assert other.losses == plain.losses
    # An item that is held out alone has a row of its own only without admission, which reads a constant for it.
    assert "admit" in flags or other.evaluations == plain.evaluations


def test_a_retrieval_that_goes_on_is_the_one_never_disturbed(tmp_path, monkeypatch):
    """Within an epoch and into the next, whose negatives are others; under another schedule too.

    Broken on purpose: the position of the checkpoint left out, so that the first epoch begins again.
    """
    options = TrainOptions.of("sasrec", **NEXT_ITEM | {"max_steps": 20})
    whole = trained(options)
    saves = SaveOptions(tmp_path / "saved", every=5, restart=True)
    first = assemble(replace(options, max_steps=13), LocalTransport(), saves, quiet)
    first.fit()
    assert 13 % len(first.train) and len(first.train) < 13
    flags = "pipeline_depth=3,device_tier=dual_buffer"
    rest = trained(replace(options, techniques=flags), saves=saves)
    assert rest.losses == whole.losses and rest.evaluations[-1] == whole.evaluations[-1]
    with pytest.raises(UserError, match="trained with model=sasrec, and this run has model=hstu"):
        trained(replace(options, model="hstu"), saves=saves)
    with pytest.raises(UserError, match="trained with history=12, and this run has history=6"):
        trained(replace(options, history=6), saves=saves)
    with monkeypatch.context() as another_version:
        another_version.setattr(families, "HEADS", 4)
        with pytest.raises(UserError, match="trained with heads=2, and this run has heads=4"):
            trained(options, saves=saves)
        another_version.setattr(families, "HEADS", 2)
        another_version.setattr(families, "SequenceOptions", partial(SequenceOptions, copies=True))
        with pytest.raises(UserError, match=r"trained with samples=.*; all events but copies; .*, and this run has"):
            trained(options, saves=saves)


def train_next_item(transport: Transport, prepared: str, flags: str) -> tuple[list, list, dict]:
    with prepared_in(prepared):
        made = assemble(TrainOptions.of("hstu", **NEXT_ITEM, techniques=flags), transport, report=quiet)
        history = made.fit()
    return history.losses, history.evaluations, dict(made.protocol)


@pytest.mark.dist
def test_two_ranks_train_retrieval(ranks, prepared):
    """Equal on both; prefetching keeps every bit, and one rank alone has the same up to the order of sums."""
    alone = train_next_item(LocalTransport(), prepared, "")
    plain, other = ranks.run(train_next_item, prepared, "")
    assert plain == other == ranks.run(train_next_item, prepared, "pipeline_depth=3,device_tier=dual_buffer")[0]
    np.testing.assert_allclose(np.array(plain[0])[:, 1], np.array(alone[0])[:, 1], rtol=1e-3)
    assert plain[2] == alone[2]


def train_tasks(transport: Transport, prepared: str) -> tuple[list, list]:
    with prepared_in(prepared):
        history = trained(TrainOptions.of("multitask", **SMALL, history=5, max_steps=3), transport)
    return history.losses, history.evaluations


@pytest.mark.dist
def test_two_ranks_judge_tasks_alike(ranks, prepared):
    """Groups are of samples in the order of the split, on however many ranks.

    Broken on purpose: groups of this rank's samples alone.
    """
    alone = train_tasks(LocalTransport(), prepared)
    first, second = ranks.run(train_tasks, prepared)
    np.testing.assert_equal(second, first)  # a rare action may have no AUC, which is equal to itself here alone
    assert first[1][-1]["is_click.gauc"] == pytest.approx(alone[1][-1]["is_click.gauc"], abs=1e-3)


# Checkpoints of before.


def without_late_ones(facts: dict) -> dict:
    """As checkpoints had them before these were facts."""
    return {name: value for name, value in facts.items() if name not in ("model", "shuffle", "reorder", "convention")}


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({}, ""),
        ({"shuffle": "window"}, "trained with shuffle=full, and this run has shuffle=window"),
        ({"model": "dcnv2"}, "trained with model=dlrm, and this run has model=dcnv2"),
        ({"reorder": "frequency"}, "trained with reorder=none, and this run has reorder="),
        ({"convention": "dlrm-log1p"}, ""),
        ({"convention": "dlrm"}, "trained with convention=default, and this run has convention=dlrm"),
    ],
    ids=["as then", "window", "model", "reorder", "default named", "convention"],
)
def test_a_fact_that_no_checkpoint_named_had_the_default_of_then(change, refused, tmp_path, monkeypatch):
    """Broken on purpose: `EVER_SINCE` empty. All but the first failed."""
    options = TrainOptions(**SMALL | {"dataset": "criteo-synth", "rows": 600}, max_steps=2)
    saves = SaveOptions(tmp_path / "saved", restart=True)
    with monkeypatch.context() as before:
        before.setattr(recipe, "facts_of", lambda *known: without_late_ones(facts_of(*known)))
        trained(options, saves=saves)
    later = replace(options, max_steps=4, **change)
    if not refused:
        assert len(losses(trained(later, saves=saves))) == 4
        return
    with pytest.raises(UserError, match=f"restart: the checkpoint was {refused}"):
        trained(later, saves=saves)


def test_a_training_goes_on_with_what_it_learnt_from_and_how():
    """Timing may change. Broken on purpose: the fingerprint left empty; flags of the dense part left out."""
    options = TrainOptions(**SMALL)
    dataset = SimpleNamespace(info=open_data(options).info, id_map=None)
    saved = facts_of(options, dataset)
    for flags in ("micro_batches=2", "device_tier=dual_buffer,pipeline_depth=3"):
        check_facts(saved, facts_of(replace(options, techniques=flags), dataset))
    others = {"staleness=1,pipeline_depth=2": "staleness=1", "dense_precision=bf16": "dense_precision=bf16"}
    for flags, told in others.items():
        with pytest.raises(UserError, match=f"trained with inexact=none, and this run has inexact={told};"):
            check_facts(saved, facts_of(replace(options, techniques=flags), dataset))
    dataset.info = replace(dataset.info, fingerprint="another")
    with pytest.raises(UserError, match=r"trained with data_fingerprint=.*, and this run has data_fingerprint=another"):
        check_facts(saved, facts_of(options, dataset))


# Run folders.


def test_runs_under_two_conventions_do_not_compare_and_the_default_needs_no_name(tmp_path, capsys):
    """Broken on purpose: the option left out of what opens the data; the default kept among the parameters."""
    command = ["train", "--dataset", "criteo-synth", "--rows", "600", "--steps", "2", "--results", str(tmp_path)]
    for given in ((), ("--convention", "dlrm-log1p"), ("--convention", "x4_001")):
        assert cli.main([*command, *given]) == 0
    assert "criteo-synth (SYNTHETIC, 600 rows, x4_001, split by time)" in capsys.readouterr().out
    ids = sorted(path.name for path in (tmp_path / "train").iterdir())
    stated = [results.load(name, results_dir=tmp_path).manifest for name in ids]
    assert [run["dataset"]["convention"].split()[0] for run in stated] == ["dlrm-log1p", "dlrm-log1p", "x4_001"]
    assert [run["params"].get("convention") for run in stated] == [None, None, "x4_001"]
    compare = ["results", "compare", "--results", str(tmp_path)]
    assert cli.main([*compare, *ids[:2]]) == 0
    assert cli.main([*compare, *ids[1:]]) == 2
    assert "do not compare: their data's convention differs" in capsys.readouterr().err


def first_data() -> SequenceData:
    options = TrainOptions.of("hstu", **NEXT_ITEM)
    given = SequenceOptions(history=12, split="time", windows="all", negatives=8)
    return open_data(options).sequences(given)


def run_of(folder: Path, *options: str) -> results.LoadedRun:
    small = [f"--{name.replace('_', '-')}={value}" for name, value in (NEXT_ITEM | {"max_steps": 3}).items()]
    small = [each.replace("--max-steps", "--steps") for each in small if not each.startswith("--evaluations")]
    assert cli.main(["train", "--results", str(folder), *small, *options]) == 0
    return results.load(max(path.name for path in (folder / "train").iterdir()), results_dir=folder)


def test_a_run_says_by_what_it_was_judged(tmp_path, capsys):
    """Models of one protocol compare; other histories are another protocol, and are refused."""
    first = run_of(tmp_path, "--model", "hstu")
    run_of(tmp_path, "--model", "sasrec")
    out = capsys.readouterr().out
    assert "held out: unseen_HR@10 " in out and "unseen_NDCG@10 " in out
    popular = rank_by_popularity(first_data(), protocol=RankingProtocol(leave_out_seen=True)).metrics
    assert f"to pass: most popular: unseen_HR@10 {popular['unseen_HR@10']:.4f}, " in out
    assert re.search(
        r"^training: [\d,]+ samples in \d+ batches; .+ 3 steps; learning rates 0.3 \(rowwise_ada", out, re.M
    )
    assert re.search(r"^held out: [\d,]+ windows", out, re.M)
    assert re.search(r"^final unseen_NDCG@10 0\.\d+ after step 3; best 0\.\d+ after step [123]$", out, re.M)
    summary, metrics = first.manifest["summary"], first.table("metrics")
    assert summary["most_popular.unseen_HR@10"] == popular["unseen_HR@10"] > 0
    assert {"unseen_HR@10", "unseen_NDCG@10", "unseen_MRR", "step_ms"} <= set(summary) and "auc" not in summary
    assert metrics["which"].tolist() == ["final", "best unseen_NDCG@10"] and "auc_low" not in metrics
    assert first.manifest["params"]["negatives"] == 8 and first.manifest["protocol"]["seen"] == "left out"
    compare = ["results", "compare", "--results", str(tmp_path), "--metric", "unseen_HR@10"]
    assert cli.main([*compare, "--by", "model"]) == 0
    assert "sasrec" in capsys.readouterr().out
    run_of(tmp_path, "--model", "hstu", "--history", "6")
    assert cli.main(compare) == 2
    assert "do not compare: their data's convention differs" in capsys.readouterr().err
    assert cli.main(["results", "index", "--results", str(tmp_path)]) == 0
    assert "unseen_NDCG@10" in (tmp_path / "index.html").read_text()
