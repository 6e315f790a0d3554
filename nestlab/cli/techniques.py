"""`nestlab techniques`: every ablation flag, its default, and what it excludes."""

from __future__ import annotations

import argparse
import json

_COLUMNS = ("flag", "values", "default", "built", "system", "exactness", "excludes", "help")


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("techniques", help="the ablation flags")
    parser.add_argument("--json", action="store_true", help="one JSON value on standard output")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    from nestlab import techniques
    from nestlab.cli.text import aligned

    rows = techniques.table()
    if args.json:
        print(json.dumps(rows, default=str))
    else:
        print(aligned([list(_COLUMNS), *([_cell(row.get(name)) for name in _COLUMNS] for row in rows)]))
        print("\npresets, to stand first: --techniques recsdk,cache_slots=0.2")
        print(aligned([[name, techniques.text_of(preset)] for name, preset in techniques.PRESETS.items()]))
        print("\nfrom outside (docs/extend.md), by entry point or as module:Name:")
        print(aligned(_installed(rows) or [["nothing is installed"]]))
    return 0


def _installed(rows: list[dict]) -> list[list[str]]:
    return [[f"{row['flag']}={name}", what] for row in rows for name, what in row["installed"].items()]


def _cell(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value)) or "–"
    return "–" if value is None or value == "" else str(value)
