"""The study as a notebook runs it: one part a question, each with a figure, its claims and a table, all in one run."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pandas as pd

from nestlab import data, device, results
from nestlab.errors import NotAvailableYet
from nestlab.experiments.parts import Part, PartsStudy
from nestlab.experiments.tables import Shown
from nestlab.experiments.two_tier import claims
from nestlab.experiments.two_tier.settings import settings
from nestlab.experiments.two_tier.setups import place_of_tier

PARTS = {
    "activity": Part("How few rows are hot", "each line names its data"),
    "hit_rates": Part("Hit rate of a batch's unique keys, by policy and cache size", "each panel names its data"),
    "skew": Part("Hit rate by skew, in a cache of a tenth of the ids", "ids drawn by Zipf's law (SYNTHETIC)"),
    "swaps": Part("Swap volume: records of weights and states"),
    "prefetch": Part("Step time with and without prefetch"),
    "timelines": Part("The stages of the two articles, as they ran"),
    "equality": Part("What the tiers change in the result"),
    "retrieval": Part("Look-ups over buckets and threads", "distinct ids, drawn uniformly (SYNTHETIC)"),
    "growth": Part("Tables that grow from empty", digest="stops"),
    "memory": Part("A map of the ids seen, against tables of given size"),
    "features": Part("Features come and go"),
    "cold_start": Part("The first batches: cold start", digest="first_batches"),
    "host_capacity": Part("Less host memory, more disk traffic"),
    "exports": Part("Full and incremental exports"),
    "peaks": Part("Where the bytes of a row are"),
    "checks": Part(),
}
_ABOUT = ["preset", "tier", "depth", "disk", "evict", "optimizer"]  # what tells set-ups apart
_BYTES = ["device_bytes_a_row", "host_bytes_a_row"]


@dataclass(eq=False)
class Study(PartsStudy):
    """The parts done so far. `run` is open until `finish()`. A run is judged at every scale: none is told."""

    name = "two_tier"
    package = "nestlab.experiments.two_tier"
    parts = PARTS
    answering = claims.ANSWERING

    def measured(self, part: str) -> pd.DataFrame:
        return self.module(part).measure(self.settings)

    def shown(self, frame: pd.DataFrame, note: str = "") -> Shown:
        """Numbers to four digits, with the index."""
        return Shown(frame)

    def bytes_a_row(self) -> Shown:
        """Bytes of the tables a row of theirs, in the device tier and in host memory, of every set-up that tells."""
        shown = []
        for part, frame in self.frames.items():
            if set(_BYTES) <= set(frame.columns):
                about = [name for name in _ABOUT if name in frame.columns]
                shown.append(frame.drop_duplicates([*about, *_BYTES])[[*about, *_BYTES]].assign(part=part))
        found = pd.concat(shown, ignore_index=True).reindex(columns=["part", *_ABOUT, *_BYTES])
        found["device_tier_in"] = place_of_tier(self.settings.device)
        self.run.table("bytes_a_row", found)
        return Shown(found.replace("\n", " ", regex=True).astype(dict.fromkeys(_ABOUT, object)).fillna(""))


def two_tier(
    *,
    dataset: str = "kuairand",
    data_root: str = "datasets",
    scale: str = "quick",
    device_name: str = "auto",
    backend: str = "gloo",
    world_size: int = 1,
    seed: int = 0,
    results_dir: str = "results",
) -> Study:
    """Opens a run; the parts are measured when they are asked for.

    Raises:
        UserError: an unknown scale or data set, real data asked for by name but absent.
        NotAvailableYet: more than one rank.
    """
    if world_size != 1:
        raise NotAvailableYet(f"two_tier: world_size={world_size} is not available yet; use world_size=1")
    where = str(device.resolve(device_name))
    chosen = settings(scale, dataset=dataset, data_root=data_root, seed=seed, device=where)
    info = data.open_dataset(chosen.dataset, chosen.data_root, rows=chosen.rows).info
    params = {**asdict(chosen), "scale": scale, "backend": backend, "world_size": world_size}
    run = results.start("two_tier_cache", params, results_dir=results_dir, seed=seed)
    run.dataset(info)
    return Study(chosen, info.title, run)
