"""What the ranks do, once: every training of the study, so that they are started once and not for every table."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from nestlab.embedding import RowWiseAdagrad
from nestlab.exchange import Channel
from nestlab.experiments.nestpipe import cases, facts, lengths, restart, theirs
from nestlab.experiments.nestpipe.cases import Case
from nestlab.experiments.nestpipe.comparing import Whole, distance, replicas_agree, whole
from nestlab.experiments.nestpipe.links import EMULATED, Links, calibrated
from nestlab.experiments.nestpipe.model import LR
from nestlab.experiments.nestpipe.settings import Settings
from nestlab.experiments.nestpipe.stream import come_back, open_stream
from nestlab.experiments.nestpipe.training import Bench, Figures, How, figures, train
from nestlab.experiments.ranks import joined, of_all
from nestlab.tracing import Trace

_DRIFT_BATCHES = 10  # of the trainings that tell rounding from drift


@dataclass
class Measured:
    """By part the rows of its table and the seconds that it took, and the traces that are drawn, by case."""

    rows: dict[str, list[Figures]] = field(default_factory=dict)
    traces: dict[str, Trace] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def measure(settings: Settings, folder: Path) -> Measured:
    """What a rank does; rank 0's result counts. `folder` holds the killed training, see `restart`."""
    groups = cases.groups_of(settings.world_size) if settings.world_size > 1 else 1
    with joined(settings.device, "notebook 10_nestpipe") as transport:
        bench = Bench.on(settings, open_stream(settings, transport.mesh.rank), transport, groups)
        try:
            return _measure(bench, folder)
        finally:
            bench.close()


def _measure(bench: Bench, folder: Path) -> Measured:
    found = Measured()
    links = _calibrate(bench)
    _say(bench, f"links: {links.network or 0:.3g} gbit/s between ranks, {links.host:.3g} between host and device")
    parts: dict[str, Callable[[], Iterable[Figures]]] = {
        "ablation": lambda: _ablation(bench, links, found.traces),
        "keys": lambda: [_keys(bench)],
        "exactness": lambda: _exactness(bench),
        "replicas": lambda: _replicas(bench),
        "micro_batches": lambda: _micro_batches(bench, links),
        "robustness": lambda: _robustness(bench, links),
        "lengths": lambda: _lengths(bench, links),
        "curriculum": lambda: _curriculum(bench, links),
        "restart": lambda: restart.go_on(bench.settings, bench.transport, folder),
    }
    for name, part in parts.items():
        started = time.perf_counter()
        found.rows[name] = list(part())
        found.seconds[name] = time.perf_counter() - started
    return found


def _say(bench: Bench, line: str) -> None:
    if bench.transport.mesh.rank == 0:
        print(line, flush=True)


def _calibrate(bench: Bench) -> Links:
    """The same links on every rank, from a plain training without any; it also fills allocators and caches."""
    trained = train(bench, Case(cases.NONE, cases.BASE))
    mine = [0.0, 0.0, 0.0]
    if trained.trace is not None:
        links = calibrated(trained.trace, bench.settings.exchange, bench.settings.retrieval)
        mine = [links.network or 0.0, links.host, links.compute_ms]
    network, host, compute_ms = bench.transport.all_gather(Channel.KEYS, torch.tensor(mine, dtype=torch.float64))[
        0
    ].tolist()
    return Links(network or None, host, compute_ms)


def _ablation(bench: Bench, links: Links, traces: dict[str, Trace]) -> Iterator[Figures]:
    """Every case without links and with them, in turns, `rounds` times; then torchrec's pipelines, on loopback."""
    s = bench.settings
    reference = whole(bench, train(bench, cases.REFERENCE))
    serial: dict[tuple[int, str], Whole] = {}
    for number in range(s.rounds):
        for how in (How(), How(links)):
            for case in cases.ablation(s.micro_batches, s.world_size):
                _say(bench, f"ablation, round {number + 1} of {s.rounds}: {case.name}, {how.links.setting}")
                row, trace = _row(bench, case, how, reference, serial)
                if trace is not None and how.links.setting == EMULATED:
                    traces.setdefault(case.name, trace)
                yield row | {"round": number}
        if not theirs.missing(s):
            for pipeline in theirs.PIPELINES:
                row = theirs.tried(bench, pipeline, reference)
                yield from [] if row is None else [row | {"round": number}]


