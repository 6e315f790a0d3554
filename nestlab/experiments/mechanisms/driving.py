"""A schedule carried out on the toy table, with a look at every place of records after each action that moves some."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch

from nestlab.embedding import EmbeddingStore, Residency, StepInfo, Tiers
from nestlab.experiments.mechanisms import toy
from nestlab.pipeline import Action, Inline, Key, Schedule, Shuffled, Stage, build
from nestlab.pipeline.executors import EndOfData, Executor, Progress
from nestlab.techniques import Techniques

SHOWN = (Stage.PREPARE, Stage.RETRIEVE, Stage.COMMIT, Stage.EMB_EXCHANGE, Stage.UPDATE, Stage.WRITEBACK)
HOST = "host tier"
Cells = dict[tuple[str, int], tuple[int, float]]  # (place, slot in it) → id, value (nan: its record is not there yet)


class PutOff(Shuffled):
    """List order, but one stage comes as late as the edges allow: what a slow lane would do, the same in every run."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(seed=0, batches=len(toy.BATCHES) + 1)
        self._stage = stage

    def pick(self, ready: list[int], waiting: list[Action]) -> int:
        return min(ready, key=lambda i: (waiting[i].key.stage is self._stage, i))


@dataclass
class Driven:
    """The stages that touch records; the others do nothing.

    Attributes:
        held: the batches in flight.
        newest: id → updates applied so far.
        looks: one row a place and look: number, action, place, slot, id, value, changed, read, newest, plain.
    """

    store: EmbeddingStore
    held: dict[int, Residency] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)
    looks: list[dict] = field(default_factory=list)
    slots: dict[int, int] = field(default_factory=dict)  # slot cache: slot → id of the record in it
    buffers: dict[int, int] = field(default_factory=dict)  # dual buffer: buffer → batch whose records are in it
    plans: dict[int, str] = field(default_factory=dict)
    _seen: Cells = field(default_factory=dict)
    _number: int = 0

    def perform(self, action: Action) -> None:
        stage, t, part = action.key
        if stage is Stage.LOAD and t >= len(toy.BATCHES):
            raise EndOfData(t)
        work = getattr(self, f"_{stage.lower()}", None)
        if work is not None:
            work(t)
        if stage in SHOWN and part <= 0:
            self._look(action.key)

    def _prepare(self, t: int) -> None:
        self._post(t)
        self._plan(t)
        self._retrieve(t)

    def _post(self, t: int) -> None:
        self.held[t] = self.store.resolve([toy.key_set(t)], batch=t)

    def _plan(self, t: int) -> None:
        self.store.plan(self.held[t])
        if self.tier == "slot_cache":
            self.plans[t] = str(self.held[t].groups[0].work.plan)

    def _retrieve(self, t: int) -> None:
        self.store.retrieve(self.held[t])
        self.buffers[t % 2] = t

    def _commit(self, t: int) -> None:
        group = self.held[t].groups[0]
        if self.tier == "slot_cache":
            plan = group.work.plan
            self.slots |= dict(zip(plan.in_slots.tolist(), group.keys.ids[plan.in_at].tolist(), strict=True))
        self.store.commit(self.held[t])

    def _update(self, t: int) -> None:
        keys = toy.keys_of(t)
        self.store.apply(self.held[t], [-torch.ones(len(keys), 1)], StepInfo(t + 1))
        self.newest |= {i: self.newest.get(i, 0) + 1 for i in keys}

    def _writeback(self, t: int) -> None:
        self.store.writeback(self.held[t])

    def _release(self, t: int) -> None:
        self.store.release(self.held[t])

    @property
    def tier(self) -> str:
        return self.store.options.device_tier

    def _look(self, key: Key) -> None:
        cells = self._cells()
        read = self._read(key) if key.stage is Stage.EMB_EXCHANGE else {}
        for (place, slot), (id, value) in cells.items():
            was = self._seen.get((place, slot))
            self.looks.append(
                {
                    "number": self._number,
                    "action": f"{key.stage}({key.batch})",
                    "place": place,
                    "slot": slot,
                    "id": id,
                    "value": value,
                    "changed": was is None or was[0] != id or not _same(was[1], value),
                    "read": read.get((place, id), False),
                    "newest": self.newest.get(id, 0),
                    "plain": toy.updates_before(id, key.batch),
                }
            )
        self._seen, self._number = cells, self._number + 1

    def _read(self, key: Key) -> dict[tuple[str, int], bool]:
        """The cells that the forward pass of a batch reads."""
        where = {"direct": HOST, "dual_buffer": _buffer(key.batch), "slot_cache": "slots"}[self.tier]
        return {(where, i): True for i in toy.keys_of(key.batch)}

    def _cells(self) -> Cells:
        found: Cells = {}
        host = self.store.hosts[0]
        for id in toy.IDS:
            row = host.index.find(_one(id))[0]
            if row >= 0:
                found[HOST, id] = (id, float(host.memory.records[row, 0]) + 0.0)
        return found | getattr(self, f"_cells_{self.tier}")()

    def _cells_direct(self) -> Cells:
        return {}

    def _cells_dual_buffer(self) -> Cells:
        found: Cells = {}
        for number, t in sorted(self.buffers.items()):
            half = self.held[t].groups[0].work
            if half is None:  # released: its records stay in the buffer until the next batch's come
                found |= {cell: kept for cell, kept in self._seen.items() if cell[0] == _buffer(number)}
                continue
            waiting = [] if half.committed else half.shared.tolist()
            for place, id in enumerate(toy.keys_of(t)):
                value = float("nan") if place in waiting else float(half.records[place, 0]) + 0.0
                found[_buffer(number), place] = (id, value)
        return found

    def _cells_slot_cache(self) -> Cells:
        records = self.store.tiers[0].slots
        return {("slots", slot): (id, float(records[slot, 0]) + 0.0) for slot, id in sorted(self.slots.items())}


