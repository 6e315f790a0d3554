"""`nestlab results prune` and `index`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from nestlab.errors import UserError


def add_parsers(commands, add_folder: Callable[[argparse.ArgumentParser], None]) -> None:
    prune = commands.add_parser("prune", help="remove old runs that failed or were killed")
    add = prune.add_argument
    add("--older-than", metavar="DAYS", type=float, default=7.0, help="default: 7")
    add("--keep", metavar="K", type=int, default=0, help="keep each experiment's newest K of them; default: 0")
    add("--experiment", metavar="NAME", help="only of this experiment")
    add("--yes", action="store_true", help="do not ask")
    add("--dry-run", action="store_true", help="only say what would go")
    prune.set_defaults(main=main_prune)
    index = commands.add_parser("index", help="write index.html, one page over all runs that opens from disk")
    index.set_defaults(main=main_index)
    for command in (prune, index):
        add_folder(command)


def main_prune(args: argparse.Namespace) -> int:
    from nestlab import results
    from nestlab.cli.results import folder
    from nestlab.cli.text import aligned
    from nestlab.results import prune

    found = prune.candidates(folder(args), older_than_days=args.older_than, keep=args.keep, experiment=args.experiment)
    if not found:
        kept = f", and the newest {args.keep} of each experiment stay (--keep)" if args.keep else ""
        print(
            f"nothing to remove: no run that failed or was killed is {args.older_than:g} days old (--older-than){kept}"
        )
        return 0
    header = ["run", "status", "experiment", "days old"]
    print(aligned([header, *([r.run_id, r.status, r.experiment, f"{r.age_days:.1f}"] for r in found)]))
    if args.dry_run:
        print(f"{len(found)} would be removed")
        return 0
    if not args.yes and not _agreed(len(found)):
        print("nothing removed")
        return 1
    print(f"{len(prune.remove(folder(args), found))} removed")
    results.write_index(folder(args))  # the page must not link to what is gone
    return 0


def main_index(args: argparse.Namespace) -> int:
    from nestlab import results
    from nestlab.cli.results import folder

    print(results.write_index(folder(args)))
    return 0


def _agreed(number: int) -> bool:
    if not sys.stdin.isatty():
        raise UserError("prune asks before it removes anything, and nobody is there to answer: add --yes or --dry-run")
    try:
        return input(f"remove {number} runs? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
