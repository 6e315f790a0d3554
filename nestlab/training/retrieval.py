"""How well a sequence model finds the item that came next: held-out states against all items, on one rank or on many.

Every rank gets the states of all samples, ranks its share of them, and reads the items' rows chunk by chunk, as
evaluation reads them: from whichever rank owns them, from cores of a tensor train, or, of an item never trained, from
initialisation. No rank holds all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from nestlab.data import Loader
from nestlab.errors import UserError
from nestlab.pipeline import Pipeline
from nestlab.pipeline.rows import gather_samples
from nestlab.training.item_pairs import Seen, places_of, sampled_pairs, seen_pairs
from nestlab.training.ranking_metrics import CHUNK, Ranker, popularity_ranks, retrieval_metrics

HELDOUT = "heldout"


class SequenceData(Protocol):
    """What a ranking needs of the data; `nestlab.data` has it of KuaiRand."""

    items: np.ndarray
    """[I] int64, ascending: what may be recommended."""

    def batches(self, split: str, batch_size: int) -> Loader:
        """Samples in order; a batch's labels are their numbers in the split."""
        ...

    def targets(self, split: str) -> np.ndarray:
        """[n] int64: the item that comes next, by number of the sample."""
        ...

    def seen(self, split: str, samples: np.ndarray) -> Seen:
        """The items that came before, of these samples."""
        ...

    def popularity(self) -> np.ndarray:
        """[I] how often each item is met in training."""
        ...


@dataclass(frozen=True)
class RankingProtocol:
    """How a ranking is judged; figures under two protocols do not compare, and the metrics' names say which it was.

    Args:
        ks: of HR@k and NDCG@k.
        leave_out_seen: a sample's ranking is without the items it has seen (but with its target): `unseen_HR@10` …
        sampled: also rank the target among so many other items, drawn uniformly: `sampled_HR@10` …, which are far
            higher, and may order models otherwise (Krichene and Rendle, KDD 2020); 0: no.
        seed: of what is drawn.
    """

    ks: tuple[int, ...] = (10, 50)
    leave_out_seen: bool = False
    sampled: int = 0
    seed: int = 0

    @property
    def prefix(self) -> str:
        """Of the metrics under full ranking."""
        return "unseen_" if self.leave_out_seen else ""

    @property
    def facts(self) -> dict[str, str | int]:
        """For `Run.protocol`: what two runs must agree in before they are compared."""
        told: dict[str, str | int] = {
            "ranking": "full" if not self.sampled else f"full, and sampled among {self.sampled} + 1",
            "seen": "left out" if self.leave_out_seen else "kept",
            "k": ",".join(map(str, self.ks)),
            "ties": "half, rounded up",
        }
        return told | ({"sampling_seed": self.seed} if self.sampled else {})


@dataclass(frozen=True, eq=False)
class Ranking:
    """What a look at held-out samples found; the same on every rank.

    Attributes:
        metrics: by name; see `retrieval_metrics`.
        numbers: [n] int64, of the samples in their split, in the order of the rest.
        targets: [n] int64.
        ranks: [n] int64, from 0, among all items.
        sampled_ranks: likewise, among the sampled ones; None where none were.
        protocol: by which.
    """

    metrics: dict[str, float]
    numbers: np.ndarray
    targets: np.ndarray
    ranks: np.ndarray
    sampled_ranks: np.ndarray | None
    protocol: RankingProtocol


def evaluate_retrieval(
    pipeline: Pipeline,
    data: SequenceData,
    split: str = HELDOUT,
    batch_size: int = 256,
    protocol: RankingProtocol | None = None,
    *,
    table: str = "item",
    chunk: int = CHUNK,
) -> Ranking:
    """Ranks every sample's target among all items; changes nothing that is learnt. Every rank calls it alike.

    Scores are exact (see `ranking_metrics`): from equal states and rows come equal ranks, on any number of ranks.

    Args:
        pipeline: its model's predictions [n, D] are the samples' states.
        batch_size: samples over all ranks.
        table: whose rows are the items'.
        chunk: items whose rows are read and scored at a time.

    Raises:
        RuntimeError: batches are in flight; drain first.
        UserError: a target is none of the items, predictions are no states, or a number is not finite.
    """
    protocol = protocol or RankingProtocol()
    mesh = pipeline.transport.mesh
    labels, states = pipeline.evaluate(data.batches(split, batch_size).slice(mesh.rank, mesh.world_size))
    numbers, targets = _targets(labels, data.targets(split))
    places = places_of(data.items, targets)
    if len(numbers) == 0:
        return _ranking(protocol, numbers, targets, places, places)
    if states.ndim != 2:
        raise UserError("ranking: the model predicts a number a sample, no state [n, D]; use a model for retrieval")
    if not np.isfinite(states).all():  # asked of all, so that no rank goes on alone
        raise UserError("ranking: a state holds a number that is not finite; train with a smaller learning rate")
    share = slice(*(len(numbers) * rank // mesh.world_size for rank in (mesh.rank, mesh.rank + 1)))
    own, inverse = np.unique(places, return_inverse=True)
    target_rows = pipeline.look_up(table, data.items[own])[torch.from_numpy(inverse[share])]
    ranker = Ranker(states[share], target_rows, len(data.items), chunk)
    if protocol.leave_out_seen:
        ranker.leave_out(seen_pairs(data.seen(split, numbers[share]), data.items, places[share]))
    if protocol.sampled:
        drawn = sampled_pairs(len(data.items), places[share], numbers[share], protocol.sampled, protocol.seed)
        ranker.sample(drawn)
    for first in range(0, len(data.items), chunk):
        ranker.add(first, pipeline.look_up(table, data.items[first : first + chunk]))
    found = np.stack([ranker.ranks(), ranker.sampled_ranks()], axis=1)
    everyones = gather_samples(pipeline.transport, torch.from_numpy(found)).cpu().numpy()
    return _ranking(protocol, numbers, targets, everyones[:, 0], everyones[:, 1])


def rank_by_popularity(data: SequenceData, split: str = HELDOUT, protocol: RankingProtocol | None = None) -> Ranking:
    """The same of the order by popularity, which any model has to pass; under full ranking alone.

    Raises:
        UserError: a target is none of the items, or the protocol asks for sampled items.
    """
    protocol = protocol or RankingProtocol()
    if protocol.sampled:
        raise UserError("ranking: popularity is ranked among all items; give a protocol with sampled=0")
    targets = np.asarray(data.targets(split), dtype=np.int64)
    numbers = np.arange(len(targets))
    seen = data.seen(split, numbers) if protocol.leave_out_seen else None
    ranks = popularity_ranks(data.popularity(), data.items, targets, seen)
    return _ranking(protocol, numbers, targets, ranks, ranks)


def _targets(labels: np.ndarray, targets: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and targets of the samples whose labels came."""
    numbers, targets = labels.astype(np.int64), np.asarray(targets, dtype=np.int64)
    if (numbers < 0).any() or (numbers >= len(targets)).any() or (numbers != labels).any():
        raise UserError(
            f"ranking: labels are no numbers of samples 0 … {len(targets) - 1}; give batches of `sequences(…)`"
        )
    return numbers, targets[numbers]


def _ranking(
    protocol: RankingProtocol, numbers: np.ndarray, targets: np.ndarray, ranks: np.ndarray, sampled: np.ndarray
) -> Ranking:
    metrics = retrieval_metrics(ranks, protocol.ks, protocol.prefix)
    if protocol.sampled:
        metrics |= retrieval_metrics(sampled, protocol.ks, "sampled_")
    return Ranking(metrics, numbers, targets, ranks, sampled if protocol.sampled else None, protocol)
