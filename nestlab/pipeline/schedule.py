"""A training step as data: actions, and the edges that order them.

A `Schedule` holds one steady-state step as a list of entries (`stage` of the batch that is `ahead` of the step's own,
on a lane) and edge templates between them. Unrolled over n batches it becomes a list of actions and a list of ordered
pairs: the same data are executed, validated, drawn and, on a virtual clock, predicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # made of schedules' parts itself
    from nestlab.pipeline.shape import Shape

WHOLE = -1  # the part of an action that concerns its whole batch


class Stage(StrEnum):
    """What an action does, in the order of the plain loop.

    PREPARE is POST, PLAN and RETRIEVE in one; a schedule holds the one or the three. What begins with TT is of
    tensor-train tables: their owner computes the rows, and their part is a group of tables.
    """

    LOAD = "LOAD"
    H2D = "H2D"
    ROUTE = "ROUTE"
    PREPARE = "PREPARE"
    POST = "POST"
    PLAN = "PLAN"
    RETRIEVE = "RETRIEVE"
    EVICT = "EVICT"
    COMMIT = "COMMIT"
    TT_FORWARD = "TT_FORWARD"
    TT_EXCHANGE = "TT_EXCHANGE"
    EMB_EXCHANGE = "EMB_EXCHANGE"
    FORWARD = "FORWARD"
    BACKWARD = "BACKWARD"
    GRAD_EXCHANGE = "GRAD_EXCHANGE"
    TT_GRAD_EXCHANGE = "TT_GRAD_EXCHANGE"
    TT_BACKWARD = "TT_BACKWARD"
    CORE_REDUCE = "CORE_REDUCE"
    DENSE_REDUCE = "DENSE_REDUCE"
    CLIP = "CLIP"
    UPDATE = "UPDATE"
    WRITEBACK = "WRITEBACK"
    RELEASE = "RELEASE"
    SYNC = "SYNC"


class Lane(StrEnum):
    """Where an action runs: a thread on the CPU, a stream on an accelerator. A lane runs in list order."""

    LOAD = "load"
    COPY = "copy"
    ROUTE = "route"
    PLAN = "plan"
    FETCH = "fetch"
    WRITE = "write"
    COMM = "comm"
    TABLES = "tables"
    REDUCE = "reduce"
    COMPUTE = "compute"
    EXTRA = "extra"  # no schedule's own: tests move an action here, so that no lane's order hides a missing edge


def _part(number: int) -> str:
    return f",{number}" if number >= 0 else ""


class Key(NamedTuple):
    """What identifies an action wherever it runs."""

    stage: Stage
    batch: int
    part: int = WHOLE

    def __str__(self) -> str:
        return f"{self.stage}({self.batch}{_part(self.part)})"


class Action(NamedTuple):
    """One piece of work: `stage` of `batch` on `lane`, for one `part`: a micro-batch, a group of tables, or WHOLE."""

    key: Key
    lane: Lane

    def __str__(self) -> str:
        return f"{self.key}@{self.lane}"


@dataclass(frozen=True)
class Entry:
    """A line of the steady-state step: in step s it is the action (stage, s + ahead, part) on `lane`.

    Where `every` is k > 1 only the last of each k batches has the action: those with (batch + 1) % k == 0.
    """

    stage: Stage
    lane: Lane
    part: int = WHOLE
    ahead: int = 0
    every: int = 1

    def has(self, batch: int) -> bool:
        return (batch + 1) % self.every == 0

    def action(self, batch: int) -> Action:
        return Action(Key(self.stage, batch, self.part), self.lane)


@dataclass(frozen=True)
class Edge:
    """The source, of batch t + delta, ends before the target, of batch t, begins.

    delta is 0 or less but where a later batch's rows are read before this one's update (staleness). A source that is
    not there asks for nothing: of a batch before the first or after the last, or, with `every`, of one without it.

    A *required* edge guards data or the one order of collectives; a *chosen* one is mere order or back-pressure.
    """

    source: Stage
    target: Stage
    delta: int = 0
    source_part: int = WHOLE
    target_part: int = WHOLE
    required: bool = True
    reason: str = ""
    every: int = 1

    def __str__(self) -> str:
        shift = f"{self.delta:+d}" if self.delta else ""
        return f"{self.source}(t{shift}{_part(self.source_part)}) → {self.target}(t{_part(self.target_part)})"

    @property
    def ends(self) -> tuple[Stage, int, int, Stage, int]:
        """What it connects, whatever its reason: source and its part, delta, target and its part."""
        return self.source, self.source_part, self.delta, self.target, self.target_part

    def source_of(self, target: Key) -> Key:
        return Key(self.source, target.batch + self.delta, self.source_part)

    def has(self, target: Key) -> bool:
        """Its source exists, as far as `every` goes."""
        return self.every == 1 or (target.batch + self.delta + 1) % self.every == 0


@dataclass(frozen=True)
class Schedule:
    """One steady-state step, in list order, and the edges between its actions and those of neighbouring batches.

    `shape` says what it was built for; None where nobody said, and a pipeline then checks nothing.
    """

    name: str
    entries: tuple[Entry, ...]
    edges: tuple[Edge, ...]
    shape: Shape | None = None

    @property
    def most_ahead(self) -> int:
        return max(entry.ahead for entry in self.entries)

    @property
    def reach(self) -> int:
        """How many batches back an edge can ask, 0 or less."""
        return min((edge.delta for edge in self.edges), default=0)

    @property
    def forward_reach(self) -> int:
        """How many batches on an edge can ask, 0 or more."""
        return max((edge.delta for edge in self.edges), default=0)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Those that the entries are on, in the order in which they are drawn."""
        used = {entry.lane for entry in self.entries}
        return tuple(lane for lane in Lane if lane in used)

    def step(self, number: int, first_batch: int = 0) -> Iterator[Action]:
        """The actions of one step; a pipeline that fills up has steps before its first batch."""
        for entry in self.entries:
            batch = number + entry.ahead
            if batch >= first_batch and entry.has(batch):
                yield entry.action(batch)

    def predecessors(self, key: Key, first_batch: int = 0) -> list[Key]:
        """What must have ended before `key` begins; batches before the first are over."""
        sources = [edge.source_of(key) for edge in self._into.get((key.stage, key.part), ()) if edge.has(key)]
        return [source for source in sources if source.batch >= first_batch]

    @cached_property
    def _into(self) -> dict[tuple[Stage, int], list[Edge]]:
        """The edges by their target: asked for at every action of a run."""
        into: dict[tuple[Stage, int], list[Edge]] = {}
        for edge in self.edges:
            into.setdefault((edge.target, edge.target_part), []).append(edge)
        return into

    def unroll(self, batches: int) -> list[Action]:
        """All actions of batches 0 … n−1, in list order."""
        steps = range(-self.most_ahead, batches)
        return [action for s in steps for action in self.step(s) if action.key.batch < batches]

    def pairs(self, batches: int) -> list[tuple[Key, Key]]:
        """The edges between the actions of batches 0 … n−1."""
        keys = [action.key for action in self.unroll(batches)]
        return [(source, key) for key in keys for source in self.predecessors(key) if source.batch < batches]

    def required_only(self) -> Schedule:
        """Without order and back-pressure: whatever the data allow. Meant for random orders over a bounded window."""
        return replace(self, name=f"{self.name}, required edges only", edges=tuple(e for e in self.edges if e.required))

    def without(self, *dropped: Edge) -> Schedule:
        """With some edges taken out: for showing and testing what an edge is for."""
        kept = tuple(edge for edge in self.edges if edge not in dropped)
        return replace(self, name=f"{self.name} without {', '.join(map(str, dropped))}", edges=kept)

    def on_lane(self, stage: Stage, lane: Lane = Lane.EXTRA, part: int | None = None) -> Schedule:
        """With a stage's actions (one part's, or all) on another lane.

        A lane's order may hide that an edge is missing; on a lane of its own the action runs as soon as edges let it.
        """
        entries = tuple(
            replace(entry, lane=lane) if entry.stage is stage and part in (None, entry.part) else entry
            for entry in self.entries
        )
        return replace(self, name=f"{self.name}, {stage} on {lane}", entries=entries)

    def __str__(self) -> str:
        """The step as text, then every edge with its reason."""
        lines = [f"schedule {self.name}"]
        for entry in self.entries:
            ahead = f"t+{entry.ahead}" if entry.ahead else "t"
            often = f"  every {entry.every} batches" if entry.every > 1 else ""
            lines.append(f"  {entry.lane:8} {entry.stage}({ahead}{_part(entry.part)}){often}")
        for edge in self.edges:
            lines.append(f"  {'required' if edge.required else 'chosen':8} {edge}  {edge.reason}".rstrip())
        return "\n".join(lines)
