"""Every ablation flag, named once.

A flag whose mechanism is not built yet is refused, never ignored; so is a combination that has no meaning. The
documentation's table and `nestlab techniques` are generated from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from nestlab import plugins
from nestlab.errors import NotAvailableYet, UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class _Any(tuple):
    """Every value that the flag's type and the checks of its mechanism allow."""

    def __contains__(self, value: object) -> bool:
        return True


def flag(default: Any, system: str, built: tuple | None = (), help: str = "") -> Any:
    """A field that knows the system it comes from and which of its values are built (the default always is).

    `built` None: every value.
    """
    values = _Any((default,)) if built is None else (default, *built)
    return field(default=default, metadata={"system": system, "built": values, "help": help})


@dataclass(frozen=True)
class Techniques:
    """One training set-up. Every flag composes with every other unless the pair is refused with a reason.

    Raises:
        UserError: a value that the flag does not have.
        NotAvailableYet: a value whose mechanism is not built yet.
    """

    device_tier: Literal["direct", "dual_buffer", "slot_cache"] = flag(
        "direct",
        "NestPipe, JD, RecSDK",
        ("dual_buffer", "slot_cache"),
        help="where rows live above the host tier",
    )
    cache_policy: Literal["clock", "lru", "lfu", "oracle"] = flag(
        "clock", "RecSDK", ("lru", "lfu", "oracle"), help="victims of the slot cache"
    )
    cache_slots: float = flag(
        0.0, "RecSDK, JD", None, help="slots of the cache a width of rows: a number, or a share of the rows below 1"
    )
    look_ahead: int = flag(200, "Bagpipe", None, help="batches of keys that the oracle policy sees ahead")
    host_capacity: int = flag(0, "JD", None, help="bytes of records in host memory; 0: unbounded")
    host_rows: int = flag(0, "JD", None, help="rows in host memory, in place of bytes; 0: see host_capacity")
    disk: str = flag("", "JD", None, help="folder of the disk tier; empty: none")
    index_buckets: int = flag(1, "JD", None, help="parts of the key index, each handled by one thread at a time")
    index_threads: int = flag(1, "JD", None, help="threads over the parts of the key index")
    admit: Literal["none", "count", "sketch", "show_click"] = flag(
        "none", "JD, RecSDK", ("count", "sketch", "show_click"), help="when an id gets a row"
    )
    admit_threshold: float = flag(2.0, "RecSDK", None, help="count or score from which an id gets a row")
    sketch_bytes: int = flag(16 << 20, "JD", None, help="memory of admission's sketch, a width of rows")
    default_value: float = flag(0.0, "RecSDK", None, help="every weight that a refused id reads")
    evict: Literal["none", "age", "score"] = flag(
        "none", "JD, RecSDK", ("age", "score"), help="when an id loses its row"
    )
    evict_after: int = flag(1000, "RecSDK", None, help="batches after which an unseen id loses its row (age)")
    evict_share: float = flag(0.01, "RecSDK", None, help="share of the rows that goes in a round (score)")
    evict_every: int = flag(100, "RecSDK", None, help="batches from one round of eviction to the next")
    show_weight: float = flag(1.0, "RecSDK", None, help="of a sample in the scores of admission and eviction")
    click_weight: float = flag(10.0, "RecSDK", None, help="of a click in them")
    score_decay: float = flag(0.98, "RecSDK", None, help="of both scores, at each round")
    pipeline_depth: int = flag(1, "NestPipe, JD, RecSDK", (2, 3, 4, 5, 6), help="batches in flight, 1 to 5 (RecSDK: 6)")
    depth_schedule: Literal["constant", "ramp", "load"] = flag(
        "constant", "NestPipe", ("ramp",), help="depth over time; ramp: from 1 up to pipeline_depth"
    )
    ramp_over: int = flag(100, "NestPipe", None, help="batches in which a ramp reaches its depth")
    schedule: Literal["auto"] = flag("auto", "NestPipe, JD, RecSDK", help="who builds the schedule; auto: by the flags")
    micro_batches: int = flag(1, "NestPipe", None, help="parts of a frozen window, 1 to 64")
    clustering: Literal["none", "greedy", "kmeans"] = flag(
        "none", "NestPipe", ("greedy", "kmeans"), help="which samples share a micro-batch"
    )
    staleness: int = flag(0, "UniEmb-like", None, help="updates a look-up lags behind; 0: none")
    replica_groups: int = flag(1, "2D sparse parallelism", None, help="groups of ranks that each hold all tables")
    replica_every: int = flag(
        1, "2D sparse parallelism", None, help="batches from one averaging of replicas to the next"
    )
    quantise: Literal["none", "fp16", "bf16", "int8"] = flag(
        "none", "NestPipe", ("fp16", "bf16", "int8"), help="rows on the wire, and gradients where nothing else is said"
    )
    quantise_backward: Literal["same", "none", "fp16", "bf16", "int8"] = flag(
        "same", "NestPipe", ("none", "fp16", "bf16", "int8"), help="row gradients on the wire; same: as quantise"
    )
    dispatch: Literal["none", "snake", "karmarkar_karp", "lpt", "variable", "local_interleave"] = flag(
        "none", "FreeScale", help="samples to ranks"
    )
    prioritised: Literal["none", "collision", "hot_order", "hot_replicate"] = flag(
        "none", "FreeScale", help="which rows are exchanged first"
    )
    transport: Literal["collective", "hierarchical", "host_staged", "copy_engine"] = flag(
        "collective", "FreeScale", help="how bytes travel between ranks"
    )
    table_kind: Literal["row", "tt"] = flag("row", "EcoRec", ("tt",), help="rows, or tensor-train cores")
    tt_scheme: Literal["tt_rec", "el_rec", "ecorec"] = flag(
        "ecorec", "EcoRec", ("tt_rec", "el_rec"), help="what is multiplied once: nothing, prefixes, prefixes and rows"
    )
    tt_rank: int = flag(32, "EcoRec", None, help="ranks between the three cores of a table")
    tt_from: int = flag(10_000, "EcoRec", None, help="known ids from which a table is a tensor train")
    tt_cores: Literal["table_wise", "replicated"] = flag(
        "table_wise", "EcoRec", ("replicated",), help="cores on one rank, or on all (EL-Rec) with summed gradients"
    )
    tt_rebalance: int = flag(
        0,
        "EcoRec",
        None,
        help="batches from one look at measured loads, after which tables may move, to the next; 0: none",
    )
    slices: int = flag(1, "EcoRec", None, help="slices of the sorted rows, one after another; 0: by a memory budget")
    table_groups: int = flag(1, "EcoRec", None, help="groups of tables, computed and exchanged in turn")
    group_by: Literal["tables", "samples"] = flag(
        "tables", "EcoRec", ("samples",), help="samples: all tables for a slice of the batch in turn (batch-wise)"
    )
    group_order: Literal["cost", "number"] = flag(
        "cost", "EcoRec", ("number",), help="tables of a rank in their groups: the cheapest first, or as listed"
    )
    group_slope: float = flag(0.0, "EcoRec", None, help="0: groups of equal numbers of tables; to 1: ever steeper")
    dense_precision: Literal["fp32", "tf32", "bf16"] = flag(
        "fp32", "all", ("tf32", "bf16"), help="arithmetic of the dense part; fp32: as torch is set; tf32: CUDA alone"
    )
    compile_dense: bool = flag(False, "all", (True,), help="torch.compile on the dense part")

    def __post_init__(self) -> None:
        for each in fields(self):
            _check_type(each.name, getattr(self, each.name))
        for name, reason in self._refusals():
            raise UserError(f"techniques: {name}={_text(getattr(self, name))}: {reason}")
        for each in fields(self):
            value, built = getattr(self, each.name), each.metadata["built"]
            if value not in built and not plugins.accepts(each.name, value):
                raise NotAvailableYet(
                    f"techniques: {each.name}={_text(value)} is not available yet; "
                    f"built so far: {', '.join(map(_text, built))}"
                )

    def _refusals(self) -> Iterator[tuple[str, str]]:
        """Flags that have no effect, which is refused and not ignored, and combinations without a meaning."""
        for each in fields(self):
            owners = PART_OF.get(each.name)
            given = owners and getattr(self, each.name) != each.default
            if given and not any(getattr(self, owner) in values for owner, values in owners.items()):
                yield each.name, _only_with(owners)
        yield from ((name, reason) for name, reason, refused in REFUSED if refused(self))

    def exactness(self) -> str:
        """`exact`, or `inexact: ` and the reasons, flag by flag. What is inexact is declared here and nowhere else.

        `exact` alone: the bits of the plain loop on as many ranks. With micro-batches sums stand in another order: the
        bits of the same micro-batches one after another, and the plain loop up to rounding. In bf16 the gradients of
        weights are rounded once a micro-batch: up to 2⁻⁸ of the sum of their sizes. A dense part that draws random
        numbers (dropout) or looks across samples (batch normalisation) gives others for micro-batches, and is not exact
        there.

        A policy, clustering rule or schedule from outside is exact: each of its answers is checked before it is used.
        Of a transport from outside nobody knows before its tests: `not checked: `.
        """
        reasons = [reason for name, value, reason in INEXACT if getattr(self, name) == value]
        unknown = [f"transport {self.transport} is not the suite's own"] if self._brought("transport") else []
        word = "inexact: " if reasons else "not checked: " if unknown else ""
        if word:
            return word + "; ".join(reasons + unknown)
        if self.micro_batches == 1:
            return "exact" + self._beside()
        rounded = "" if self.dense_precision != "bf16" else ", each micro-batch's gradients rounded to bf16"
        return REORDERED + rounded + self._beside()

    def unlike_plain(self) -> str:
        """The flags under which something else is learnt, or in another arithmetic, as `parse` takes them."""
        inexact = [name for name, value, _ in INEXACT if getattr(self, name) == value]
        default = Techniques()
        dense = [name for name in ("dense_precision", "compile_dense") if getattr(self, name) != getattr(default, name)]
        return ",".join(f"{name}={_text(getattr(self, name))}" for name in dict.fromkeys(inexact + dense))

    def _beside(self) -> str:
        """What else the plain loop has that exactness is claimed beside: the same arithmetic of the dense part."""
        precision = [] if self.dense_precision == "fp32" else [f"in {self.dense_precision}"]
        told = precision + ["compiled"] * self.compile_dense
        return f", beside the plain loop with a dense part {' and '.join(told)}" if told else ""

    def _brought(self, name: str) -> bool:
        """Whether the flag's value comes from outside."""
        return getattr(self, name) not in get_args(_HINTS[name])

    @classmethod
    def parse(cls, text: str) -> Techniques:
        """From `name=value,name=value`, as the command line has it; an empty text is `plain`.

        The first item may be a preset (`recsdk,cache_slots=0.2`): the others then change it.

        Raises:
            UserError: an unknown flag, or a value that is not one of the flag's.
        """
        first, _, rest = text.partition(",")
        if first.strip() in PRESETS:
            return replace(preset(first.strip()), **cls._chosen(rest))
        return cls(**cls._chosen(text))

    @staticmethod
    def _chosen(text: str) -> dict[str, Any]:
        chosen = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = item.partition("=")
            if not equals:
                raise UserError(
                    f"techniques: '{item}' is neither name=value nor, in first place, a preset ({', '.join(PRESETS)}); "
                    "`nestlab techniques` lists the flags"
                )
            chosen[name] = _value(name, value)
        return chosen


