"""The command `nestlab`. Each command is a module with `add_parser` and `main`; what is heavy is imported in `main`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

from nestlab.cli import bench, claims, data, doctor, results, run, techniques, trace, train
from nestlab.cli.parsing import Parser
from nestlab.errors import UserError, interrupted

COMMANDS = (train, run, results, trace, claims, data, doctor, bench, techniques)


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns its exit status: 0 done, 1 failed, 2 the user's error, 130 interrupted."""
    args = parser().parse_args(argv)
    try:
        status = args.main(args)
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"nestlab: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read our output has seen enough; what is left in the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except BaseException as error:  # an interrupt comes as itself, or under what it led to, as an import cut off
        if not interrupted(error):
            raise
        print("nestlab: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="nestlab", description="Run, see and compare recommender training mechanisms.")
    top.add_argument("--version", action=_Version, help="print the version and exit")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return top


class _Version(argparse.Action):
    """Asks for the version only when it is wanted: reading package metadata costs time."""

    def __init__(self, option_strings: list[str], dest: str, **rest: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=rest.get("help"))

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import importlib.metadata

        print(f"nestlab {importlib.metadata.version('nestlab')}")
        parser.exit()
