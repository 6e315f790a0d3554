"""Where a step goes, technique by technique: computing, and waiting for look-up, communication and the rest.

Predicted before the first run: DBP takes the look-up off the step, FWP leaves about 1/N of the exchange, both together
make the step 1.7 times as fast under the links. On loopback there is nothing to hide, two ranks and their lanes share
the cores, and the techniques cost more than they bring.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nestlab import plotting
from nestlab.experiments.nestpipe import facts
from nestlab.experiments.nestpipe.cases import BOTH, DEPTH, NESTPIPE, NONE
from nestlab.experiments.nestpipe.judging import (
    exposed_counts,
    exposed_note,
    in_stages,
    nested,
    overlaps,
    owner_deduplicates,
    owner_note,
    sent,
)
from nestlab.experiments.nestpipe.links import EMULATED, LOOPBACK, linked, loopback
from nestlab.experiments.tables import (
    Said,
    answer,
    chosen,
    medians,
    rounded,
    rounds_text,
    share,
    spread_text,
    whiskers,
)
from nestlab.techniques import preset

STALE = "stale"
_CUT_SMALL = 1.5  # times the computation of the whole batch: micro-batches too small to bring anything
_PARTS = {
    "compute_ms": "computing",
    "exposed_lookup_ms": "waiting for look-up",
    "exposed_comm_ms": "waiting for communication",
    "rest_ms": "waiting for the rest (loader, threads, the recorder)",
    "step_ms": "not traced: the whole step",
}
_DIGEST = {
    "case": "case",
    "setting": "where",
    "step_ms": "step, ms (median round, of two the quicker)",
    "spread": "step, ms (least to most)",
    "samples_s": "samples a second",
    "speedup": "speed, × none",
    "compute_ms": "computing, ms",
    "lookup_ms": "look-up, ms",
    "exposed_lookup_ms": "look-up exposed, ms",
    "comm_ms": "communication, ms",
    "exposed_comm_ms": "communication exposed, ms",
    "utilisation": "utilisation, %",
    "peak_tables_bytes": "peak of tables, MB",
    "peak_device_bytes": "peak of all on the device, MB",
}


def by_case(frame: pd.DataFrame) -> pd.DataFrame:
    """The median round of each, and `speedup` over the case `none` of the same setting."""
    found = medians(frame, ["setting", "case"])
    plain = found[found["case"] == NONE].set_index("setting")["step_ms"]
    found["speedup"] = found["setting"].map(plain) / found["step_ms"]
    idle = found["exposed_lookup_ms"] + found["exposed_comm_ms"]
    found["rest_ms"] = (found["step_ms"] - found["compute_ms"] - idle).clip(lower=0)
    return found


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """A panel a setting, a bar a case, its parts summing to the step."""
    found = by_case(frame)
    settings = [each for each in (LOOPBACK, EMULATED) if (found["setting"] == each).any()]
    most = max((found["setting"] == each).sum() for each in settings)
    with plotting.style():
        figure = plotting.new_figure(11.0, 1.5 + 0.34 * most)
        grid = figure.subplots(1, len(settings), squeeze=False)
        for axes, setting in zip(grid[0], settings, strict=True):
            _panel(axes, setting, found[found["setting"] == setting])
            axes.set_xlim(0, found["step_ms_high"].max() * 1.5)  # one scale, so that panels can be compared
        handles = {label: bar for axes in grid[0] for bar, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _panel(axes: Axes, setting: str, rows: pd.DataFrame) -> None:
    whole = rows["compute_ms"].isna()
    left = pd.Series(0.0, index=rows.index)
    for number, (column, label) in enumerate(_PARTS.items()):
        widths = rows[column].where(whole if column == "step_ms" else ~whole, 0.0).fillna(0.0)
        if widths.sum() > 0:
            axes.barh(rows["case"], widths, 0.74, left, label=label, **plotting.bar_style(number))
        left = left + widths
    rounds, ends = int(rows["rounds"].max()), rows["step_ms_high"].clip(lower=left)
    if rounds > 1:
        axes.errorbar(
            rows["step_ms"], range(len(rows)), xerr=whiskers(rows), fmt="none", ecolor=plotting.INK, capsize=2.5
        )
    for y, (end, step, speedup) in enumerate(zip(ends, rows["step_ms"], rows["speedup"], strict=True)):
        axes.text(end, y, f"  {rounded(step)} ms, {speedup:.2f}×", va="center", fontsize=7.5)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=f"ms a step, and speed against none\n({rounds_text(rounds)})")
    axes.grid(False, axis="y")
    axes.set_title(f"{setting}, measured" if setting == LOOPBACK else setting)


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a case and setting; times of a step, means over its ranks, of the median round."""
    found = by_case(frame)
    return chosen(found.assign(spread=found.apply(spread_text, axis=1)), _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    """What the numbers of this run come to."""
    under, bare = linked(by_case(frame)), loopback(by_case(frame))
    none, full, both = under.loc[NONE], under.loc[NESTPIPE], under.loc[BOTH]
    lines = [
        f"Under the links the plain step loses {share(none['lookup_share'])} of its time to look-up and "
        f"{share(none['comm_share'])} to communication; it computes in {share(1 - none['idle_share'])} of it. "
        f"With both "
        f"pipelines these are {share(both['lookup_share'])} and {share(both['comm_share'])}, and with clustering too "
        f"{share(full['lookup_share'])} and {share(full['comm_share'])}: {full['speedup']:.2f} times the plain speed.",
        _faster("DBP alone", under.loc["DBP"]) + " " + _faster("FWP alone", under.loc["FWP"]),
        f"On loopback, where no link waits to be hidden, the same techniques run at "
        f"{bare.loc[NESTPIPE]['speedup']:.2f} "
        f"times the plain speed: {_loopback(bare.loc[NESTPIPE]['speedup'])}",
        _cutting(none, full),
        _averaging(under),
        _torchrec(bare),
    ]
    return Said("\n\n".join(filter(None, lines)))


def _faster(name: str, row: pd.Series) -> str:
    return (
        f"{name}: {row['speedup']:.2f} times; exposed look-up {row['exposed_lookup_ms']:.3g} ms, exposed "
        f"communication {row['exposed_comm_ms']:.3g} ms a step."
    )


def _cutting(none: pd.Series, full: pd.Series) -> str:
    """What a batch's computation costs in parts, where that is much: calls, and lanes on the same cores."""
    more, parts = full["compute_ms"] / none["compute_ms"], int(full["parts"])
    if more < _CUT_SMALL:
        return ""
    return (
        f"Computing took {none['compute_ms']:.3g} ms in one piece and {full['compute_ms']:.3g} ms in {parts}: "
        f"**{more:.1f} times as long**, by what a call costs whatever its samples and by lanes that share the cores. "
        "No overlap wins that back: take a larger batch or fewer micro-batches."
    )


def _averaging(under: pd.DataFrame) -> str:
    """What 2D sparse parallelism waits for, where there is such a row."""
    if (name := f"{NESTPIPE} + 2D") not in under.index:
        return ""
    row, flat = under.loc[name], under.loc[NESTPIPE]
    return (
        f"2D: each group exchanges rows among its own ranks alone ({row['exposed_rows_ms']:.3g} ms exposed, "
        f"{flat['exposed_rows_ms']:.3g} ms without groups), and then averages what it trained with the other groups "
        f"({row['exposed_replicas_ms']:.3g} ms exposed): on few ranks, where a group holds much of all rows, averaging "
        "is the larger transfer of the two; between many ranks it need not be."
    )


def _loopback(speedup: float) -> str:
    if speedup < 1:
        return "lanes, micro-batches and prefetches cost more than they bring there."
    return "what they hide is worth their cost there too."


def _torchrec(bare: pd.DataFrame) -> str:
    theirs = bare[bare.index.str.startswith("torchrec")]
    if theirs.empty:
        return "torchrec's pipelines are not in the table: torchrec cannot be used here, or not on these batches."
    exact = bare[bare["exactness"].str.startswith("exact", na=False)]
    best, ours = theirs["step_ms"].idxmin(), exact["step_ms"]
    ratio = theirs["step_ms"].min() / ours.min()
    return (
        f"Of torchrec's two pipelines (CPU, gloo, table-wise, one pass over the same batches) {best.split()[1]} is the "
        f"quicker; our quickest exact row, *{ours.idxmin()}*, takes {1 / ratio:.2f} times as long. "
        "`nestlab bench pipeline` compares them over many more steps and variants."
    )


def key_figures(frame: pd.DataFrame) -> dict[str, float]:
    under, bare = linked(by_case(frame)), loopback(by_case(frame))
    return {
        "emulated_link_speedup": round(float(under.loc[NESTPIPE, "speedup"]), 3),
        "emulated_link_idle_before": round(float(under.loc[NONE, "idle_share"]), 4),
        "emulated_link_idle_after": round(float(under.loc[NESTPIPE, "idle_share"]), 4),
        "step_ms": round(float(bare.loc[NESTPIPE, "step_ms"]), 3),
        "peak_device_bytes": float(bare.loc[NESTPIPE, "peak_device_bytes"]),
    }


def answers(frame: pd.DataFrame) -> list[dict]:
    """What the traces and byte counts of the ablation say of the mechanisms."""
    under, bare = linked(by_case(frame)), loopback(by_case(frame))
    full = under.loc[NESTPIPE]
    found = [
        answer(
            "NP-P-001", nested(bare), "measured", "every rank owns rows, no server; N and batches in flight above 1"
        ),
        answer("NP-P-011", bool(full["five_stages"] and _one_apart()), "measured", _stages_note()),
        answer("NP-P-012", in_stages(full), "measured", f"depth {DEPTH}: LOAD to UPDATE in the trace, each at a stage"),
        answer("NP-P-017", bool(full["stage_five"]), "measured", "order of the actions of every traced batch"),
        answer("RL-P-029", bool(under.loc["DBP", "copied_keys"] > 0), "measured", "records are copied between buffers"),
        answer("NP-P-016", owner_deduplicates(full), "measured", owner_note(full)),
        answer("NP-P-019", float(bare.loc[NESTPIPE, "commit_ms"]), "measured", _copy_note(bare.loc[NESTPIPE])),
        answer("NP-P-024", float(full["exchanges_a_part"]), "measured", "row and gradient exchanges, in the trace"),
        answer("NP-P-030", bool(_hidden(full)), "measured", _clustering_note(full)),
    ]
    if full["full_bytes"] > 0:
        found += _of_links(under)
    if (two_d := f"{NESTPIPE} + 2D") in bare.index:
        less = bool(sent(bare.loc[two_d]) < sent(bare.loc[NESTPIPE]))
        found.append(answer("RL-P-001", less, "measured", "rows leave a rank for its own group alone"))
    return found


def _one_apart() -> bool:
    """Whether the preset's five stages work on five batches, each on the one before the next stage's."""
    return list(facts.look_ahead(preset("nestpipe")).values()) == [4, 3, 2, 1, 0]


def _stages_note() -> str:
    ahead = ", ".join(f"{stage} {n}" for stage, n in facts.look_ahead(preset("nestpipe")).items())
    return f"validated schedule of the preset, batches ahead: {ahead}; the trace has each batch's stages in order"


def _of_links(under: pd.DataFrame) -> list[dict]:
    """Where rows travel between ranks."""
    fwp, none, dbp = under.loc["FWP"], under.loc[NONE], under.loc["DBP"]
    saved = 100 * (1 - dbp["exposed_lookup_ms"] / none["exposed_lookup_ms"])
    int8 = under.loc[f"{NESTPIPE} + int8"]
    less = 100 * (1 - sent(int8) / int8["full_bytes"])
    overlapped, beside = fwp["windows_that_overlap"], share(fwp["overlapped_share"])
    window = (
        f"{share(overlapped)} of neighbouring micro-batches overlap both ways; {beside} of the exchange's time lies "
        f"beside computation, of {share(1 - 1 / fwp['parts'])} that can"
    )
    return [
        answer("NP-P-010", exposed_counts(none, fwp, dbp), EMULATED, exposed_note(none, fwp, dbp)),
        answer("NP-P-022", overlaps(fwp), EMULATED, window),
        answer(
            "NP-P-048", float(saved), EMULATED, f"{none['exposed_lookup_ms']:.3g} → {dbp['exposed_lookup_ms']:.3g} ms"
        ),
        answer("NP-A-012", float(less), "measured", "bytes of rows and gradients that leave a rank, from float32"),
    ]


def _copy_note(row: pd.Series) -> str:
    return f"{row['copied_keys']:,.0f} records, {row['copied_bytes'] / 1e3:,.0f} kB a step, in plain memory"


def _hidden(row: pd.Series) -> bool:
    return row["exposed_loader_ms"] < 0.01 * row["step_ms"]


def _clustering_note(row: pd.Series) -> str:
    return (
        f"LOAD with clustering takes {row['load_ms']:.3g} ms, of which {row['exposed_loader_ms']:.2g} ms are waited for"
    )