_CACHED, _COUNTED = {"device_tier": ("slot_cache",)}, {"admit": ("count", "sketch", "show_click")}
_TENSOR_TRAIN = {"table_kind": ("tt",)}
_SCORED = {"admit": ("show_click",), "evict": ("score",)}

# Flags that say how another one does its work: they mean something only where one of those has one of these values.
PART_OF: dict[str, dict[str, tuple]] = {
    "cache_policy": _CACHED,
    "cache_slots": _CACHED,
    "look_ahead": {"cache_policy": ("oracle",)},
    "admit_threshold": _COUNTED,
    "default_value": _COUNTED,
    "sketch_bytes": {"admit": ("sketch",)},
    "evict_after": {"evict": ("age",)},
    "evict_share": {"evict": ("score",)},
    "evict_every": {"evict": ("age", "score"), "admit": ("show_click",)},
    "ramp_over": {"depth_schedule": ("ramp",)},
    "show_weight": _SCORED,
    "click_weight": _SCORED,
    "score_decay": _SCORED,
    **dict.fromkeys(
        (
            "tt_scheme",
            "tt_rank",
            "tt_from",
            "tt_cores",
            "tt_rebalance",
            "slices",
            "table_groups",
            "group_by",
            "group_order",
            "group_slope",
        ),
        _TENSOR_TRAIN,
    ),
}

