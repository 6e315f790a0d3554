"""`nestlab results`: list, show, compare, export, prune and index the runs of the store."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

from nestlab.cli import results_compare, results_upkeep
from nestlab.cli.text import aligned

_STATED = (
    "status",
    "experiment",
    "title",
    "how",
    "via",
    "seed",
    "start",
    "end",
    "duration_s",
    "exit_code",
    "exception",
)
_ABOUT = ("dataset", "params", "world_size", "argv", "launcher_argv")  # before packages, hashes and the machine
_REASON = 100  # characters of a failed run's reason in a list


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("results", help="list, show, compare, export and prune runs")
    commands = parser.add_subparsers(dest="results_command", metavar="COMMAND", required=True)
    listing = commands.add_parser("list", help="all runs, oldest first")
    show = commands.add_parser("show", help="one run: its manifest and its tables")
    show.add_argument("run", metavar="RUN", help="a run's folder, or the beginning of its id")
    for command in (listing, show):
        add_folder(command)
        command.add_argument("--json", action="store_true", help="one JSON value on standard output")
    listing.set_defaults(main=main_list)
    show.set_defaults(main=main_show)
    results_compare.add_parsers(commands, add_folder)
    results_upkeep.add_parsers(commands, add_folder)


def add_folder(parser: argparse.ArgumentParser) -> None:
    help_text = "default: results, here or in the project's folder"
    parser.add_argument("--results", metavar="DIR", default=None, help=help_text)


def folder(args: argparse.Namespace) -> str:
    """The folder of all runs: as named, else where notebooks write by default."""
    from nestlab import paths

    return args.results if args.results is not None else str(paths.results_dir())


def main_list(args: argparse.Namespace) -> int:
    from nestlab import results
    from nestlab.results.manifest import plain

    frame = results.list_runs(folder(args))
    rows = [{key: _missing(value) for key, value in row.items()} for row in frame.to_dict("records")]
    if args.json:
        print(json.dumps(plain(rows)))
    elif not rows:
        print(f"no runs in {folder(args)}")
    else:
        header = ["run", "status", "experiment", "dataset", "how", "key figures", "seconds"]
        print(aligned([header, *(_line(row) for row in rows)]))
    return 0


def main_show(args: argparse.Namespace) -> int:
    from nestlab import results

    loaded = results.load(args.run, folder(args))
    if args.json:
        print(json.dumps({**loaded.manifest, "path": str(loaded.path), "tables": loaded.tables}))
        return 0
    content = loaded.manifest
    print(f"run {loaded.id}\n{loaded.path}\n")
    told = (*_STATED, *_ABOUT, "run_id", "reported", "summary")
    rest = [name for name in content if name not in told]
    _print_fields({name: content.get(name) for name in _STATED})
    if figures := content.get("summary"):
        print("\nkey figures")
        _print_fields({name: _number(value) for name, value in figures.items()})
    print()
    _print_fields({name: content.get(name) for name in [*_ABOUT, *rest]})
    for name in loaded.tables:
        frame = loaded.table(name)
        print(f"\ntable {name}: {len(frame)} rows\n{frame.head(20).to_string(index=False)}")
        if len(frame) > 20:
            print(f"… and {len(frame) - 20} more")
    return 0


def _print_fields(fields: dict[str, Any]) -> None:
    """A line a field; what is not known is left out."""
    known = [[name, _text(value)] for name, value in fields.items() if value is not None]
    if known:
        print(aligned(known))


def _line(row: dict[str, Any]) -> list[str]:
    dataset = row["dataset"]
    named = f"{dataset.get('id')} ({dataset.get('kind')})" if isinstance(dataset, dict) else "–"
    summary = row["summary"] if isinstance(row["summary"], dict) else {}
    figures = ", ".join(f"{name}={_number(value)}" for name, value in summary.items())
    if row["status"] not in ("ok", "running") and row["exception"]:
        figures = textwrap.shorten(row["exception"], _REASON, placeholder=" …")
    seconds = "–" if row["duration_s"] is None else f"{row['duration_s']:.1f}"
    return [row["run_id"], row["status"], row["experiment"], named, row["how"] or "–", figures or "–", seconds]


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _missing(value: Any) -> Any:
    """pandas' own marks for a missing value become None."""
    import pandas

    return None if pandas.api.types.is_scalar(value) and pandas.isna(value) else value
