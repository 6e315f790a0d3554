"""What each action reads and writes: the source from which the required edges are derived.

Rows of the tables are not one resource but many. A *row class* says which: the rows of the keys that lie in the key
sets of some batches and outside those of others. Two classes are disjoint where one lies inside a batch's key set and
the other outside it, and disjoint classes never conflict.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """K(t) without the keys of every earlier batch.

    A key that was evicted and comes back is a new one, and so is its row: the store gives a row to another key only
    when the batches that were in flight at its eviction are released.
    """
    return RowClass(inside=(batch,), unseen_before=batch)


def victims(batch: int) -> RowClass:
    """What leaves the slot cache for batch t: rows outside K(t) ∪ K(t−1)."""
    return RowClass(outside=(batch, batch - 1))


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


# Shared by all batches. `random` stands for the global random generator and the buffers of modules, `host frames` for
# where host records lie and what pins them down, `slot map` for the device tier's places, `key queue` for keys that are
# known ahead of their batch, `pins` for what holds rows where they are until RELEASE.
LOADER, INDEX, HOST_ROWS = Resource("loader"), Resource("key index"), Resource("host rows")
FRAMES, SLOT_MAP, SLOTS, KEY_QUEUE = (
    Resource("host frames"),
    Resource("slot map"),
    Resource("slots"),
    Resource("key queue"),
)
DENSE_WEIGHTS, DENSE_GRADS, RANDOM = Resource("dense weights"), Resource("dense gradients"), Resource("random")
PINS, BUFFERS = Resource("pins"), (Resource("buffer", 0), Resource("buffer", 1))
CORES = Resource("cores")  # of tensor-train tables


def reads(*resources: Resource) -> list[Access]:
    return [Access(resource, write=False) for resource in resources]


def writes(*resources: Resource) -> list[Access]:
    return [Access(resource, write=True) for resource in resources]


def reads_rows(resource: Resource, rows: RowClass) -> list[Access]:
    return [Access(resource, write=False, rows=rows)]


def writes_rows(resource: Resource, rows: RowClass) -> list[Access]:
    return [Access(resource, write=True, rows=rows)]


@dataclass(frozen=True)
class Asked:
    """What a step has beside its tier: `foresees`, `replicas` and `table_groups` as in `Shape`."""

    foresees: bool = False
    replicas: bool = False
    table_groups: int = 0


def direct_accesses(key: Key, asked: Asked = Asked()) -> list[Access]:
    """Reads and writes of an action where rows are read straight from the host tier (`Direct`)."""
    return _accesses(key, _direct, asked)


def dual_buffer_accesses(key: Key, asked: Asked = Asked()) -> list[Access]:
    """The same with `DualBuffer`: the buffer of batch t is the one of t−2."""
    return _accesses(key, _dual_buffer, asked)


def slot_cache_accesses(key: Key, asked: Asked = Asked()) -> list[Access]:
    """The same with `SlotCache`, whose victims lie outside K(t) ∪ K(t−1)."""
    return _accesses(key, _slot_cache, asked)


Tier = Callable[[Stage, int], list[Access]]


def _accesses(key: Key, tier: Tier, asked: Asked) -> list[Access]:
    if key.stage is Stage.PREPARE:
        parts = (key._replace(stage=stage) for stage in (Stage.POST, Stage.PLAN, Stage.RETRIEVE))
        return [access for part in parts for access in _accesses(part, tier, asked)]
    found = _every_tier(key) + tier(key.stage, key.batch)
    if asked.foresees and key.stage is Stage.ROUTE:
        found += writes(KEY_QUEUE)
    if asked.replicas and key.stage is Stage.RELEASE:  # in batch order: SYNC waits for the last one and so for all
        found += writes(PINS)
    return found + _table_wise(key, asked.table_groups)


def _every_tier(key: Key) -> list[Access]:
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
        case Stage.POST:
            return reads(own("keys")) + writes(INDEX, own("residency"))
        case Stage.PLAN:
            return writes(SLOT_MAP, own("residency"))
        case Stage.RETRIEVE:
            return writes(FRAMES, own("residency")) + writes_rows(HOST_ROWS, new_keys(t))
        case Stage.EVICT:
            return writes(INDEX, SLOT_MAP)
        case Stage.COMMIT | Stage.WRITEBACK:
            return reads(own("residency"))
        case Stage.EMB_EXCHANGE:
            return reads(own("keys"), own("residency")) + writes(of_part("part rows"))
        case Stage.FORWARD:
            inputs = reads(own("inputs"), own("keys"), of_part("part rows"), DENSE_WEIGHTS)
            return inputs + writes(RANDOM, of_part("graph"))
        case Stage.BACKWARD:
            return reads(DENSE_WEIGHTS) + writes(of_part("graph"), DENSE_GRADS, of_part("row gradients"))
        case Stage.GRAD_EXCHANGE:
            return reads(own("keys"), of_part("row gradients")) + writes(own("summed row gradients"))
        case Stage.DENSE_REDUCE:
            return writes(DENSE_GRADS, own("reduced gradients"))
        case Stage.CLIP:
            return writes(own("reduced gradients"), own("summed row gradients"))
        case Stage.UPDATE:
            inputs = reads(own("reduced gradients"), own("summed row gradients"), own("residency"))
            return inputs + writes(DENSE_WEIGHTS, DENSE_GRADS)
        case Stage.RELEASE:
            return writes(own("residency"), own("inputs"), own("keys"))
        case Stage.SYNC:  # averages records wherever the newest one lies; rows that a replica lacks are made
            return writes(INDEX, SLOT_MAP, FRAMES, HOST_ROWS, PINS)
        case Stage.TT_FORWARD | Stage.TT_EXCHANGE | Stage.TT_GRAD_EXCHANGE | Stage.TT_BACKWARD:
            return reads(own("keys"))
        case Stage.CORE_REDUCE:
            return []
    raise ValueError(f"no accesses are declared for {key.stage}")


def _table_wise(key: Key, groups: int) -> list[Access]:
    """Tensor-train tables, group by group: who owns a table computes its rows for all ranks, and its gradients."""
    t = key.batch
    of_group = Resource("table rows", t, key.part)
    grads_of_group, cores_of_group = Resource("table gradients", t, key.part), Resource("core gradients", part=key.part)
    pooled = tuple(Resource("pooled rows", t, g) for g in range(groups))
    core_grads = tuple(Resource("core gradients", part=g) for g in range(groups))
    match key.stage:
        case Stage.POST if groups:
            return writes(Resource("look-ups", t))
        case Stage.TT_FORWARD:
            return reads(CORES, Resource("look-ups", t)) + writes(of_group)
        case Stage.TT_EXCHANGE:
            return reads(of_group) + writes(pooled[key.part])
        case Stage.FORWARD:
            return reads(*pooled)
        case Stage.BACKWARD if groups:
            return writes(Resource("pooled gradients", t))
        case Stage.TT_GRAD_EXCHANGE:
            return reads(Resource("pooled gradients", t)) + writes(grads_of_group)
        case Stage.TT_BACKWARD:
            return reads(CORES, Resource("look-ups", t), grads_of_group) + writes(cores_of_group)
        case Stage.CORE_REDUCE | Stage.CLIP:
            return writes(*core_grads)
        case Stage.UPDATE if groups:  # empties the gradients
            return writes(CORES, *core_grads)
    return []


def _direct(stage: Stage, t: int) -> list[Access]:
    match stage:
        case Stage.EMB_EXCHANGE:
            return reads_rows(HOST_ROWS, keys_of(t))
        case Stage.UPDATE:
            return writes_rows(HOST_ROWS, keys_of(t))
    return []


def _dual_buffer(stage: Stage, t: int) -> list[Access]:
    """A place of a buffer belongs to another key in every batch: no row classes there."""
    buffer, other = BUFFERS[t % 2], BUFFERS[(t - 1) % 2]
    match stage:
        case Stage.RETRIEVE:  # K(t) ∩ K(t−1) is not read from below: COMMIT brings it
            return reads_rows(HOST_ROWS, only(t, t - 1)) + writes(buffer)
        case Stage.COMMIT:
            return reads(other) + writes(buffer)
        case Stage.EMB_EXCHANGE:
            return reads(buffer)
        case Stage.UPDATE:
            return writes(buffer)
        case Stage.WRITEBACK:
            return reads(buffer) + writes_rows(HOST_ROWS, keys_of(t))
        case Stage.SYNC:
            return writes(*BUFFERS)
    return []


def _slot_cache(stage: Stage, t: int) -> list[Access]:
    """Misses lie in K(t) ∖ K(t−1): what batch t−1 used is resident."""
    came_in, went_out = Resource("swap-in staging", t), Resource("swap-out staging", t)
    match stage:
        case Stage.RETRIEVE:
            return reads_rows(HOST_ROWS, only(t, t - 1)) + writes(came_in)
        case Stage.COMMIT:
            swapped_out = writes(went_out) + writes_rows(SLOTS, victims(t))
            return swapped_out + reads(came_in) + writes_rows(SLOTS, only(t, t - 1))
        case Stage.EMB_EXCHANGE:
            return reads_rows(SLOTS, keys_of(t))
        case Stage.UPDATE:
            return writes_rows(SLOTS, keys_of(t))
        case Stage.WRITEBACK:
            return reads(went_out) + writes_rows(HOST_ROWS, victims(t))
        case Stage.SYNC:
            return writes(SLOTS)
    return []
