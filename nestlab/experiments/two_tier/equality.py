"""A tier moves records, it never changes them: parameters and optimizer states against a training without tiers.

Every set-up trains the same model on the same batches. Then every table is exported, and compared with that of
`direct`, number by number. Anything but 0 is a fault of the library, so this is shown as a number and not as a word.
On an accelerator rows are updated there in torch's operations and those of `direct` on the host: last bits may differ.
"""

from __future__ import annotations

from dataclasses import replace
from tempfile import TemporaryDirectory

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from nestlab import plotting
from nestlab.experiments.tables import answer
from nestlab.experiments.two_tier.one_pass import Stream, open_stream
from nestlab.experiments.two_tier.settings import Settings
from nestlab.experiments.two_tier.setups import Setup
from nestlab.pipeline import Pipeline
from nestlab.techniques import Techniques

CACHE_SHARE = 0.1  # of the rows in use; grows to what the batches in flight need, so that nearly every step evicts
EVICTING_SHARE = 0.5
HOST_SHARE = 0.6  # of the records' bytes, where a disk tier lies below
_AHEAD = {"oracle": {"look_ahead": 20}}
_STEPS, _FEW_STEPS = 60, 16
_FEW_SECONDS = 10.0  # below, a part of the set-ups will do
_EVICTS = {"evict": "age", "evict_after": 4, "evict_every": 10}  # within a few steps keys go and come again
_POLICIES = ("clock", "lru", "lfu", "oracle")


def measure(settings: Settings) -> pd.DataFrame:
    """A row a set-up.

    Returns:
        columns tier, depth (batches in flight), disk, evict (the rule by which keys lose their rows), optimizer, steps;
        max_difference_weights, max_difference_states, max_difference_dense (largest absolute difference to `direct` at
        depth 1 under the same rule), bit_equal; rows, hits, misses, writebacks, evicted (keys),
        device_bytes_a_row, host_bytes_a_row (of the tables, at the end), how.
    """
    small = settings.seconds < _FEW_SECONDS
    stream = open_stream(replace(settings, steps=_FEW_STEPS if small else _STEPS))
    rows = []
    for rule, optimizer in (({}, "adagrad"), (_EVICTS, "adagrad"), ({}, "lazy_adam")):
        common = {"optimizer": optimizer, "seed": settings.seed, "device": settings.device}
        reference = _run(Setup(Techniques(**rule), lanes=False, **common), stream)
        with TemporaryDirectory() as folder:
            flags = _kinds(settings, reference.record_bytes, folder)
            for each in flags if not rule and optimizer == "adagrad" else _few(flags):
                setup = Setup(_under(rule, each), lanes=each.pipeline_depth > 1, **common)
                rows.append(_compare(setup, stream, reference))
    return pd.DataFrame(rows)


class _Trained:
    """What a training left: everything that can be compared."""

    def __init__(self, pipeline: Pipeline) -> None:
        store = pipeline.model.embedding
        self.tables = {table.name: store.export(table.name) for group in store.groups for table in group.tables}
        self.dense = [parameter.detach().clone() for parameter in pipeline.model.dense.parameters()]
        self.counters = store.counters
        self.record_bytes = store.nbytes()["records"]
        self.rows = sum(len(host.index) for host in store.hosts)
        self.bytes_a_row = {
            "device_bytes_a_row": store.device_bytes / self.rows,
            "host_bytes_a_row": sum(store.nbytes().values()) / self.rows,
        }


def _kinds(settings: Settings, record_bytes: int, folder: str) -> list[Techniques]:
    """Every tier and policy, alone and prefetched; and above a disk tier, at a depth that differs."""
    small = settings.seconds < _FEW_SECONDS
    kinds = [Techniques(), Techniques(device_tier="dual_buffer")]
    kinds += [
        Techniques(device_tier="slot_cache", cache_slots=CACHE_SHARE, cache_policy=policy, **_AHEAD.get(policy, {}))
        for policy in (_POLICIES[::3] if small else _POLICIES)
    ]
    found = [replace(flags, pipeline_depth=depth) for flags in kinds for depth in ((1, 5) if small else (1, 2, 5))]
    found.append(replace(kinds[2], pipeline_depth=6))
    below = {"disk": folder, "host_capacity": int(HOST_SHARE * record_bytes)}
    return found + [replace(flags, pipeline_depth=3, **below) for flags in (kinds[2:3] if small else kinds[:4])]


def _under(rule: dict, flags: Techniques) -> Techniques:
    """The flags with a rule of eviction; its caches are larger, so that keys are evicted whose rows lie in slots."""
    larger = {"cache_slots": EVICTING_SHARE} if rule and flags.device_tier == "slot_cache" else {}
    return replace(flags, **rule, **larger)


def _few(flags: list[Techniques]) -> list[Techniques]:
    """Those in which most can go wrong: two buffers, a sweep and foresight, far ahead; and a cache over disk."""
    far = [each for each in flags if each.pipeline_depth == 6 or (each.disk and each.cache_policy == "clock")]
    kinds = [each for each in flags if each.pipeline_depth == 5 and each.device_tier != "direct"]
    far += [each for each in kinds if each.device_tier == "dual_buffer" or each.cache_policy == "oracle"]
    return [each for each in far if each.device_tier != "direct"]


def _run(setup: Setup, stream: Stream) -> _Trained:
    pipeline = setup.build(stream)
    for _ in pipeline.run(stream.train):
        pass
    return _Trained(pipeline)


