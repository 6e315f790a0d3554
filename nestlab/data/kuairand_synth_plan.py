"""Which video is shown when: counts drawn from the law of frequencies, laid out in time and by cluster, exactly.

A first pass over the walk counts the demand: rows by cluster of videos and by quarter of a day. Every cluster then gets
as many videos as it takes for their drawn counts to sum to its demand. Each exposure has a moment of its own near its
video's (bursts); in the order of these moments the exposures fill the cluster's quarters. So counts are what was drawn,
and days and hours what the walk wants, whatever the two are. Four bytes an exposure are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nestlab.data.frequency import FrequencyLaw


@dataclass(frozen=True)
class Plan:
    """What is shown.

    Attributes:
        exposures: [rows without copies] int32 video ids, by cluster, within it by quarter.
        starts: [clusters, BINS] int64: where each cell begins.
        cluster_of: [videos] int32.
        shown: [videos] int32: how many of the exposures are each video's.
    """

    exposures: np.ndarray
    starts: np.ndarray
    cluster_of: np.ndarray
    shown: np.ndarray

    @property
    def videos(self) -> int:
        return len(self.cluster_of)

    def of_clusters(self, rng: np.random.Generator, clusters: np.ndarray) -> np.ndarray:
        """[n] int64: for each of `clusters` [n] a video of it, as likely as it is shown often."""
        first = self.starts[:, 0]
        stop = np.append(first[1:], len(self.exposures))
        return self.exposures[first[clusters] + (rng.random(len(clusters)) * (stop - first)[clusters]).astype(np.int64)]


def make_plan(seed: int, demand: np.ndarray, law: FrequencyLaw, burst: float) -> Plan:
    """Lays out the exposures for demand [clusters, bins] int64; `burst`: mean distance from the video's moment."""
    totals = demand.sum(axis=1)
    exposures = np.empty(int(totals.sum()), np.int32)
    cluster_of, shown, videos, done = [], [], 0, 0
    for cluster, total in enumerate(totals.tolist()):
        rng = np.random.default_rng([seed, 9, cluster])
        counts = law.draw_sum(rng, total)
        order = np.argsort(_moments(rng, counts, burst), kind="stable")
        exposures[done : done + total] = (videos + np.repeat(np.arange(len(counts), dtype=np.int32), counts))[order]
        cluster_of.append(np.full(len(counts), cluster, np.int32))
        shown.append(counts.astype(np.int32))
        videos, done = videos + len(counts), done + total
    starts = (np.cumsum(demand) - demand.ravel()).reshape(demand.shape)
    return _renamed(seed, Plan(exposures, starts, np.concatenate(cluster_of), np.concatenate(shown)))


def _moments(rng: np.random.Generator, counts: np.ndarray, burst: float) -> np.ndarray:
    """[exposures] float32 in 0 … 1, of video after video."""
    own = np.repeat(rng.random(len(counts), dtype=np.float32), counts)
    away = rng.exponential(burst, len(own)).astype(np.float32) * rng.choice(np.array((-1, 1), np.float32), len(own))
    return np.abs((own + away + 1) % 2 - 1)  # what leaves 0 … 1 is mirrored back into it


def _renamed(seed: int, plan: Plan) -> Plan:
    """A video's number must tell nothing of its cluster. Takes the exposures over."""
    names = np.random.default_rng([seed, 10]).permutation(plan.videos).astype(np.int32)
    cluster_of, shown = np.empty_like(plan.cluster_of), np.empty_like(plan.shown)
    cluster_of[names], shown[names] = plan.cluster_of, plan.shown
    for start in range(0, len(plan.exposures), 1 << 20):
        piece = plan.exposures[start : start + (1 << 20)]
        piece[:] = names[piece]
    return Plan(plan.exposures, plan.starts, cluster_of, shown)
