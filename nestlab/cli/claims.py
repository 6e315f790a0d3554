"""`nestlab claims`: the register of published claims beside what runs have answered, and `claims run`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from nestlab.cli.results import folder
from nestlab.errors import UserError

_USAGE = """nestlab claims [SOURCE] [--open] [--json] [--results DIR]
       nestlab claims run ID [--results DIR]"""
_WIDEST = 48


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("claims", help="the published claims, and what runs say of each", usage=_USAGE)
    # Words instead of a subcommand: argparse would take a source's name for a subcommand that does not exist.
    parser.add_argument("words", metavar="SOURCE | run ID", nargs="*", help="a source or the beginning of its name")
    parser.add_argument("--open", action="store_true", help="only claims that can be tested and have no answer yet")
    parser.add_argument("--json", action="store_true", help="one JSON value on standard output")
    parser.add_argument("--results", metavar="DIR", help="default: results, here or in the project's folder")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    words = args.words
    if words[:1] == ["run"]:
        if len(words) != 2:
            raise UserError("nestlab claims run takes one claim's id, such as NP-P-001")
        return _run(words[1], folder(args))
    if len(words) > 1:
        raise UserError(f"one source at a time, not {' '.join(words)}")
    return _list(words[0] if words else None, args)


def _list(source: str | None, args: argparse.Namespace) -> int:
    from nestlab.experiments.claims import loader, page, recorded
    from nestlab.experiments.claims.judge import NOT_RUN

    chosen = loader.chosen(source)
    found, ignored = recorded.read(folder(args))
    rows = page.rows(chosen, found)
    if args.open:
        rows = [row for row in rows if row["verdict"] == NOT_RUN]
    for line in ignored:
        print(f"ignored: {line}", file=sys.stderr)
    if args.json:
        print(json.dumps(rows, ensure_ascii=False))
    else:
        print(_text(rows))
    return 0


def _run(claim_id: str, results_dir: str) -> int:
    from nestlab import cli
    from nestlab.experiments.claims import command, loader

    return cli.main(command.argv(loader.claim(claim_id), results_dir))


def _text(rows: list[dict[str, Any]]) -> str:
    from nestlab.cli.text import aligned

    if not rows:
        return "no open claims"
    header = ["claim", "", "published", "obtained", "how", "verdict", "run", "sentence"]
    verdicts: dict[str, int] = {}
    for row in rows:
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
    counted = ", ".join(f"{number} {name}" for name, number in verdicts.items())
    marks = "! the source is wrong or contradicts itself   ? no other source confirms it, or it is left open"
    return f"{aligned([header, *(_line(row) for row in rows)])}\n\n{len(rows)} claims: {counted}\n{marks}"


def _line(row: dict[str, Any]) -> list[str]:
    mark = "!" if row["error"] else "?" if row["suspect"] else ""
    # Before there is an answer, the column says how the claim is to be answered.
    how = row["how"] or f"({row['answer']})"
    cells = [row["claim"], mark, _short(row["published"]) or "–", _short(_obtained(row["obtained"]))]
    return [*cells, how, row["verdict"], row["run"] or "–", row["sentence"]]


def _obtained(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_obtained, value))
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
