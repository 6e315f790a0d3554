"""Tables that a rank has whole or not at all: their cores are shared by all rows, so that no row can live elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nestlab.embedding.config import TableConfig
from nestlab.embedding.tensor_train.table import TTTable
from nestlab.errors import UserError


class WholeTables:
    """The tensor-train tables of a model, of which this rank keeps its own.

    Initial weights are a function of seed and names alone: every rank makes all tables, and drops what others own.

    Attributes:
        configs: [T], of all tables, on every rank.
        make: a table as it is at the start.
        own: this rank's, by number.
        owners: [T] the rank of each table, and among how many ranks; None: not placed yet, all are here.
    """

    def __init__(self, configs: Sequence[TableConfig], make: Callable[[TableConfig], TTTable]) -> None:
        self.configs, self.make = tuple(configs), make
        self.owners: tuple[tuple[int, ...], int] | None = None
        self.own: dict[int, TTTable] = {number: make(config) for number, config in enumerate(self.configs)}

    def keep(self, owner: tuple[int, ...], rank: int, ranks: int) -> None:
        """Tables of other owners [T] are none of this rank's from now on.

        Raises:
            UserError: one of them is not here: it was given away before.
        """
        numbers = [number for number, each in enumerate(owner) if each == rank]
        if missing := [self.configs[n].name for n in numbers if n not in self.own]:
            raise UserError(
                f"table '{missing[0]}' was given to another of {self.owners[1]} ranks; train these tables on as many, "
                "or make them anew and load a checkpoint"
            )
        self.own, self.owners = {number: self.own[number] for number in numbers}, (owner, ranks)

    def owner_among(self, ranks: int) -> tuple[int, ...] | None:
        """Who has which table, where they were placed among as many ranks before."""
        return self.owners[0] if self.owners is not None and self.owners[1] == ranks else None

    def table(self, name: str) -> TTTable | None:
        """The table of that name; None: it is none of these.

        Raises:
            UserError: another rank has it.
        """
        number = next((n for n, config in enumerate(self.configs) if config.name == name), None)
        if number is None:
            return None
        if number not in self.own:
            raise UserError(f"table '{name}' is a tensor train that another rank has; ask there")
        return self.own[number]

    def forget(self) -> None:
        """Drops gradients that no update has used: those of a batch that was broken off."""
        for table in self.own.values():
            table.forget()

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self.own.values())
