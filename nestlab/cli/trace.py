"""`nestlab trace show / export / open / diff`: the timelines of runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestlab import paths
from nestlab.errors import UserError

if TYPE_CHECKING:
    from nestlab.results import LoadedRun
    from nestlab.tracing import Trace

SUFFIX = ".json.gz"
FILE = f"trace{SUFFIX}"


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("trace", help="timelines: one step as text, a page, Perfetto, two runs compared")
    commands = parser.add_subparsers(dest="trace_command", metavar="show|export|open|diff", required=True)
    show = commands.add_parser("show", help="one step as text: what ran when, and what the compute lane waited for")
    show.add_argument("--step", metavar="K", type=int, help="the batch's number; default: the step of median duration")
    show.add_argument("--rank", metavar="R", type=int, help="default: the first")
    show.set_defaults(main=main_show)
    export = commands.add_parser("export", help="the timeline as a file of its own")
    export.add_argument("--html", action="store_true", help="one page that opens from disk and in JupyterLab (default)")
    export.add_argument("--hta", metavar="FILE", help="for HolisticTraceAnalysis: .json or .json.gz, a file a rank")
    export.add_argument("-o", "--output", metavar="FILE", help="of the page; default: trace-RUN.html in this folder")
    export.set_defaults(main=main_export)
    opened = commands.add_parser("open", help="the timeline in Perfetto, without network, until Ctrl-C")
    opened.add_argument("--port", metavar="N", type=int, default=0, help="default: a free one")
    opened.add_argument("--no-browser", action="store_true", help="print the address only")
    opened.set_defaults(main=main_open)
    compared = commands.add_parser("diff", help="two runs: time, exposed time and bytes of every stage, a step")
    compared.add_argument("a", metavar="A", help="a run's folder, or the beginning of its id")
    compared.add_argument("b", metavar="B")
    for side in "ab":
        compared.add_argument(f"--which-{side}", metavar="NAME", help=f"of {side.upper()}, where it has several traces")
    compared.add_argument("--json", action="store_true", help="one JSON value on standard output")
    compared.set_defaults(main=main_diff)
    for command in (show, export, opened):
        command.add_argument("run", metavar="RUN", help="a run's folder, or the beginning of its id")
        command.add_argument(
            "--which", metavar="NAME", help="of a run with several traces: trace_before, trace_after, …"
        )
    for command in (show, export, opened, compared):
        command.add_argument("--results", metavar="DIR", help="default: results, here or in the project's folder")


def main_show(args: argparse.Namespace) -> int:
    from nestlab.tracing import breakdowns
    from nestlab.tracing.one_step import as_text, find_step

    run, trace = _load(args.run, args.results, args.which)
    try:
        step = find_step(trace, args.step, args.rank)
    except LookupError as error:
        raise UserError(f"trace show {run.id}: {error.args[0]}") from None
    print(f"run {run.id}\n{as_text(step, trace.meta, breakdowns(trace, batch=step.step.batch))}")
    return 0


def main_export(args: argparse.Namespace) -> int:
    run, trace = _load(args.run, args.results, args.which)
    if args.html or args.output or not args.hta:
        from nestlab.tracing.html import write_html

        path = Path(args.output or f"trace-{run.id}{_ending(args.which)}.html")
        name = f"{run.manifest.get('experiment', '')} {run.id}".strip()
        print(_written(path, lambda: [write_html(trace, path, name)]))
    if args.hta:
        from nestlab.tracing.hta import write_hta

        print(_written(Path(args.hta), lambda: write_hta(trace, args.hta)))
    return 0


def main_open(args: argparse.Namespace) -> int:
    from nestlab.tracing import serve

    run, _ = _load(args.run, args.results, args.which)  # a file that cannot be read is told here, not by an empty page
    server = serve.server(_file(run, args.which), args.port)
    with server:
        print(f"run {run.id}: {serve.url(server)}  (Ctrl-C ends)", flush=True)
        if not args.no_browser and _has_browser():
            import webbrowser

            webbrowser.open(serve.url(server))
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:  # the usual end, not an error
            print()
    return 0


def main_diff(args: argparse.Namespace) -> int:
    from nestlab.tracing.diff import diff

    (run_a, a), (run_b, b) = (
        _load(*each) for each in ((args.a, args.results, args.which_a), (args.b, args.results, args.which_b))
    )
    result = {"a": run_a.id, "b": run_b.id, **diff(a, b)}
    if _fingerprint(run_a) != _fingerprint(run_b) and not any("data set" in line for line in result["warnings"]):
        result["warnings"].insert(0, f"the data sets differ: {_fingerprint(run_a)} | {_fingerprint(run_b)}")
    if args.json:
        print(json.dumps(result))
    else:
        print(_diff_text(result))
    return 0


def _run(name: str, results_dir: str | None) -> LoadedRun:
    from nestlab import results

    return results.load(name, results_dir or paths.results_dir())


def _file(run: LoadedRun, which: str | None = None) -> Path:
    """The run's trace, or the one of several that is asked for, with or without `trace_` before its name.

    Raises:
        UserError: there is none, none of that name, or several and none was asked for.
    """
    there = {path.name.removesuffix(SUFFIX): path for path in sorted(run.path.glob(f"trace*{SUFFIX}"))}
    if not there:
        raise UserError(
            f"run {run.id} has no {FILE}: its status is {run.manifest.get('status')}, and it traced no step"
        )
    for name in ("trace",) if which is None else (which.removesuffix(SUFFIX), f"trace_{which}"):
        if name in there:
            return there[name]
    if which is None and len(there) == 1:
        return next(iter(there.values()))
    missing = "it has several" if which is None else f"it has none named {which}"
    raise UserError(
        f"run {run.id}: which trace? {missing}; name one of {', '.join(there)} by --which (diff: --which-a, --which-b)"
    )


def _load(name: str, results_dir: str | None, which: str | None = None) -> tuple[LoadedRun, Trace]:
    from nestlab.tracing import read_chrome_trace

    run = _run(name, results_dir)
    path = _file(run, which)
    try:
        return run, read_chrome_trace(path)
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, zlib.error) as error:
        raise UserError(f"run {run.id}: its {path.name} cannot be read: {error}") from None


def _ending(which: str | None) -> str:
    return f"-{which.removeprefix('trace_').removesuffix(SUFFIX)}" if which else ""


def _written(path: Path, write) -> str:
    """The files' names and sizes."""
    try:
        return "\n".join(f"{written} ({written.stat().st_size / 1024:,.0f} KiB)" for written in write())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another file") from None
    except ValueError as error:
        raise UserError(f"trace export: {error}") from None