def _row(bench: Bench, case: Case, how: How, reference: Whole, serial: dict) -> tuple[Figures, Trace | None]:
    trained = train(bench, case, how)
    row, ended = figures(bench, case, trained), whole(bench, trained)
    far = distance(ended, reference)
    row |= {"setting": how.links.setting, "how": how.links.how, "difference": far.largest, "bit_equal": far.equal}
    row |= {"calibrated_compute_ms": how.links.compute_ms}
    row |= {"exactness": case.flags.exactness(), "equal_in_order": _equal_in_order(bench, case, ended, serial)}
    row |= _facts(bench, case, trained.trace)
    return row, trained.trace


def _equal_in_order(bench: Bench, case: Case, ended: Whole, serial: dict) -> bool | None:
    """Whether the same micro-batches one after the other give the same bits; None where that is not claimed."""
    if not case.exact:
        return None
    key = case.flags.micro_batches, case.flags.clustering
    if key not in serial:
        serial[key] = whole(bench, train(bench, case.serial()))
    return distance(ended, serial[key]).equal


def _facts(bench: Bench, case: Case, trace: Trace | None) -> Figures:
    if trace is None:
        return {}
    return {
        "in_flight": facts.in_flight(trace),
        "five_stages": facts.stages_in_order(trace),
        "stage_five": facts.stage_five_in_order(trace),
        "exchanges_a_part": facts.exchanges_a_part(trace, case.flags.micro_batches),
        "overlapped_share": facts.overlapped_share(trace),
        "windows_that_overlap": facts.windows_that_overlap(trace),
        "keys_come_back": come_back(bench.stream.batches) / len(bench.stream.batches),
    }


def _keys(bench: Bench) -> Figures:
    """What travels on the channel of key routing, a key that this rank asks for; its share of itself included."""
    case = Case(cases.NESTPIPE, cases.fwp(bench.settings.micro_batches, "greedy", cases.DBP))
    trained = train(bench, case, How(counts=True))
    asked, group = trained.pipeline.wire.unique, trained.pipeline.model.embedding.groups[0]
    sent = {f"{channel.value}_bytes": float(trained.sent[channel.value]) for channel in Channel}
    mean = {name: float(each.mean()) / trained.batches for name, each in of_all(bench.transport, sent).items()}
    return mean | {"bytes_a_key": trained.sent[Channel.KEYS.value] / max(1, asked), "bytes_a_row": 4.0 * group.dim}


