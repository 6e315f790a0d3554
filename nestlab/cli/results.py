"""`nestlab results`: list, show, compare, export, prune and index the runs of the store."""

from __future__ import annotations

import argparse
import json
from typing import Any

from nestlab.cli import results_compare, results_list, results_upkeep
from nestlab.cli.text import aligned, number

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


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("results", help="list, show, compare, export and prune runs")
    commands = parser.add_subparsers(dest="results_command", metavar="COMMAND", required=True)
    results_list.add_parser(commands, add_folder)
    show = commands.add_parser("show", help="one run: its manifest and its tables")
    show.add_argument("run", metavar="RUN", help="a run's folder, or the beginning of its id")
    add_folder(show)
    show.add_argument("--json", action="store_true", help="one JSON value on standard output")
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
        _print_fields({name: number(value) for name, value in figures.items()})
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


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
