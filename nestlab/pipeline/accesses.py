"""What each action reads and writes: the source from which the required edges are derived.

Rows of the tables are not one resource but many. A *row class* says which: the rows of the keys that lie in the key
sets of some batches and outside those of others. Two classes are disjoint where one lies inside a batch's key set and
the other outside it, and disjoint classes never conflict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nestlab.pipeline.schedule import Key, Stage


@dataclass(frozen=True)
class RowClass:
    """Rows of the keys inside every K(b), b in `inside`, and outside every K(b), b in `outside`.

    `unseen_before` = t adds: outside K(s) for every s < t, the keys that batch t brings in for the first time.
    """

    inside: tuple[int, ...] = ()
    outside: tuple[int, ...] = ()
    unseen_before: int | None = None

    def excludes(self, batch: int) -> bool:
        return batch in self.outside or (self.unseen_before is not None and batch < self.unseen_before)

    def disjoint(self, other: RowClass) -> bool:
        """True only where it can be proven from the declarations."""
        return any(other.excludes(b) for b in self.inside) or any(self.excludes(b) for b in other.inside)


def keys_of(batch: int) -> RowClass:
    """K(t)."""
    return RowClass(inside=(batch,))


def common(batch: int, other: int) -> RowClass:
    """K(t) ∩ K(s)."""
    return RowClass(inside=(batch, other))


def only(batch: int, other: int) -> RowClass:
    """K(t) ∖ K(s)."""
    return RowClass(inside=(batch,), outside=(other,))


def new_keys(batch: int) -> RowClass:
    """K(t) without the keys of every earlier batch."""
    return RowClass(inside=(batch,), unseen_before=batch)


class Resource(NamedTuple):
    """Something that can be read or written; one that belongs to a batch, or to one of its parts, is named with it."""

    name: str
    batch: int | None = None
    part: int | None = None


@dataclass(frozen=True)
class Access:
    """A read or a write of a resource, of some rows of it where the resource is a table's rows."""

    resource: Resource
    write: bool
    rows: RowClass | None = None

    def conflicts(self, other: Access) -> bool:
        if self.resource != other.resource or not (self.write or other.write):
            return False
        return self.rows is None or other.rows is None or not self.rows.disjoint(other.rows)


# Shared by all batches. `random` stands for the global random generator and the buffers of modules.
LOADER, INDEX, HOST_ROWS = Resource("loader"), Resource("key index"), Resource("host rows")
DENSE_WEIGHTS, DENSE_GRADS, RANDOM = Resource("dense weights"), Resource("dense gradients"), Resource("random")


def reads(*resources: Resource) -> list[Access]:
    return [Access(resource, write=False) for resource in resources]


def writes(*resources: Resource) -> list[Access]:
    return [Access(resource, write=True) for resource in resources]


def direct_accesses(key: Key) -> list[Access]:
    """Reads and writes of an action where rows are read straight from the host tier (`Direct`)."""
    t, part = key.batch, key.part

    def own(name: str) -> Resource:
        return Resource(name, t)

    def of_part(name: str) -> Resource:
        return Resource(name, t, part)

    match key.stage:
        case Stage.LOAD:
            return writes(LOADER, own("raw batch"))
        case Stage.H2D:
            return reads(own("raw batch")) + writes(own("inputs"))
        case Stage.ROUTE:
            return reads(own("raw batch")) + writes(own("keys"))
        case Stage.PREPARE:
            inserted = Access(HOST_ROWS, write=True, rows=new_keys(t))
            return [*reads(own("keys")), *writes(INDEX, own("residency")), inserted]
        case Stage.EMB_EXCHANGE:
            gathered = Access(HOST_ROWS, write=False, rows=keys_of(t))
            return [*reads(own("keys"), own("residency")), *writes(of_part("part rows")), gathered]
        case Stage.FORWARD:
            inputs = reads(own("inputs"), own("keys"), of_part("part rows"), DENSE_WEIGHTS)
            return inputs + writes(RANDOM, of_part("graph"))
        case Stage.BACKWARD:
            return reads(DENSE_WEIGHTS) + writes(of_part("graph"), DENSE_GRADS, of_part("row gradients"))
        case Stage.GRAD_EXCHANGE:
            return reads(own("keys"), of_part("row gradients")) + writes(own("summed row gradients"))
        case Stage.DENSE_REDUCE:
            return writes(DENSE_GRADS, own("reduced gradients"))
        case Stage.UPDATE:
            updated = Access(HOST_ROWS, write=True, rows=keys_of(t))
            inputs = reads(own("reduced gradients"), own("summed row gradients"), own("residency"))
            return [*inputs, *writes(DENSE_WEIGHTS, DENSE_GRADS), updated]
        case Stage.RELEASE:
            return writes(own("residency"), own("inputs"), own("keys"))
