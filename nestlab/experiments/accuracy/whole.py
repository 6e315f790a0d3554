"""A trained model as every rank sees it: all ranks' rows together, held-out states and items' rows unrounded."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nestlab.batch import Batch
from nestlab.embedding import Embedded, EmbeddingStore
from nestlab.exchange import Transport
from nestlab.experiments.accuracy.bound import Scorer
from nestlab.experiments.accuracy.training import Trained
from nestlab.experiments.nestpipe.comparing import Distance, Whole, distance
from nestlab.experiments.ranks import rows_of_all
from nestlab.models.sequence.building import TABLES


class Known:
    """The rows of all ranks, by table in ascending order of their ids. All ranks make it together, nothing in flight.

    Attributes:
        ids: by table [n] int64.
        whole: records and dense part, as `nestpipe.comparing` compares them.
    """

    def __init__(self, trained: Trained, transport: Transport) -> None:
        model = trained.pipeline.model
        self._store = model.embedding
        self.ids: dict[str, np.ndarray] = {}
        records = {}
        for name in [table.name for group in model.embedding.groups for table in group.tables]:
            self.ids[name], records[name] = _gathered(model.embedding, name, transport)
        parameters = {name: value.detach().cpu() for name, value in model.dense.named_parameters()}
        self.whole = Whole(records, model.embedding.groups[0].dim, parameters)

    def distance(self, other: Known) -> Distance:
        """
        Raises:
            ValueError: other ids were trained on.
        """
        for name, ids in self.ids.items():
            if not np.array_equal(ids, other.ids[name]):
                raise ValueError(f"table '{name}': {len(ids)} ids against {len(other.ids[name])} others")
        return distance(self.whole, other.whole)

    def rows(self, table: str, ids: np.ndarray) -> Tensor:
        """[n, dim] of ids [n] int64; of one that was never trained its initial row."""
        known = self.ids[table]
        places = np.searchsorted(known, ids).clip(max=len(known) - 1)
        there = known[places] == ids
        found = self.whole.records[table][torch.from_numpy(places), : self.whole.dim].clone()
        if not there.all():
            found[torch.from_numpy(~there)] = self._store.full_weight(table, ids[~there])
        return found


def _gathered(store: EmbeddingStore, table: str, transport: Transport) -> tuple[np.ndarray, Tensor]:
    """Ids and records [weight | state] of a table over all ranks, ascending; of replicas, which are equal, one."""
    own = store.export(table)
    ids = rows_of_all(transport, own["ids"].unsqueeze(1)).squeeze(1).numpy()
    records = rows_of_all(transport, torch.cat([own["weight"], own["state"]], dim=1))
    ids, first = np.unique(ids, return_index=True)
    return ids, records[torch.from_numpy(first)]


@torch.no_grad()
def scorer(
    trained: Trained, known: Known, batches: Iterable[Batch], left_out: tuple[Tensor, Tensor] | None = None
) -> Scorer:
    """States of the samples of `batches`, in their order, and unit-length rows of all items, as the model computes
    them: in float64 nothing is rounded on the way. `left_out`: see Scorer."""
    dense = trained.pipeline.model.dense.eval()
    states = [dense(batch, _embedded(batch, known)).predictions for batch in batches]
    dense.train()
    rows = F.normalize(known.rows("item", trained.sequences.items), dim=-1)
    return Scorer(torch.cat(states) if states else rows[:0], rows, left_out)


def _embedded(batch: Batch, known: Known) -> Embedded:
    embedded, lengths = Embedded(batch.size), batch.feature_lengths()
    ids = dict(zip(batch.features, batch.ids.split(lengths.sum(dim=1).tolist()), strict=True))
    for table, features in TABLES.items():
        for feature in features:
            own = lengths[batch.features.index(feature)]
            embedded.add(feature, known.rows(table, ids[feature].numpy()), own)
    return embedded