def drive(flags: str, schedule: Schedule | None = None, executor: Executor | None = None) -> pd.DataFrame:
    """Carries the three batches through, and says where each record was after each action.

    Args:
        schedule: another than that of the flags.

    Returns:
        columns number, action, place, slot, id, value (updates in the record; nan: not there yet), changed (by this
        action), read (by this action), newest (updates applied to the id so far), plain (what the plain loop reads in
        this batch). `attrs["plans"]`: what the slot cache planned for each batch, as text.
    """
    techniques = Techniques.parse(flags)
    driven = Driven(counting_store(techniques))
    progress = Progress(schedule or build(techniques), executor or Inline())
    while progress.advance(driven.perform) is not None:
        pass
    frame = pd.DataFrame(driven.looks)
    frame.attrs["plans"] = [driven.plans[t] for t in sorted(driven.plans)]
    return frame


def counting_store(techniques: Techniques) -> EmbeddingStore:
    return toy.counting_store(Tiers.of(techniques))


def in_words(frame: pd.DataFrame) -> pd.DataFrame:
    """A row an action, a column a place: `id:updates` for each record in it, `*` where this action changed it, `–`
    for updates where room is left and no record is there yet."""

    def cell(rows: pd.DataFrame) -> str:
        return "  ".join(
            f"{row.id}:{'–' if np.isnan(row.value) else f'{row.value:g}'}{'*' * row.changed}"
            for row in rows.itertuples()
        )

    grouped = frame.groupby(["number", "action", "place"], sort=False)
    words = pd.Series({key: cell(rows) for key, rows in grouped}).unstack(fill_value="")
    places = sorted(frame["place"].unique(), key=lambda place: (place != HOST, place))
    return words.reset_index(level=0, drop=True).rename_axis("after")[places].reset_index()


def wrong_reads(frame: pd.DataFrame) -> pd.DataFrame:
    """The reads that differ from the plain loop's: action, id, read, plain."""
    wrong = frame[frame["read"] & (frame["value"] != frame["plain"])]
    return wrong[["action", "id", "value", "plain"]].rename(columns={"value": "read"}).reset_index(drop=True)


def _buffer(batch: int) -> str:
    return f"buffer {batch % 2}"


def _one(id: int):
    from nestlab.embedding import KeySet

    return KeySet(np.array([id]), np.array([0, 1]))


def _same(one: float, other: float) -> bool:
    return one == other or (np.isnan(one) and np.isnan(other))
