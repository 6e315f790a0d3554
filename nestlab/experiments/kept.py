"""What every training leaves in its run folder: tables, trace, account of memory, key figures."""

from __future__ import annotations

import math

import pandas as pd

from nestlab import results
from nestlab.tracing import Trace, summary, write_chrome_trace
from nestlab.tracing.memory import totals
from nestlab.training import ClickJudge, History, Judge, Recipe
from nestlab.training.metrics import auc_interval


def train_and_keep(recipe: Recipe, run: results.Run) -> tuple[History, pd.DataFrame, Trace]:
    """Trains, tells how it goes, and writes everything into `run`, which stays open.

    Returns:
        history, the metrics (final and best look; of clicks the final one with the interval of its AUC), and the trace.
    """
    run.dataset(recipe.info)
    run.protocol(**recipe.protocol)
    print(recipe.info.title, flush=True)
    passed = _baseline(recipe)
    history = recipe.fit(report=lambda line: print(line, flush=True))
    print(_ending(history, recipe.judge), flush=True)
    trace, metrics = recipe.trace(), _metrics(recipe, history)
    run.table("steps", history.steps_frame())
    run.table("evaluations", history.evaluations_frame())
    run.table("metrics", metrics)
    if history.saves:
        run.table("checkpoints", history.saves_frame())
        seconds = sum(save["seconds"] for save in history.saves)
        run.summary(checkpoint_ms_per_step=1000 * seconds / history.own_steps)
    write_chrome_trace(recipe.trace_of_all_ranks(trace), run.path / "trace.json.gz")
    memory = recipe.memory(trace)
    run.table("memory", memory)
    run.summary(**_key_figures(recipe, history, trace), **passed, **totals(memory), **_tiers(recipe, run))
    return history, metrics, trace


def _tiers(recipe: Recipe, run: results.Run) -> dict[str, float]:
    """What caches, disk and rules did: a table `tiers`, a line, and the rates among the key figures."""
    store = recipe.model.embedding
    done = store.traffic()
    run.table("tiers", pd.DataFrame({"what": done.keys(), "value": done.values()}))
    rates = {}
    if asked := done["hits"] + done["misses"]:
        rates["hit_rate"] = done["hits"] / asked
    if store.options.features.admit != "none":
        rates["refused_share"] = done["refused"] / max(done["known"] + done["inserts"] + done["refused"], 1)
    if rates or store.options.disk or store.options.features.evict != "none":
        print(_line(done, rates), flush=True)
    return rates


def _line(done: dict[str, int], rates: dict[str, float]) -> str:
    parts = [f"{name.replace('_', ' ')} {value:.1%}" for name, value in rates.items()]
    shown = ("writebacks", "evicted", "records_read_from_disk", "records_written_to_disk")
    parts += [f"{name.replace('_', ' ')} {done[name]:,}" for name in shown if done[name]]
    return "tiers: " + ", ".join(parts or ["nothing moved"])


def _metrics(recipe: Recipe, history: History) -> pd.DataFrame:
    metrics = history.metrics_frame()
    if not isinstance(recipe.judge, ClickJudge):
        return metrics
    interval = auc_interval(*history.last_look, seed=recipe.options.seed)
    # Of the final model alone: the best look's model is gone.
    metrics[["auc_low", "auc_high"]] = float("nan")
    metrics.loc[0, ["auc_low", "auc_high"]] = interval
    return metrics


def _baseline(recipe: Recipe) -> dict[str, float]:
    """Key figures; said before the first step, since a figure of a ranking means nothing without it."""
    if (found := recipe.judge.baseline()) is None:
        return {}
    name, metrics = found
    print(f"to pass: {name}: {recipe.judge.told(metrics)}", flush=True)
    return {f"{name.replace(' ', '_')}.{each}": value for each, value in recipe.judge.figures(metrics).items()}


def _ending(history: History, judge: Judge) -> str:
    """The last look beside the best, which is of another step where training went on too long; or why neither is."""
    last, best = history.metrics_frame().to_dict("records")
    name = history.best
    if math.isnan(best[name]):
        return f"no final {name}: {judge.why_none(history.last_look)}; read more rows"
    told = [f"{name} {row[name]:.4f} after step {row['step']}" for row in (last, best)]
    return f"final {told[0]}; best {told[1].removeprefix(f'{name} ')}"


def _key_figures(recipe: Recipe, history: History, trace: Trace) -> dict[str, float]:
    figures = recipe.judge.figures(history.evaluations[-1])
    rate = history.samples / history.train_seconds
    timed = {"step_ms": summary(trace)["step_ms_median"]} if trace.events else {}  # nothing was left to train
    return {**figures, "samples_per_s": rate, **timed}
