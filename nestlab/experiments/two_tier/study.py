"""The study as a notebook runs it: one part a question, each with a figure, its claims and a table, all in one run."""

from __future__ import annotations

import importlib
import time
from dataclasses import asdict, dataclass, field
from types import ModuleType

import pandas as pd
from matplotlib.figure import Figure

from nestlab import data, device, plotting, results
from nestlab.errors import NotAvailableYet, UserError
from nestlab.experiments.two_tier import claims
from nestlab.experiments.two_tier.settings import Settings, settings
from nestlab.experiments.two_tier.setups import place_of_tier
from nestlab.experiments.two_tier.shown import Shown

# Part → heading of its figure, and its data where they are not those of the training.
PARTS = {
    "activity": ("How few rows are hot", "each line names its data"),
    "hit_rates": ("Hit rate of a batch's unique keys, by policy and cache size", "each panel names its data"),
    "skew": ("Hit rate by skew, in a cache of a tenth of the ids", "ids drawn by Zipf's law (SYNTHETIC)"),
    "swaps": ("Swap volume: records of weights and states", ""),
    "prefetch": ("Step time with and without prefetch", ""),
    "timelines": ("The stages of the two articles, as they ran", ""),
    "equality": ("What the tiers change in the result", ""),
    "retrieval": ("Look-ups over buckets and threads", "distinct ids, drawn uniformly (SYNTHETIC)"),
    "growth": ("Tables that grow from empty", ""),
    "memory": ("A map of the ids seen, against tables of given size", ""),
    "features": ("Features come and go", ""),
    "cold_start": ("The first batches: cold start", ""),
    "host_capacity": ("Less host memory, more disk traffic", ""),
    "exports": ("Full and incremental exports", ""),
    "peaks": ("Where the bytes of a row are", ""),
    "checks": ("", ""),
}
# The function of a part that makes the table which is shown, where it is not called `digest`.
_DIGESTS = {"growth": "stops", "cold_start": "first_batches"}
_ABOUT = ["preset", "tier", "depth", "disk", "evict", "optimizer"]  # what tells set-ups apart
_BYTES = ["device_bytes_a_row", "host_bytes_a_row"]
_PACKAGE = "nestlab.experiments.two_tier"


@dataclass(eq=False)
class Study:
    """The parts done so far. `run` is open until `finish()`.

    Attributes:
        frames: by part, what it measured.
        title: of the data set that is trained on.
    """

    settings: Settings
    title: str
    run: results.Run
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def figure(self, part: str) -> Figure:
        """Measures a part, if that has not been done, and draws it."""
        heading, source = PARTS[part]
        frame = self.frame(part)
        title = plotting.titled(heading, {"dataset": source or _data(frame) or self.title, "how": _how(frame)}, 120)
        figure = _module(part).plot(frame, title)
        self.run.figure(part, figure)
        return figure

    def frame(self, part: str) -> pd.DataFrame:
        """What a part measured, all of it; kept in the run as a table of that name."""
        if part not in PARTS:
            raise UserError(f"two_tier: no part '{part}'; there are {', '.join(PARTS)}")
        if part not in self.frames:
            started = time.perf_counter()
            self.frames[part] = _module(part).measure(self.settings)
            self.seconds[part] = time.perf_counter() - started
            self.run.table(part, self.frames[part])
        return self.frames[part]

    def table(self, part: str) -> pd.DataFrame:
        """What a reader is shown of a part: its digest where it has one."""
        digest = getattr(_module(part), _DIGESTS.get(part, "digest"), None)
        frame = self.frame(part)
        return Shown(frame if digest is None else digest(frame))

    def beside(self, part: str) -> pd.DataFrame:
        """The claims that a part answers: published, obtained, verdict."""
        return Shown(claims.beside(claims.combine(_answered(part, self.frame(part)))))

    def claims(self) -> pd.DataFrame:
        """All claims that the parts answered; kept in the run, where `nestlab claims` finds them."""
        answers = self._answers()
        self.run.table("claims", claims.register.table(answers))
        return Shown(claims.beside(answers))

    def still_open(self) -> pd.DataFrame:
        """The claims that this notebook is to answer and did not, with the reasons."""
        return Shown(claims.still_open(self._answers()))

    def bytes_a_row(self) -> pd.DataFrame:
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

    def finish(self) -> str:
        """Closes the run; the folder it lies in."""
        self.run.summary(**self._key_figures())
        self.run.table("seconds", pd.DataFrame(list(self.seconds.items()), columns=["part", "seconds"]))
        self.run.finish("ok")
        return str(self.run.path)

    def _answers(self) -> list[claims.Answer]:
        return claims.combine(each for part, frame in self.frames.items() for each in _answered(part, frame))

    def _key_figures(self) -> dict[str, float]:
        verdicts = claims.beside(self._answers())["verdict"].value_counts()
        figures = {f"claims_{verdict.replace(' ', '_')}": int(count) for verdict, count in verdicts.items()}
        for part in self.frames:
            figures |= getattr(_module(part), "key_figures", lambda frame: {})(self.frames[part])
        return figures


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


def _module(part: str) -> ModuleType:
    return importlib.import_module(f"{_PACKAGE}.{part}")


def _answered(part: str, frame: pd.DataFrame) -> list[dict]:
    """What a part says of claims; some say nothing."""
    answers = getattr(_module(part), "answers", None)
    return [] if answers is None else answers(frame)


def _data(frame: pd.DataFrame) -> str | None:
    """The title of the data that all rows of a frame are of, if it says so."""
    told = frame["data"].unique() if "data" in frame.columns else ()
    return told[0] if len(told) == 1 else None


def _how(frame: pd.DataFrame) -> str:
    """How the numbers of a frame were obtained, every way once."""
    column = next((name for name in ("how", "how_obtained") if name in frame.columns), None)
    return "measured" if column is None else ", ".join(dict.fromkeys(frame[column]))