def _compare(setup: Setup, stream: Stream, reference: _Trained) -> dict:
    trained = _run(setup, stream)
    weights = _difference(trained, reference, "weight")
    states = _difference(trained, reference, "state")
    dense = max(map(_largest, trained.dense, reference.dense), default=0.0)
    counters = trained.counters
    return {
        "tier": setup.tier,
        "depth": setup.flags.pipeline_depth,
        "disk": bool(setup.flags.disk),
        "evict": setup.flags.evict,
        "optimizer": setup.optimizer,
        "steps": len(stream.train),
        "max_difference_weights": weights,
        "max_difference_states": states,
        "max_difference_dense": dense,
        "bit_equal": _bit_equal(trained, reference),
        "rows": trained.rows,
        "hits": counters.hits,
        "misses": counters.misses,
        "writebacks": counters.writebacks,
        "evicted": counters.evicted,
        **trained.bytes_a_row,
        "how": "measured",
    }


def _difference(one: _Trained, other: _Trained, part: str) -> float:
    return max(_largest(table[part], other.tables[name][part]) for name, table in one.tables.items())


def _largest(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference; infinite where the shapes differ, which keys that differ bring about."""
    if one.shape != other.shape:
        return float("inf")
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def _bit_equal(one: _Trained, other: _Trained) -> bool:
    tables = all(
        torch.equal(table[part], other.tables[name][part])
        for name, table in one.tables.items()
        for part in ("ids", "weight", "state")
    )
    return tables and all(map(torch.equal, one.dense, other.dense))


def plot(frame: pd.DataFrame, title: str) -> Figure:
    """A cell a set-up, a row a tier: the largest difference of any number, and how many rows were written back."""
    parts = ["max_difference_weights", "max_difference_states", "max_difference_dense"]
    told = frame.assign(variant=_variants(frame), largest=frame[parts].max(axis=1))
    tiers, variants = list(dict.fromkeys(told["tier"])), list(dict.fromkeys(told["variant"]))
    with plotting.style():
        figure = plotting.new_figure(10.0, 1.9 + 0.42 * len(tiers))
        axes = figure.add_subplot()
        for row in told.to_dict("records"):
            _cell(axes, variants.index(row["variant"]), tiers.index(row["tier"]), row)
        axes.set_xticks(range(len(variants)), variants, fontsize=7)
        axes.set_yticks(range(len(tiers)), tiers)
        axes.set(xlim=(-0.5, len(variants) - 0.5), ylim=(len(tiers) - 0.5, -0.5))
        axes.set_xlabel("batches in flight; and what else there is")
        axes.grid(False)
        what = (
            "largest difference to `direct` of any weight or state, rows written back below; green: every bit is equal"
        )
        axes.set_title(f"{title}\n{what}")
    return figure


def _variants(frame: pd.DataFrame) -> pd.Series:
    """All of a set-up but its tier, a line each."""
    names = frame["depth"].astype(str) + frame["disk"].map({True: "\nover disk", False: ""})
    names += frame["evict"].map(lambda rule: "" if rule == "none" else f"\nevicts by {rule}")
    return names + frame["optimizer"].map(lambda name: "" if name == frame["optimizer"].iloc[0] else f"\n{name}")


def _cell(axes: Axes, x: int, y: int, row: dict) -> None:
    colour = plotting.pale(plotting.PALETTE["green" if row["bit_equal"] else "vermilion"])
    axes.barh(y, 0.94, 0.86, left=x - 0.47, color=colour)
    text = f"{row['largest']:g}\n{row['writebacks']:,.0f}"
    axes.text(x, y, text, ha="center", va="center", fontsize=7, linespacing=1.1)


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a tier and what else there is: the largest differences over its depths."""
    besides = _variants(frame).str.partition("\n")[2].str.replace("\n", ", ")
    named = frame.assign(tier=frame["tier"] + besides.map(lambda text: f", {text}" if text else ""))
    columns = {"depth": lambda depths: ", ".join(map(str, depths)), "steps": "first", "bit_equal": "all"}
    columns |= {name: "max" for name in frame.columns if name.startswith("max_difference")}
    columns |= {"writebacks": "sum", "evicted": "sum"}
    return named.groupby("tier", sort=False).agg(columns).rename(columns={"depth": "depths"}).reset_index()


def key_figures(frame: pd.DataFrame) -> dict[str, float]:
    """The largest difference of any set-up, and how many there were."""
    largest = frame[[name for name in frame.columns if name.startswith("max_difference")]].to_numpy().max()
    return {"set_ups_compared": len(frame), "largest_difference": float(largest)}


def answers(frame: pd.DataFrame) -> list[dict]:
    """What would differ if a look-up, a swap-in or a swap-out came at the wrong moment, or a row fell to another key.

    RS-C-011, -024, -025, and with eviction RS-C-015. JD-A-016: states travel with their weights.
    """
    cached = frame[frame["tier"].str.startswith("slot_cache")]
    ahead = cached[cached["depth"] > 1]
    evicting = ahead[ahead["evict"] != "none"]
    note = "{} set-ups, {} steps, {:,} rows written back in all; every weight and state compared with `direct`"
    found = []
    for claim_id, part, moved in (
        ("RS-C-011", cached, "writebacks"),
        ("RS-C-024", ahead, "writebacks"),
        ("RS-C-025", ahead, "writebacks"),
        ("RS-C-015", evicting, "evicted"),
        ("JD-A-016", frame[frame["tier"] != "direct"], "writebacks"),
    ):
        # Where nothing was evicted or written back the comparison would say nothing.
        held = len(part) > 0 and bool(part["bit_equal"].all()) and bool((part[moved] > 0).all())
        said = note.format(len(part), frame["steps"].iloc[0], part["writebacks"].sum())
        found.append(answer(claim_id, held, "measured", said))
    return found
