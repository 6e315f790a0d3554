"""Every ablation flag, named once.

A flag whose mechanism is not built yet is refused, never ignored; so is a combination that has no meaning. The
documentation's table and `nestlab techniques` are generated from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from nestlab.errors import NotAvailableYet, UserError


def flag(default: Any, system: str, built: tuple = (), help: str = "") -> Any:
    """A field that knows the system it comes from and which of its values are built (the default always is)."""
    return field(default=default, metadata={"system": system, "built": (default, *built), "help": help})


@dataclass(frozen=True)
class Techniques:
    """One training set-up. Every flag composes with every other unless the pair is refused with a reason.

    Raises:
        UserError: a value that the flag does not have.
        NotAvailableYet: a value whose mechanism is not built yet.
    """

    device_tier: Literal["direct", "dual_buffer", "slot_cache"] = flag(
        "direct", "NestPipe, JD, RecSDK", help="where rows live above the host tier"
    )
    cache_policy: Literal["clock", "lru", "lfu", "oracle"] = flag("clock", "RecSDK", help="victims of the slot cache")
    cache_slots: float = flag(0.0, "RecSDK, JD", help="slots of the cache: a number, or a share of the rows below 1")
    host_capacity: int = flag(0, "JD", help="bytes of the host tier; 0: unbounded")
    disk: str = flag("", "JD", help="path of the disk tier; empty: none")
    admit: Literal["none", "count", "sketch", "show_click"] = flag("none", "JD, RecSDK", help="when an id gets a row")
    evict: Literal["none", "age", "score"] = flag("none", "JD, RecSDK", help="when an id loses its row")
    pipeline_depth: int = flag(1, "NestPipe, JD, RecSDK", help="batches in flight, 1 to 5 (RecSDK: 6)")
    depth_schedule: Literal["constant", "ramp", "load"] = flag("constant", "NestPipe", help="depth over time")
    micro_batches: int = flag(1, "NestPipe", help="parts of a frozen window")
    clustering: Literal["none", "greedy", "kmeans"] = flag("none", "NestPipe", help="samples to micro-batches")
    staleness: int = flag(0, "UniEmb-like", help="updates a look-up may lag behind; 0: none")
    replica_groups: int = flag(1, "2D sparse parallelism", help="groups that each hold all tables")
    quantise: Literal["none", "fp16", "bf16", "int8"] = flag("none", "NestPipe", help="rows and gradients on the wire")
    dispatch: Literal["none", "snake", "karmarkar_karp", "lpt", "variable", "local_interleave"] = flag(
        "none", "FreeScale", help="samples to ranks"
    )
    prioritised: Literal["none", "collision", "hot_order", "hot_replicate"] = flag(
        "none", "FreeScale", help="which rows are exchanged first"
    )
    transport: Literal["collective", "hierarchical", "host_staged", "copy_engine"] = flag(
        "collective", "FreeScale", help="how bytes travel between ranks"
    )
    table_kind: Literal["row", "tt"] = flag("row", "EcoRec", help="rows, or tensor-train cores")
    tt_scheme: Literal["tt_rec", "el_rec", "ecorec"] = flag("ecorec", "EcoRec", help="order of contraction")
    slices: int = flag(1, "EcoRec", help="slices of the sorted indices")
    table_groups: int = flag(1, "EcoRec", help="groups of tables that are exchanged in turn")
    dense_precision: Literal["fp32", "tf32", "bf16"] = flag("fp32", "all", help="arithmetic of the dense part")
    compile_dense: bool = flag(False, "all", help="torch.compile on the dense part")

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            _check_type(each.name, value)
            if value not in each.metadata["built"]:
                raise NotAvailableYet(
                    f"techniques: {each.name}={_text(value)} is not available yet; "
                    f"built so far: {', '.join(map(_text, each.metadata['built']))}"
                )

    def exactness(self) -> str:
        """`exact`, or `inexact: ` and the reasons, flag by flag. What is inexact is declared here and nowhere else."""
        reasons = [reason for name, value, reason in INEXACT if getattr(self, name) == value]
        return "inexact: " + "; ".join(reasons) if reasons else "exact"

    @classmethod
    def parse(cls, text: str) -> Techniques:
        """From `name=value,name=value`, as the command line has it; an empty text is `plain`.

        Raises:
            UserError: an unknown flag, or a value that is not one of the flag's.
        """
        chosen = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = item.partition("=")
            if not equals:
                raise UserError(f"techniques: '{item}' is not name=value")
            chosen[name] = _value(name, value)
        return cls(**chosen)


# (flag, value, reason): what changes the mathematics. Each mechanism that does adds its line.
INEXACT: tuple[tuple[str, Any, str], ...] = ()


def table() -> list[dict[str, Any]]:
    """A row a flag: flag, values, default, built, system, exactness, excludes, help."""
    rows = []
    for each in fields(Techniques):
        inexact = [_text(value) for name, value, _ in INEXACT if name == each.name]
        rows.append(
            {
                "flag": each.name,
                "values": ", ".join(_choices(each.name)),
                "default": _text(each.default),
                "built": ", ".join(map(_text, each.metadata["built"])),
                "system": each.metadata["system"],
                "exactness": _exactness(each.metadata["built"], inexact),
                "excludes": "",
                "help": each.metadata["help"],
            }
        )
    return rows


_HINTS = get_type_hints(Techniques)


def _exactness(built: tuple, inexact: list[str]) -> str:
    """Of what is built; nothing is claimed of a mechanism that is not there."""
    if len(built) == 1:
        return ""
    return f"inexact: {', '.join(inexact)}" if inexact else "exact"


def _choices(name: str) -> tuple[str, ...]:
    hint = _HINTS[name]
    return get_args(hint) if get_origin(hint) is Literal else (hint.__name__,)


def _check_type(name: str, value: Any) -> None:
    hint = _HINTS[name]
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UserError(f"techniques: {name}={_text(value)}: it must be one of {', '.join(get_args(hint))}")
    elif type(value) is not hint and not (hint is float and type(value) is int):
        raise UserError(f"techniques: {name}={value!r}: it must be of type {hint.__name__}")


def _value(name: str, text: str) -> Any:
    if name not in _HINTS:
        from difflib import get_close_matches

        near = get_close_matches(name, _HINTS, 1)
        raise UserError(f"techniques: no flag '{name}'" + (f"; did you mean '{near[0]}'?" if near else ""))
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
PRESETS = {"plain": Techniques()}


def preset(name: str) -> Techniques:
    """The configuration of a system as its article gives it."""
    if name not in PRESETS:
        raise UserError(f"techniques: no preset '{name}' yet; there are: {', '.join(PRESETS)}")
    return PRESETS[name]
