"""`nestlab run NOTEBOOK`: one notebook as one run, with an exit status that can be believed."""

from __future__ import annotations

import argparse
from pathlib import Path

from nestlab import paths
from nestlab.errors import UserError


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("run", help="run one notebook", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("notebook", metavar="NOTEBOOK", type=Path)
    parser.add_argument("-p", "--parameter", metavar="NAME=VALUE", action="append", default=[], dest="given")
    help_text = "default: results, here or in the project's folder"
    parser.add_argument("--results", metavar="DIR", type=Path, default=None, help=help_text)
    parser.add_argument("--timeout", metavar="SECONDS", type=float, help="for the whole notebook; default: none")
    parser.add_argument("--kernel", metavar="NAME", default="python3", help="default: this interpreter's")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    from nestlab import notebook

    if args.timeout is not None and args.timeout <= 0:
        raise UserError(f"--timeout {args.timeout:g} leaves no time: give a number of seconds above 0")
    given = pairs(args.given)
    request = notebook.Request(args.notebook, given, _results(args.results, given), args.timeout, args.kernel)
    return notebook.run(request)


def pairs(given: list[str], option: str = "-p") -> dict[str, str]:
    """`name=value` words, the way they are given to an option."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"{option} {text} is not of the form name=value")
        found[name.strip()] = value
    return found


def _results(named: Path | None, given: dict[str, str]) -> Path:
    """The folder of runs: --results, or what `-p results=` says, which a run has no other use for.

    Raises:
        UserError: the two differ.
    """
    if "results" not in given:
        return paths.results_dir() if named is None else named
    if named is not None and named != Path(given["results"]):
        raise UserError(f"--results {named} and -p results={given['results']} differ; give one of them")
    return Path(given["results"])