# (flag, reason, whether it applies): combinations that have no meaning.
REFUSED: tuple[tuple[str, str, Callable[[Techniques], bool]], ...] = (
    (
        "cache_slots",
        "a slot_cache needs slots; give cache_slots=N, or a share below 1",
        lambda t: t.device_tier == "slot_cache" and not t.cache_slots > 0,
    ),
    (
        "disk",
        "a disk tier needs host_capacity, the bytes of records to keep in host memory, or host_rows",
        lambda t: bool(t.disk) and not t.host_capacity and not t.host_rows,
    ),
    ("pipeline_depth", "it must be at least 1", lambda t: t.pipeline_depth < 1),
    (
        "depth_schedule",
        "it needs pipeline_depth above 1",
        lambda t: t.depth_schedule != "constant" and t.pipeline_depth == 1,
    ),
    ("ramp_over", "it must be at least 1", lambda t: t.ramp_over < 1),
    (
        "schedule",
        "a schedule from outside has one depth; leave depth_schedule out",
        lambda t: t.schedule != "auto" and t.depth_schedule != "constant",
    ),
    ("micro_batches", "it must be 1 to 64", lambda t: not 1 <= t.micro_batches <= 64),
    ("clustering", "only with micro_batches above 1", lambda t: t.clustering != "none" and t.micro_batches == 1),
    ("tt_rank", "it must be at least 1", lambda t: t.tt_rank < 1),
    ("tt_from", "it must be 0 or more", lambda t: t.tt_from < 0),
    ("tt_rebalance", "it must be 0 or more", lambda t: t.tt_rebalance < 0),
    (
        "tt_rebalance",
        "replicated cores are everywhere; leave tt_rebalance out",
        lambda t: t.tt_rebalance > 0 and t.tt_cores == "replicated",
    ),
    (
        "tt_rebalance",
        "the oracle policy knows keys ahead by who owned their tables then; leave one out",
        lambda t: t.tt_rebalance > 0 and t.device_tier == "slot_cache" and t.cache_policy == "oracle",
    ),
    ("slices", "it must be 0 (by a memory budget) or more", lambda t: t.slices < 0),
    (
        "slices",
        "only ecorec sorts the rows; give tt_scheme=ecorec",
        lambda t: t.slices != 1 and t.tt_scheme != "ecorec",
    ),
    ("table_groups", "it must be 1 to 64", lambda t: not 1 <= t.table_groups <= 64),
    ("group_slope", "it must be 0 to 1", lambda t: not 0 <= t.group_slope <= 1),
    ("group_by", "only with table_groups above 1", lambda t: t.group_by == "samples" and t.table_groups == 1),
    ("group_order", "only with group_by=tables", lambda t: t.group_order != "cost" and t.group_by == "samples"),
    ("group_slope", "only with group_by=tables", lambda t: t.group_slope > 0 and t.group_by == "samples"),
    ("group_order", "only with table_groups above 1", lambda t: t.group_order != "cost" and t.table_groups == 1),
    ("group_slope", "only with table_groups above 1", lambda t: t.group_slope > 0 and t.table_groups == 1),
    (
        "table_groups",
        "replicated cores are not exchanged in groups; leave table_groups out",
        lambda t: t.table_groups > 1 and t.tt_cores == "replicated",
    ),
    (
        "dense_precision",
        "torch's switch to tf32 is the whole process's: cores would be multiplied in it too; leave one of the two out",
        lambda t: t.dense_precision == "tf32" and t.table_kind == "tt",
    ),
    (
        "staleness",
        "cores are read as the update before left them; leave staleness out, or table_kind=tt",
        lambda t: t.staleness > 0 and t.table_kind == "tt",
    ),
    (
        "replica_groups",
        "tensor-train tables have no replica groups; leave replica_groups out, or table_kind=tt",
        lambda t: t.replica_groups > 1 and t.table_kind == "tt",
    ),
    ("staleness", "it must be 0 or more", lambda t: t.staleness < 0),
    (
        "staleness",
        "staleness needs device_tier=direct, host rows; leave the tier out, or staleness",
        lambda t: t.staleness > 0 and t.device_tier != "direct",
    ),
    (
        "staleness",
        "it needs more batches in flight; give pipeline_depth above it",
        lambda t: t.staleness > 0 and t.pipeline_depth <= t.staleness,
    ),
    ("replica_groups", "it must be at least 1", lambda t: t.replica_groups < 1),
    ("replica_every", "it must be at least 1", lambda t: t.replica_every < 1),
    ("replica_every", "only with replica_groups above 1", lambda t: t.replica_every > 1 and t.replica_groups == 1),
    (
        "replica_groups",
        "a replica would admit and evict by its own batches alone; leave admit and evict out",
        lambda t: t.replica_groups > 1 and (t.admit != "none" or t.evict != "none"),
    ),
    (
        "replica_groups",
        "replicas are averaged between two updates; leave staleness out",
        lambda t: t.replica_groups > 1 and t.staleness > 0,
    ),
    ("host_rows", "host_capacity says it already; give one of the two", lambda t: t.host_rows and t.host_capacity),
    (
        "index_threads",
        "one part of the index is one thread's; give index_buckets=N too",
        lambda t: t.index_threads > 1 and t.index_buckets == 1,
    ),
)


