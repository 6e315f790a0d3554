"""What the sources say of the swap planner, tried on this planner: each a check that runs and that can fail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from nestlab.embedding import route
from nestlab.embedding.device.slot_map import SlotMap
from nestlab.embedding.device.swap import CacheTooSmall, SwapPlan
from nestlab.experiments.two_tier import key_streams
from nestlab.experiments.two_tier.one_pass import Stream
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.setups import Setup
from nestlab.techniques import Techniques

Outcome = tuple[bool, str]  # whether it holds, and what was looked at

# Worked by hand: four slots; row 0 is used again at 4, so that row 1 is the least recently and the least often used
# when 4 comes. The sweep stands at slot 0, where row 0 lies, and rows of this batch and of the one before are spared.
BY_HAND = ([0], [1], [2], [3], [0], [3], [4])
BY_HAND_SLOTS = 4
# Six keys of two batches, which are four rows: where sums are counted in place of unions, four slots are refused.
OVERLAP = ([0, 1, 2], [1, 2, 3])
OVERLAP_ROOM = 4


def union_fits(settings: Settings, stream: Stream) -> Outcome:
    """RS-C-002: with the largest union of two batches as slots all goes well, with one less the planner refuses."""
    keys = key_streams.videos(settings)
    held, said = [], []
    for label, batches, room in ((keys.label, keys.batches, keys.room), ("worked by hand", OVERLAP, OVERLAP_ROOM)):
        fits, less = _needed(batches, room, "lru"), _needed(batches, room - 1, "lru")
        if fits is None:
            fits = _needed(batches, room, "clock")
        held.append(fits is None and less == room)
        said.append(f"{label}: {room} slots {_told(fits)}, {room - 1} {_told(less)}")
    return all(held), "; ".join(said)


def _needed(batches: Iterable[Sequence[int]], slots: int, policy: str) -> int | None:
    """The slots that the planner asks for where it refuses; None: it planned all; 0: it took what has no room.

    What may not fit is tried by `lru`, whose lists come to an end where there is no slot to take: the sweep of `clock`
    would never return.
    """
    planner = SlotMap(slots, policy)
    try:
        for rows in batches:
            _plan(planner, rows)
    except CacheTooSmall as error:
        return error.needed
    except AssertionError:
        return 0
    return None


def _told(needed: int | None) -> str:
    return "work" if needed is None else f"are refused, which names {needed}" if needed else "were wrongly accepted"


def void_slot_is_free(settings: Settings, stream: Stream) -> Outcome:
    """RS-C-005: the slot of a forgotten row is filled again, and the row is not among the swap-outs."""
    held = []
    for policy in ("clock", "lru", "lfu"):
        slots = SlotMap(6, policy)
        for rows in ([0, 1], [2, 3], [4, 5]):
            _plan(slots, rows)
        void = slots.slots_of(np.array([0]))[0]
        slots.forget(np.array([0]))
        plan = _plan(slots, [6, 7])
        held.append(void in plan.in_slots and plan.out_rows.tolist() == [1])
    return all(held), "six slots, full; row 0 forgotten, two new rows come: only row 1 is swapped out (three policies)"


def keys_come_once(settings: Settings, stream: Stream) -> Outcome:
    """RS-C-007: repeats are gone before anything is planned; every missing key gets one slot."""
    flags = Techniques(device_tier="slot_cache", cache_slots=0.5)
    store = Setup(flags, lanes=False, seed=settings.seed, device=settings.device).build(stream).model.embedding
    batch = stream.train[0]
    routed = route(batch, store.layout)
    keys = sum(len(group.keys) for group in routed)
    unique = all(_unique(np.stack([g.keys.tables(np.arange(len(g.keys))), g.keys.ids], axis=1)) for g in routed)
    residency = store.prepare([group.keys for group in routed])
    plans = [group.work.plan for group in residency.groups]
    one_slot_each = all(np.unique(plan.in_slots).size == plan.misses for plan in plans)
    planned = sum(plan.misses for plan in plans) == keys
    found = f"{batch.ids.numel():,} ids of a batch are {keys:,} keys, which miss once each in an empty cache"
    return unique and one_slot_each and planned and keys < batch.ids.numel(), found


def victims_are_by_activity(settings: Settings, stream: Stream) -> Outcome:
    """RS-A-006: whether the published sweep takes the victim of lru or of lfu, on a stream worked by hand."""
    victims = {policy: _last_victim(policy) for policy in ("clock", "lru", "lfu")}
    said = ", ".join(f"{policy} takes row {row}" for policy, row in victims.items())
    return victims["clock"] in (victims["lru"], victims["lfu"]), f"worked by hand: {said}"


def _last_victim(policy: str) -> int:
    slots = SlotMap(BY_HAND_SLOTS, policy)
    return [_plan(slots, rows) for rows in BY_HAND][-1].out_rows.tolist()[0]


def _plan(slots: SlotMap, rows: Sequence[int]) -> SwapPlan:
    return slots.plan(np.array(rows, dtype=np.int64))


def _unique(rows: np.ndarray) -> bool:
    return np.unique(rows, axis=0).shape == rows.shape


CHECKS = {
    "RS-C-002": union_fits,
    "RS-C-005": void_slot_is_free,
    "RS-C-007": keys_come_once,
    "RS-A-006": victims_are_by_activity,
}
