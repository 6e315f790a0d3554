"""`nestlab run NOTEBOOK`: one notebook as one run, with an exit status that can be believed."""

from __future__ import annotations

import argparse
from pathlib import Path

from nestlab.errors import UserError


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("run", help="run one notebook", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("notebook", metavar="NOTEBOOK", type=Path)
    parser.add_argument("-p", "--parameter", metavar="NAME=VALUE", action="append", default=[], dest="given")
    parser.add_argument("--results", metavar="DIR", type=Path, default=Path("results"), help="default: results")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, help="for the whole notebook; default: none")
    parser.add_argument("--kernel", metavar="NAME", default="python3", help="default: this interpreter's")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    from nestlab import notebook

    if args.timeout is not None and args.timeout <= 0:
        raise UserError(f"--timeout {args.timeout:g} leaves no time: give a number of seconds above 0")
    request = notebook.Request(args.notebook, _pairs(args.given), args.results, args.timeout, args.kernel)
    return notebook.run(request)


def _pairs(given: list[str]) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"-p {text} is not of the form name=value")
        pairs[name.strip()] = value
    return pairs