class _Above:
    """Equal to every number above a bound."""

    def __init__(self, bound: int) -> None:
        self.bound = bound

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and other > self.bound

    def __str__(self) -> str:
        return f"above {self.bound}"


_ROUNDED = "rows are rounded on the wire"
_ROUNDED_BACK = "row gradients are rounded on the wire"

# (flag, value, reason): what changes the mathematics. Each mechanism that does adds its line.
INEXACT: tuple[tuple[str, Any, str], ...] = (
    ("table_kind", "tt", "cores of given ranks stand for the weights of a table, whose rows share them"),
    ("staleness", _Above(0), "rows are read before the updates of the batches just ahead"),
    ("replica_groups", _Above(1), "each replica is updated by its own group's gradients and averaged afterwards"),
    *(("quantise", value, _ROUNDED) for value in ("fp16", "bf16", "int8")),
    *(("quantise_backward", value, _ROUNDED_BACK) for value in ("fp16", "bf16", "int8")),
    ("admit", "count", "an id below the threshold reads a constant row and learns nothing"),
    ("admit", "sketch", "an id below the threshold reads a constant row and learns nothing; counts are estimates"),
    ("admit", "show_click", "an id below the threshold reads a constant row and learns nothing"),
    ("evict", "age", "an id that comes back after its eviction starts anew"),
    ("evict", "score", "an id that comes back after its eviction starts anew"),
)


