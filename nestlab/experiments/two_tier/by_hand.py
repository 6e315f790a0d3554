"""Admission and eviction once more, key by key in plain Python: what the tables of the study are checked against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from nestlab.batch import Batch
from nestlab.embedding.features import FeatureRules
from nestlab.experiments.two_tier.one_pass import ids_by_feature

Key = tuple[int, int]  # (feature number, id)
Occurrences = list[tuple[Key, int, float]]  # key, shows, clicks of one batch


def occurrences(batches: Iterable[Batch]) -> Iterator[Occurrences]:
    """How often each key occurs in each batch, and the sum of those samples' labels."""
    for batch in batches:
        labels = batch.labels.numpy().astype(np.float64)
        lengths = batch.feature_lengths().numpy()
        found: Occurrences = []
        for number, ids in enumerate(ids_by_feature(batch)):
            keys, inverse, shows = np.unique(ids, return_inverse=True, return_counts=True)
            clicks = np.bincount(inverse, np.repeat(labels, lengths[number]), keys.size)
            found += [
                ((number, i), s, c) for i, s, c in zip(keys.tolist(), shows.tolist(), clicks.tolist(), strict=True)
            ]
        yield found


@dataclass
class ByHand:
    """The rules of `nestlab.embedding.features` over a stream; a sketch is taken for exact counts.

    Attributes:
        seen: the keys that have a row, and the number of the batch that used each last.
        waiting: what is counted of the keys that have none.
    """

    rules: FeatureRules
    seen: dict[Key, int] = field(default_factory=dict)
    waiting: dict[Key, float] = field(default_factory=dict)
    scores: dict[Key, float] = field(default_factory=dict)
    gained: dict[Key, tuple[float, float]] = field(default_factory=dict)

    def run(self, batches: Iterable[Occurrences]) -> ByHand:
        """All batches, numbered from 1; self, for chaining."""
        for number, found in enumerate(batches, 1):
            for key, shows, clicks in found:
                if key in self.seen or self._admitted(key, shows, clicks):
                    self.seen[key] = number
                    before = self.gained.get(key, (0.0, 0.0))
                    self.gained[key] = (before[0] + shows, before[1] + clicks)
            if number % self.rules.evict_every == 0:
                self._end_round(number)
        return self

    def _admitted(self, key: Key, shows: int, clicks: float) -> bool:
        rules = self.rules
        if rules.admit == "none":
            return True
        by_click = rules.admit == "show_click"
        gain = rules.show_weight * shows + rules.click_weight * clicks if by_click else shows
        total = self.waiting.get(key, 0.0) + gain
        if total >= rules.admit_threshold:
            self.waiting.pop(key, None)
            return True
        self.waiting[key] = total
        return False

    def _end_round(self, number: int) -> None:
        if self.rules.admit == "show_click":
            self.waiting = {key: score * self.rules.decay for key, score in self.waiting.items()}
        for key in self._victims(number):
            del self.seen[key]
            self.scores.pop(key, None)
            self.gained.pop(key, None)

    def _victims(self, number: int) -> list[Key]:
        rules, idle = self.rules, [key for key, last in self.seen.items() if last < number - 1]
        if rules.evict == "none":
            return []
        if rules.evict == "age":
            return [key for key in idle if number - self.seen[key] > rules.evict_after]
        for key in self.seen:
            shows, clicks = self.gained.pop(key, (0.0, 0.0))
            gain = rules.show_weight * shows + rules.click_weight * clicks
            self.scores[key] = (self.scores.get(key, 0.0) + gain) * rules.decay
        idle.sort(key=lambda key: (self.scores[key], key[1], key[0]))
        return idle[: int(rules.evict_share * len(self.seen))]
