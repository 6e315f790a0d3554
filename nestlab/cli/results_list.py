"""`nestlab results list`: a line a run. On a terminal lines end at its width; piped they are whole."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable
from typing import Any

from nestlab.errors import UserError

_HEADER = ["run", "status", "experiment", "scale", "model", "dataset", "seconds", "how", "key figures"]
_REASON = 100  # characters of a failed run's reason


def add_parser(commands, add_folder: Callable[[argparse.ArgumentParser], None]) -> None:
    about = "All runs, oldest first. On a terminal a line ends at its width; piped or with --json it is whole."
    parser = commands.add_parser("list", help="all runs, oldest first", description=about)
    parser.add_argument("--experiment", metavar="NAME", help="only runs of this experiment")
    parser.add_argument("--last", metavar="N", type=int, help="only the newest N of them")
    add_folder(parser)
    parser.add_argument("--json", action="store_true", help="one JSON value on standard output")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    from nestlab.cli.results import folder
    from nestlab.cli.text import aligned, fitted
    from nestlab.results.manifest import plain

    rows = _rows(args, folder(args))
    if args.json:
        print(json.dumps(plain(rows)))
    elif not rows:
        print(f"no runs in {folder(args)}")
    else:
        print(fitted(aligned([_HEADER, *(_line(row) for row in rows)])))
    return 0


def _rows(args: argparse.Namespace, results_dir: str) -> list[dict[str, Any]]:
    """Those that are asked for.

    Raises:
        UserError: there are runs and none of the experiment, or less than one is asked for.
    """
    from nestlab import results

    if args.last is not None and args.last < 1:
        raise UserError(f"--last {args.last}: give a number of runs from 1 on")
    frame = results.list_runs(results_dir)
    there = sorted(set(frame["experiment"]))
    if args.experiment is not None and there and args.experiment not in there:
        raise UserError(f"no run of experiment '{args.experiment}' in {results_dir}: there is {', '.join(there)}")
    if args.experiment is not None:
        frame = frame[frame["experiment"] == args.experiment]
    if args.last is not None:
        frame = frame.tail(args.last)
    return [{key: _missing(value) for key, value in row.items()} for row in frame.to_dict("records")]


def _line(row: dict[str, Any]) -> list[str]:
    seconds = "–" if row["duration_s"] is None else f"{row['duration_s']:.1f}"
    params = row["params"] if isinstance(row["params"], dict) else {}
    about = [row["run_id"], row["status"], row["experiment"], _scale(params), _model(params), _dataset(row["dataset"])]
    return [*about, seconds, row["how"] or "–", _figures(row)]


def _scale(params: dict[str, Any]) -> str:
    """A run at smoke stands out: it only shows that everything runs."""
    scale = str(params.get("scale") or "–")
    return "SMOKE" if scale == "smoke" else scale


def _model(params: dict[str, Any]) -> str:
    several = params.get("models")
    return str(params.get("model") or (f"{len(several)} models" if isinstance(several, list) else "–"))


def _dataset(dataset: Any) -> str:
    return f"{dataset.get('id')} ({dataset.get('kind')})" if isinstance(dataset, dict) else "–"


def _figures(row: dict[str, Any]) -> str:
    """Key figures; of a run that did not end well the reason."""
    from nestlab.cli.text import number

    if row["status"] not in ("ok", "running") and row["exception"]:
        return textwrap.shorten(row["exception"], _REASON, placeholder=" …")
    summary = row["summary"] if isinstance(row["summary"], dict) else {}
    return ", ".join(f"{name}={number(value)}" for name, value in summary.items()) or "–"


def _missing(value: Any) -> Any:
    """pandas' own marks for a missing value become None."""
    import pandas

    return None if pandas.api.types.is_scalar(value) and pandas.isna(value) else value