REORDERED = "exact up to the order of sums"  # of micro-batches
SAME_DENSE = "exact, beside the plain loop with the same dense part"
_EXACTNESS = {"micro_batches": REORDERED, "dense_precision": SAME_DENSE, "compile_dense": SAME_DENSE}


def table() -> list[dict[str, Any]]:
    """A row a flag: flag, values, default, built, system, exactness, excludes, help, and what is installed for it."""
    rows = []
    for each in fields(Techniques):
        inexact = [_text(value) for name, value, _ in INEXACT if name == each.name]
        rows.append(
            {
                "flag": each.name,
                "values": ", ".join(_choices(each.name)),
                "default": _text(each.default),
                "built": _built(each.metadata["built"]),
                "system": each.metadata["system"],
                "exactness": _EXACTNESS.get(each.name) or _exactness(each.metadata["built"], inexact),
                "excludes": _excludes(each.name),
                "help": each.metadata["help"],
                "installed": _installed(each.name),
            }
        )
    return rows


def values(name: str) -> tuple[str, ...]:
    """Every value of a flag of words that can be chosen here: those that are built, then what is installed."""
    built = next(each.metadata["built"] for each in fields(Techniques) if each.name == name)
    return (*built, *(added for added in _installed(name) if added not in built))


_HINTS = get_type_hints(Techniques)