def _exactness(bench: Bench) -> Iterator[Figures]:
    """In float64: what is left of a difference there is no rounding of sums."""
    how = How(dtype=torch.float64, batches=min(_DRIFT_BATCHES, bench.settings.batches // 2))
    reference = whole(bench, train(bench, cases.REFERENCE, how))
    for case in cases.ablation(bench.settings.micro_batches, bench.settings.world_size):
        _say(bench, f"exactness in float64: {case.name}")
        far = distance(whole(bench, train(bench, case, how)), reference)
        yield {"case": case.name, "difference_float64": far.largest, "mean_difference_float64": far.mean}


def _replicas(bench: Bench) -> Iterator[Figures]:
    """2D sparse parallelism with row-wise Adagrad, its sum of squares as it is and divided by the groups."""
    if bench.grouped is None:
        return
    groups = bench.grouped.mesh.replicas
    flat = train(bench, cases.REFERENCE, How(rows=RowWiseAdagrad(lr=LR)))
    reference, flat_bytes = whole(bench, flat), _record_bytes(flat)
    two_d = Case("2D", replace(cases.BASE, replica_groups=groups))
    for scale in (1.0, float(groups)):
        trained = train(bench, two_d, How(rows=RowWiseAdagrad(lr=LR, state_scale=scale)))
        same, far = replicas_agree(bench, trained), distance(whole(bench, trained), reference)
        yield {
            "groups": groups,
            "state_scale": scale,
            "difference": far.largest,
            "mean_difference": far.mean,
            "weights_agree": same["weight"],
            "states_agree": same["state"],
            "more_bytes": _record_bytes(trained) - flat_bytes,
            "formula_bytes": _all_bytes(trained) * (groups - 1) / bench.settings.world_size,
        }


def _record_bytes(trained) -> float:
    """Of the rows that this rank holds."""
    store = trained.pipeline.model.embedding
    return float(sum(len(host.index) for host in store.hosts) * store.groups[0].record_width * store.dtype.itemsize)


def _all_bytes(trained) -> float:
    """Of one whole copy of the tables, over the ranks of a replica group."""
    return _record_bytes(trained) * trained.own_trace.meta["shards"]


def _micro_batches(bench: Bench, links: Links) -> Iterator[Figures]:
    """N from one on, samples as they come and clustered, between batches pipelined too: look-up is no matter."""
    for parts in bench.settings.sweep:
        for clustering in ("none", "greedy") if parts > 1 else ("none",):
            _say(bench, f"micro-batches: N = {parts}, clustering {clustering}")
            case = Case(f"N = {parts}, {clustering}", cases.fwp(parts, clustering, cases.DBP))
            row = figures(bench, case, train(bench, case, How(links)))
            size = bench.settings.batch_size // parts
            yield {**row, "clustering": clustering, "samples": size, "how": links.how}


def _robustness(bench: Bench, links: Links) -> Iterator[Figures]:
    """The plain loop against NestPipe as one size of the model changes and the links stay, in turns, `rounds` times."""
    s = bench.settings
    sizes = [("dim", dim, {"dim": dim}) for dim in s.dims] + [("layers", n, {"layers": n}) for n in s.depths]
    for number, (varied, value, size), case in itertools.product(range(s.rounds), sizes, _both(s)):
        _say(bench, f"robustness, round {number + 1} of {s.rounds}: {varied} {value}, {case.name}")
        row = figures(bench, case, train(bench, case, How(links, **size)))
        yield {"varied": varied, "value": value, "round": number, **row, "how": links.how}


def _both(settings: Settings) -> list[Case]:
    """The plain loop, and NestPipe."""
    full = cases.fwp(settings.micro_batches, "greedy", cases.DBP)
    return [Case(cases.NONE, cases.BASE), Case(cases.NESTPIPE, full)]


def _lengths(bench: Bench, links: Links) -> Iterator[Figures]:
    """The same two as windows get longer, by sequence models; as many events a batch at every length."""
    s, rank = bench.settings, bench.transport.mesh.rank
    streams = {
        (model, length): open_stream(s.of_length(model, length), rank)
        for model in lengths.VARIED
        for length in s.lengths
    }
    for number, ((model, length), stream), case in itertools.product(range(s.rounds), streams.items(), _both(s)):
        _say(bench, f"lengths, round {number + 1} of {s.rounds}: {model} {length}, {case.name}")
        other = replace(bench, settings=s.of_length(model, length), stream=stream)
        row = figures(other, case, train(other, case, How(links)))
        about = {"data": stream.title, "events": stream.events}
        yield {"varied": model, "value": length, "round": number, **about, **row, "how": links.how}


def _curriculum(bench: Bench, links: Links) -> Iterator[Figures]:
    """A pipeline that deepens over the first half of the batches against one that is deep from the start."""
    constant = cases.fwp(bench.settings.micro_batches, "greedy", cases.DBP)
    rising = replace(constant, depth_schedule="ramp", ramp_over=max(1, bench.settings.batches // 2))
    for number in range(bench.settings.rounds):
        for name, flags in (("constant", constant), ("ramp", rising)):
            trained = train(bench, Case(name, flags), How(links))
            yield {"depth": name, "round": number, "seconds": trained.seconds, "how": links.how}
