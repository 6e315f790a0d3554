"""Ids in the order of rows that suits a tensor-train table: made once from a prepared data set, saved beside it.

A tensor-train table multiplies once for every distinct prefix of its row numbers, so ids that occur together should
have neighbouring rows. EL-Rec's order (Wang et al., SC 2022): the most frequent ids first, by frequency; then the
others, by communities of ids that occur in the same batches. Only the training split decides; ids that the held-out
split alone shows follow in ascending order, and any other id falls into one of a few spare rows at the end. Every id
of the data has a row of its own: a table row is the same parameters under another number.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nestlab.data.dataset import Dataset
from nestlab.data.prepare import Prepared, Progress, describe_file, prepare_folder
from nestlab.data.reorder_communities import MOST_NODES, Graph, Sampling, batch_ends, communities
from nestlab.data.reorder_count import BLOCK, blocks, count_ids
from nestlab.data.reorder_map import FeatureMap, IdMap, map_of
from nestlab.errors import UserError

MODES = ("communities", "frequency", "none")
INSIDE = ("tree", "frequency")
FOLDER = "reorder"
SCHEMA_VERSION = 1  # raise it whenever the same data and options would be ordered otherwise
_LEAST_SPARE = 16


@dataclass(frozen=True)
class ReorderOptions:
    """How ids are ordered. All of it is part of the reordering's identity.

    Attributes:
        mode: `communities` (EL-Rec's), `frequency` (all by frequency), `none` (by ascending id).
        features: which; None: those with more than `min_ids` distinct ids in the training split.
        batch: samples of a batch, for who occurs together; consecutive ones, in the order of time.
        inside: of a community, how ids are ordered: as in its `tree` (EL-Rec's), in which parts of a community stand
            together too, or by `frequency`.
        head: share of the training split's distinct ids that keep the order of frequency before all communities.
        pairs: a budget, see `reorder_communities.Sampling`; memory is about 60 bytes a pair.
        spare: spare rows, as a share of the known ones; at least 16 rows.
        seed: of what is sampled where a batch has too many pairs.
    """

    mode: str = "communities"
    inside: str = "tree"
    features: tuple[str, ...] | None = None
    min_ids: int = 1000
    batch: int = 512
    head: float = 0.05
    pairs: int = 1 << 23
    spare: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in (("mode", MODES), ("inside", INSIDE)):
            if getattr(self, name) not in choices:
                raise UserError(f"{name}='{getattr(self, name)}': choose one of {', '.join(choices)}")
        if self.features == ():
            raise UserError("features=(): name one or more, or None for those with many ids")
        for name, least, most in (("batch", 1, 1 << 20), ("pairs", 1, 1 << 32), ("min_ids", 0, 1 << 62)):
            if not least <= getattr(self, name) <= most:
                raise UserError(f"{name}={getattr(self, name)}: choose between {least} and {most}")
        for name in ("head", "spare"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name}={getattr(self, name)}: a share; choose between 0 and 1")
        if not 0 <= self.seed < 1 << 63:
            raise UserError(f"seed={self.seed}: choose 0 or more, below 2^63")


def reorder(
    dataset: Dataset, options: ReorderOptions | None = None, progress: Progress = lambda message: None
) -> IdMap:
    """The reordering of a data set; made if it is not there whole. `dataset.reordered(it)` then reads by it.

    It lies in the prepared folder, under `reorder/`: a Parquet file a feature (id, row), and a manifest.

    Raises:
        UserError: there is no such feature, or the folder cannot be written.
    """
    return map_of(prepare_reorder(dataset, options or ReorderOptions(), progress))


def prepare_reorder(dataset: Dataset, options: ReorderOptions, progress: Progress) -> Prepared:
    """The folder of `reorder`, not read yet."""
    for name in options.features or ():
        if name not in dataset.features:
            other = dataset.same_ids.get(name)
            hint = f"its ids are those of '{other}'" if other else f"choose from {', '.join(dataset.features)}"
            raise UserError(f"{dataset.info.id}: no feature '{name}' to reorder; {hint}")
    identity = {
        "schema_version": SCHEMA_VERSION,
        "format": "reorder",
        "source": dataset.info.fingerprint,
        "options": asdict(options),
    }
    root = dataset.prepared.folder / FOLDER
    return prepare_folder(options.mode, root, identity, _Build(dataset, options, progress).run)


@dataclass(frozen=True)
class _Build:
    """One reordering in its temporary folder."""

    dataset: Dataset
    options: ReorderOptions
    progress: Progress

    def run(self, folder: Path) -> dict[str, Any]:
        train = count_ids(self.dataset, "train", self.options.features or self.dataset.features, self.progress)
        if self.options.features is None:
            train = {name: found for name, found in train.items() if len(found[0]) > self.options.min_ids}
        heldout = count_ids(self.dataset, "heldout", tuple(train), self.progress)
        entries = [
            self._write(folder, number, name, *train[name], heldout[name][0]) for number, name in enumerate(train)
        ]
        return {
            "source": self.dataset.info.fingerprint,
            "source_title": self.dataset.info.title,
            "options": asdict(self.options),
            "shared": {name: other for name, other in self.dataset.same_ids.items() if other in train},
            "features": entries,
            "parts": [describe_file(folder / entry["file"]) for entry in entries],
            "rows_out": sum(entry["rows"] for entry in entries) or 1,  # a reordering of nothing is whole, too
        }

    def _write(
        self, folder: Path, number: int, name: str, ids: np.ndarray, counts: np.ndarray, heldout: np.ndarray
    ) -> dict[str, Any]:
        order, facts = self._order(name, ids, counts)
        later = np.setdiff1d(heldout, ids, assume_unique=True)
        known = np.concatenate([ids[order], later])
        spare = max(_LEAST_SPARE, int(np.ceil(len(known) * self.options.spare)))
        file = f"{number:03}-{name}.parquet"
        table = pa.table({"id": pa.array(known, pa.int64()), "row": pa.array(np.arange(len(known)), pa.int64())})
        pq.write_table(table, folder / file, compression="zstd", write_page_checksum=True)
        counted = {"trained": len(ids), "known": len(known), "spare": spare, "rows": len(known) + spare}
        return {"feature": name, "file": file, **counted, **facts}

    def _order(self, name: str, ids: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
        """The training split's ids in the order of rows, as places in `ids` [n]; and what to tell about it."""
        if self.options.mode == "none":
            return np.arange(len(ids)), {}
        by_frequency = np.argsort(-counts, kind="stable")  # equally frequent ids ascend
        if self.options.mode == "frequency":
            return by_frequency, {}
        head = int(np.ceil(len(ids) * self.options.head))
        tail = by_frequency[head:]
        if len(tail) > MOST_NODES:
            raise UserError(f"{name}: {len(tail):,} ids in the graph; at most 2^31 − 1: choose mode frequency")
        links = self._links(name, FeatureMap(ids[by_frequency], 1), head)
        found = communities(*links, counts[tail], self.options.inside)
        facts = {"head": head, "links": len(links[0]), "communities": len(found.sizes)}
        return np.concatenate([by_frequency[:head], tail[found.order]]), facts

    def _links(self, name: str, ranks: FeatureMap, head: int) -> tuple[np.ndarray, np.ndarray]:
        """The co-occurrence graph of the ids from rank `head` on, numbered from there."""
        options = self.options
        first, stop = self.dataset.rows("train")
        sampling = Sampling(options.batch, options.pairs, options.seed)
        graph = Graph(ranks.known - head, sampling, -(-(stop - first) // options.batch))
        samples = options.batch * max(1, BLOCK // options.batch)  # a block ends where a batch does
        for number, block in enumerate(blocks(self.dataset, "train", [name], samples)):
            ids, lengths = block[name]
            nodes = ranks(ids) - head
            graph.add(nodes, batch_ends(lengths, options.batch))
            self.progress(f"{self.dataset.info.id}: {name} linked, {number + 1} × {samples:,} rows")
        return graph.links()