def _has_browser() -> bool:
    """Whether a window can open. Without one Python would start a text browser in this very terminal."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _fingerprint(run: LoadedRun) -> str:
    dataset = run.manifest.get("dataset")
    return f"{dataset.get('id')} {dataset.get('fingerprint')}" if isinstance(dataset, dict) else "not recorded"


def _diff_text(result: dict[str, Any]) -> str:
    from nestlab.cli.text import aligned

    lines = [f"{side.upper()} {result[side]}: {_spread(result['steps'][side])}" for side in ("a", "b")]
    middle = [result["steps"][side]["median_ms"] for side in ("a", "b")]
    lines.append(f"median step, B over A: {_ratio(middle[1] / middle[0] if middle[0] else None)}")
    lines += [f"warning: {warning}" for warning in result["warnings"]]
    rows = [["stage", "a step", "A", "B", "B − A", "B / A"]]
    for row in result["stages"]:
        if row["a"] or row["b"]:
            rows.append(_cells(row))
    return "\n".join([*lines, "", aligned(rows)])


def _cells(row: dict[str, Any]) -> list[str]:
    is_bytes = row["measure"] == "bytes"
    form = "{:,.0f}" if is_bytes else "{:.3f}"
    signed = "{:+,.0f}" if is_bytes else "{:+.3f}"
    measure = {"time_ms": "time, ms", "exposed_ms": "exposed, ms", "bytes": "bytes"}[row["measure"]]
    values = [form.format(row["a"]), form.format(row["b"]), signed.format(row["difference"])]
    return [row["stage"], measure, *(value.rjust(12) for value in values), _ratio(row["ratio"]).rjust(7)]


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _spread(steps: dict[str, float]) -> str:
    return (
        f"step {steps['median_ms']:.3f} ms (median; p10 {steps['p10_ms']:.3f}, p90 {steps['p90_ms']:.3f};"
        f" {steps['steps']} steps)"
    )
