"""`nestlab techniques`: every ablation flag, its default, and what it excludes."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap

_WIDEST = 120  # characters of a line, however wide the terminal is


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("techniques", help="the ablation flags")
    parser.add_argument("--json", action="store_true", help="one JSON value on standard output")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    from nestlab import techniques

    rows = techniques.table()
    if args.json:
        print(json.dumps(rows, default=str))
    else:
        presets = {name: techniques.text_of(preset) for name, preset in techniques.PRESETS.items()}
        print(_text(rows, presets, min(_WIDEST, shutil.get_terminal_size().columns)))
    return 0


def _text(rows: list[dict], presets: dict[str, str], width: int) -> str:
    """A paragraph a flag, then presets and what is installed, in lines of `width` characters."""
    flags = [line for row in rows for line in _flag(row)]
    last = ["", "presets, to stand first: --techniques recsdk,cache_slots=0.2"]
    last += [f"    {name}: {preset.replace(',', ', ') or 'every default'}" for name, preset in presets.items()]
    last += ["", "from outside (docs/extend.md), by entry point or as module:Name:"]
    last += _installed(rows) or ["    nothing is installed"]
    return "\n".join(_wrapped(line, width) for line in [*flags, *last])


def _flag(row: dict) -> list[str]:
    """What it is, with its default; what it takes; whose it is, and whether it is exact; what it goes with."""
    values = f"    values: {row['values']}"
    if row["built"] not in (row["values"], "any"):
        values += f"; built: {row['built']}"
    lines = [f"{row['flag']}={row['default']}: {row['help']}", values, f"    of {row['system']}; {row['exactness']}"]
    return [*lines, f"    {row['excludes']}"] if row["excludes"] else lines


def _installed(rows: list[dict]) -> list[str]:
    return [f"    {row['flag']}={name}: {what}" for row in rows for name, what in row["installed"].items()]


def _wrapped(line: str, width: int) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
