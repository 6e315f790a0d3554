"""Which rank owns which table: greedy placement by cost, and a new one when measured costs drift.

Everything here is a pure function of its arguments, in float64 and in a fixed order: equal costs on every rank give
equal placements on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from nestlab.errors import UserError


@dataclass(frozen=True)
class Placement:
    """Who owns each table, and which tables are computed and exchanged together. T tables, G groups.

    Attributes:
        owner: [T], the rank of each table.
        groups: [G], numbers of tables, in the order in which forward goes through them; a group may lack tables of a
            rank. Within a group, a rank goes through its tables in the order given.

    Raises:
        UserError: a table stands in no group or in two, a group is empty, or an owner is negative.
    """

    owner: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", tuple(int(rank) for rank in self.owner))
        object.__setattr__(self, "groups", tuple(tuple(int(t) for t in group) for group in self.groups))
        if negative := [t for t, rank in enumerate(self.owner) if rank < 0]:
            raise UserError(f"placement: table {negative[0]} has owner {self.owner[negative[0]]}; ranks begin at 0")
        if not all(self.groups):
            raise UserError(f"placement: group {self.groups.index(())} is empty; leave it out")
        listed = sorted(t for group in self.groups for t in group)
        if listed != list(range(len(self.owner))):
            raise UserError(
                f"placement: groups name the tables {listed} of {len(self.owner)}; name each in exactly one group"
            )

    @property
    def tables(self) -> int:
        """T."""
        return len(self.owner)

    def owned(self, group: int, rank: int) -> tuple[int, ...]:
        """The tables of one group that a rank owns, in the group's order."""
        return tuple(t for t in self.groups[group] if self.owner[t] == rank)

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """All tables that a rank owns, ascending."""
        return tuple(t for t, owner in enumerate(self.owner) if owner == rank)

    def check(self, ranks: int) -> None:
        """Raises UserError where a table belongs to a rank that does not exist."""
        if beyond := [t for t, rank in enumerate(self.owner) if rank >= ranks]:
            t = beyond[0]
            raise UserError(f"placement: table {t} belongs to rank {self.owner[t]} of {ranks}; place it on one of them")
