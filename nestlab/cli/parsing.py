"""How arguments are read: what is wrong is told in one line, with what may have been meant."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Of the command line and, as argparse takes over the class, of each command.

    argparse answers a slip with the whole usage, and an unknown option of a command with that of all commands.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._told(unknown[0]))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        of = self.prog.partition(" ")[2]
        where = f"{of}: " if of else ""
        told = message.removeprefix("argument ")
        self.exit(2, f"nestlab: error: {where}{told}{'' if told.endswith('?') else ';'} see {self.prog} --help\n")

    def _told(self, given: str) -> str:
        from difflib import get_close_matches

        name = given.partition("=")[0]
        if not name.startswith("-"):
            return f"'{name}' is one argument too many"
        near = get_close_matches(name, self._option_string_actions, 1)
        return f"no option '{name}'" + (f"; did you mean '{near[0]}'?" if near else "")


def positive(text: str) -> int:
    """The type of an option that takes a number of something."""
    number = int(text) if text.lstrip("+-").isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number of 1 or more")
    return number
