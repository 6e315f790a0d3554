"""`nestlab bench [NAME]`: one benchmark, or the list of them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from nestlab.errors import UserError


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("bench", help="run a benchmark")
    parser.add_argument("name", metavar="NAME", nargs="?", help="without it the names are listed")
    parser.add_argument("--world", metavar="N", type=int, help="ranks, for `pipeline`; default: 2")
    parser.add_argument(
        "--part", choices=("one", "two", "all"), help="of `pipeline`, about five minutes each; default: all"
    )
    parser.add_argument("--json", action="store_true", help="exactly one JSON object on standard output")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    from nestlab import benchmarks
    from nestlab.results.manifest import plain

    names = list(benchmarks.names())
    if args.name is None:
        print(json.dumps({"names": names}) if args.json else "\n".join(names))
        return 0
    if args.name not in names:
        raise UserError(f"no benchmark '{args.name}': there is {', '.join(names)}")
    options = {name: getattr(args, name) for name in ("world", "part") if getattr(args, name) is not None}
    if not args.json:
        _show(benchmarks.run(args.name, **options))
        return 0
    with _only_ours() as out:
        outcome = plain(benchmarks.run(args.name, **options))
        out.write(json.dumps(outcome) + "\n")
    return 0


@contextlib.contextmanager
def _only_ours() -> Iterator[TextIO]:
    """The real standard output; whatever else is printed meanwhile, by C code too, goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr), os.fdopen(os.dup(kept), "w", encoding="utf-8") as out:
            yield out
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _show(outcome: dict) -> None:
    from nestlab.cli.text import aligned

    rows = outcome.get("rows", [])
    if rows:
        header = list(dict.fromkeys(name for row in rows for name in row))
        print(aligned([header, *([_cell(row.get(name, "–")) for name in header] for row in rows)]))
    for key, value in outcome.get("summary", {}).items():
        print(f"{key}: {_cell(value)}")


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
