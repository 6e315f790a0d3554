"""What a continued training must have in common with the one that was saved."""

from __future__ import annotations

from collections.abc import Mapping

from nestlab.errors import UserError

Facts = Mapping[str, bool | int | float | str | None]


def check_facts(saved: Facts, mine: Facts) -> None:
    """In the order of this run's, which begin with what decides the others.

    Raises:
        UserError: they differ in one that was saved.
    """
    for name in dict.fromkeys([*mine, *saved]):
        if name in saved and saved[name] != mine.get(name):
            raise UserError(
                f"restart: the checkpoint was trained with {name}={_told(saved[name])}, and this run has "
                f"{name}={_told(mine.get(name))}; "
                "give what it had, or name a new folder"
            )


def _told(value: object) -> object:
    return "none" if value == "" else value