def _only_with(owners: dict[str, tuple]) -> str:
    return "only with " + " or ".join(f"{owner}={'|'.join(values)}" for owner, values in owners.items())


def _excludes(name: str) -> str:
    reasons = [_only_with(PART_OF[name])] if name in PART_OF else []
    return "; ".join(reasons + [reason for flag_name, reason, _ in REFUSED if flag_name == name])


def _built(values: tuple) -> str:
    return "any" if isinstance(values, _Any) else ", ".join(map(_text, values))


def _exactness(built: tuple, inexact: list[str]) -> str:
    """Of what is built; nothing is claimed of a mechanism that is not there."""
    if len(built) == 1 and not isinstance(built, _Any):
        return ""
    return f"inexact: {', '.join(inexact)}" if inexact else "exact"


def _installed(name: str) -> dict[str, str]:
    """What packages offer for a flag: name → `module:Name (package version)`."""
    if name not in plugins.KINDS:
        return {}
    own = get_args(_HINTS[name])
    points = plugins.installed(name)
    return {added: f"{point.value} ({_package(point)})" for added, point in points.items() if added not in own}


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "no package"


def _choices(name: str) -> tuple[str, ...]:
    hint = _HINTS[name]
    if get_origin(hint) is not Literal:
        return (hint.__name__,)
    return (*get_args(hint), plugins.FORM) if name in plugins.KINDS else get_args(hint)


def _check_type(name: str, value: Any) -> None:
    hint = _HINTS[name]
    if get_origin(hint) is Literal:
        if value not in get_args(hint) and not plugins.accepts(name, value):
            raise UserError(f"techniques: {name}={_text(value)}: it must be one of {', '.join(_choices(name))}")
    elif type(value) is not hint and not (hint is float and type(value) is int):
        raise UserError(f"techniques: {name}={value!r}: it must be of type {hint.__name__}")


def _value(name: str, text: str) -> Any:
    if name not in _HINTS:
        from difflib import get_close_matches

        near = get_close_matches(name, _HINTS, 1)
        raise UserError(
            f"techniques: no flag '{name}'"
            + (f"; did you mean '{near[0]}'?" if near else "; nestlab techniques lists them")
        )
    hint = _HINTS[name]
    if hint is bool:
        if text not in ("on", "off", "true", "false"):
            raise UserError(f"techniques: {name}={text}: it must be on or off")
        return text in ("on", "true")
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            raise UserError(f"techniques: {name}={text}: it must be a number of type {hint.__name__}") from None
    return text


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


# The articles' own configurations. Each issue that builds a mechanism adds the preset it completes.
# Where an article leaves a size open it is ours: a tenth of the rows in slots. Both sources name admission and eviction
# without a figure, or have them off by default: off.
PRESETS = {
    "plain": Techniques(),
    "jd": Techniques(
        device_tier="slot_cache",
        cache_policy="lru",
        cache_slots=0.1,
        pipeline_depth=5,
        index_buckets=256,
        index_threads=2,
    ),
    # The paper names no way of clustering, its article K-means, which saves less than `greedy` does (docs/log.md).
    # Eight micro-batches: what the paper's share of exposed communication comes to.
    "nestpipe": Techniques(device_tier="dual_buffer", pipeline_depth=5, micro_batches=8, clustering="greedy"),
    # Its code's own figures: rank 32, four slices of the sorted rows, four groups of tables.
    "ecorec": Techniques(table_kind="tt", slices=4, table_groups=4),
    "recsdk": Techniques(device_tier="slot_cache", cache_policy="clock", cache_slots=0.1, pipeline_depth=6),
}


def text_of(flags: Techniques) -> str:
    """As `parse` takes it: the flags that differ from their defaults."""
    changed = [each for each in fields(flags) if getattr(flags, each.name) != each.default]
    return ",".join(f"{each.name}={_text(getattr(flags, each.name))}" for each in changed)


def preset(name: str) -> Techniques:
    """The configuration of a system as its article gives it."""
    if name not in PRESETS:
        raise UserError(f"techniques: no preset '{name}' yet; there are: {', '.join(PRESETS)}")
    return PRESETS[name]
