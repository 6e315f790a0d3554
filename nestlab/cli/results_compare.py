"""`nestlab results compare` and `export`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from nestlab.errors import UserError

if TYPE_CHECKING:
    from nestlab.results.comparison import Comparison

_COMPARE = """Groups runs by the parameters in which they differ; seeds are replicates. For each key figure: mean,
standard deviation, 95 % interval, and the difference to the base: the plain setting, or else the oldest. Runs on other
data are refused."""

_EXPORT = """nestlab results export RUN [--table NAME] [--format {csv,md,latex}] [-o FILE]
       nestlab results export compare [RUN …] [--experiment NAME] [--where NAME=VALUE] [--by PARAM] [--metric NAME]
                                      [--interval {t,bootstrap}] [--format {csv,md,latex}] [-o FILE]"""


def add_parsers(commands, add_folder: Callable[[argparse.ArgumentParser], None]) -> None:
    compare = commands.add_parser("compare", help="mean, spread and interval over seeds", description=_COMPARE)
    compare.add_argument("names", metavar="RUN", nargs="*", help="runs by name; default: all finished ones that fit")
    compare.add_argument("--json", action="store_true", help="one JSON object on standard output")
    compare.set_defaults(main=main_compare)
    export = commands.add_parser(
        "export", help="a run's table, or a comparison, as csv, Markdown or LaTeX", usage=_EXPORT
    )
    export.add_argument("names", metavar="RUN", nargs="+", help="one run; or the word compare, and runs as there")
    export.add_argument("--table", metavar="NAME", help="of the run; default: its key figures")
    export.add_argument("--format", choices=("csv", "md", "latex"), default="md", help="default: md")
    export.add_argument("-o", "--out", metavar="FILE", help="default: standard output")
    export.set_defaults(main=main_export)
    for command in (compare, export):
        _add_choice(command)
        add_folder(command)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--experiment", metavar="NAME", help="compare the runs of this experiment")
    add(
        "--where",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="only runs with this parameter; given twice: either value",
    )
    add("--by", metavar="PARAM", action="append", default=[], help="what tells settings apart; default: what differs")
    add("--metric", metavar="NAME", action="append", default=[], help="a key figure; default: every numeric one")
    add("--interval", choices=("t", "bootstrap"), default="t", help="default: t (Student)")


def main_compare(args: argparse.Namespace) -> int:
    made = _compared(args, args.names)
    if args.json:
        from nestlab.results.manifest import plain

        rows = made.table.astype(object).to_dict("records")
        print(
            json.dumps(
                plain({"caption": made.caption, "notes": made.notes, "base": made.base, "rows": rows}),
                ensure_ascii=False,
            )
        )
    else:
        print(_text(made))
    return 0


def main_export(args: argparse.Namespace) -> int:
    from nestlab import results
    from nestlab.cli.results import folder
    from nestlab.files import write_atomic
    from nestlab.results import export

    if args.names[0] == "compare":
        if args.table is not None:
            raise UserError("--table goes with one run, not with compare")
        text = export.comparison(_compared(args, args.names[1:]), args.format)
    elif len(args.names) > 1:
        raise UserError(f"one run at a time, or: nestlab results export compare {' '.join(args.names)}")
    elif args.experiment or args.where or args.by or args.metric:
        raise UserError("--experiment, --where, --by and --metric go with: nestlab results export compare")
    else:
        text = export.run(results.load(args.names[0], folder(args)), args.table, args.format)
    if args.out is None:
        print(text, end="")
        return 0
    try:
        write_atomic(args.out, text.encode("utf-8"))
    except OSError as error:
        raise UserError(f"cannot write {args.out}: {error.strerror}") from None
    print(f"written to {args.out}")
    return 0


def _compared(args: argparse.Namespace, names: list[str]) -> Comparison:
    from nestlab import results
    from nestlab.cli.results import folder
    from nestlab.cli.run import pairs

    where: dict[str, list[str]] = {}
    for word in args.where:
        for name, value in pairs([word], "--where").items():
            where.setdefault(name, []).append(value)
    selection = results.Selection(tuple(names), args.experiment, where)
    question = results.Question(tuple(args.metric), tuple(args.by), args.interval)
    return results.compare(results.select(selection, folder(args)), question, selection)


def _text(made: Comparison) -> str:
    from nestlab.cli.text import aligned
    from nestlab.results import export

    frame = export.readable(made)
    rows = [[export.number(value) for value in row] for row in frame.astype(object).to_numpy().tolist()]
    lines = [made.caption, "", aligned([list(frame.columns), *rows]), ""]
    return "\n".join([*lines, *export.legend(made), *made.notes]).rstrip()
