"""Mechanisms of one's own: a flag's value may name something outside NestLab.

Two forms: `module:Name`, as Python would import it, or the name of an entry point that an installed package has in the
flag's group. Only `load` imports. It is called with the user's own flags; a name in a file that is read as data, such
as a run's manifest, is a text and stays one.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from nestlab.errors import UserError

FORM = "module:Name"
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PLAIN = re.compile(r"[\w.+-]+")  # what a flag can hold as one value


@dataclass(frozen=True)
class Kind:
    """What a flag accepts from outside.

    Attributes:
        what: in words.
        has: what the loaded thing, or what it makes, has to have: by name, as the messages show it.
    """

    what: str
    has: dict[str, str]


KINDS = {
    "cache_policy": Kind(
        "eviction policy, a class over (places, first_slot)",
        {
            "fill": "fill(rows, slots, misses, plan, swaps)",
            "foresee": "foresee(foresight, rows, plan)",
            "forget": "forget(rows)",
            "resize": "resize(places)",
            "nbytes": "nbytes",
        },
    ),
    "clustering": Kind("clustering rule", {"order": "order(samples, parts)"}),
    "transport": Kind(
        "transport",
        {
            "mesh": "mesh",
            "all_to_all": "all_to_all(channel, send, send_counts, counts)",
            "all_reduce": "all_reduce(channel, flat)",
            "all_gather": "all_gather(channel, values)",
            "fail": "fail(place, error)",
            "close": "close()",
        },
    ),
    "schedule": Kind("schedule builder, a function of a Shape", {"__call__": "__call__(shape)"}),
}


def group(flag: str) -> str:
    """The entry-point group of a flag."""
    return f"nestlab.{flag}"


def installed(flag: str) -> dict[str, EntryPoint]:
    """Entry points of a flag by name, ascending; those whose name a flag cannot hold are left out.

    Raises:
        UserError: two packages use one name for different things.
    """
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=group(flag)), key=lambda point: point.name):
        if not _PLAIN.fullmatch(point.name):
            continue
        if found.setdefault(point.name, point).value != point.value:
            raise UserError(
                f"{flag}={point.name}: two installed packages use that name, for {found[point.name].value} and for "
                f"{point.value}; uninstall one, or give {FORM}"
            )
    return found


def accepts(flag: str, value: object) -> bool:
    """Whether the flag takes the value from outside: it has the form of an import, or is installed. Imports nothing."""
    if flag not in KINDS or not isinstance(value, str):
        return False
    return bool(_NAME.fullmatch(value)) or value in installed(flag)


def load(flag: str, value: str) -> Any:
    """Imports what the value names.

    Raises:
        UserError: nothing is called so, or its module cannot be imported.
    """
    target = value if ":" in value else _installed(flag, value)
    module_name, _, path = target.partition(":")
    thing: Any = _module(flag, value, module_name)
    for name in path.split("."):
        if not hasattr(thing, name):
            raise UserError(f"{flag}={value}: module {module_name} has no '{path}'{_near(path, thing)}")
        thing = getattr(thing, name)
    return thing


def policy(value: str) -> type:
    """The class that `cache_policy` names."""
    found = load("cache_policy", value)
    if not isinstance(found, type):
        raise UserError(f"cache_policy={value}: it is a {type(found).__name__}; give a class")
    require("cache_policy", value, found)
    return found


def clustering(value: str) -> Any:
    """The rule that `clustering` names: an object with `order`, or what a class or function without arguments makes."""
    found = load("clustering", value)
    if isinstance(found, type) or not hasattr(found, "order"):
        found = _made("clustering", value, found)
    require("clustering", value, found)
    return found


def schedule(value: str) -> Callable:
    """The builder that `schedule` names: a function of a `Shape`, or what a class makes without arguments."""
    found = load("schedule", value)
    if isinstance(found, type):
        found = _made("schedule", value, found)
    require("schedule", value, found)
    return found


def transport(value: str) -> Callable | None:
    """What connects the transport that the flag names; None for one of the suite's own.

    A function, or a class with a method `connect`. It is called as `CollectiveTransport.connect` is,
    `connect(replicas=…, device=…, timeout_s=…)` on every rank, and gives a `nestlab.exchange.Transport`. What it gives
    is checked for that protocol before it is used.
    """
    if not accepts("transport", value):
        return None
    found = load("transport", value)
    connect = getattr(found, "connect", found)
    if not callable(connect):
        raise UserError(f"transport={value}: it is a {type(found).__name__}; give a function, or a class with connect")

    def connected(**options: Any) -> Any:
        made = connect(**options)
        require("transport", value, made)
        return made

    return connected


def require(flag: str, value: str, found: object) -> None:
    """Raises UserError where the thing lacks part of its kind's protocol."""
    kind = KINDS[flag]
    abstract = getattr(found, "__abstractmethods__", ()) if isinstance(found, type) else ()
    missing = [shown for name, shown in kind.has.items() if not hasattr(found, name) or name in abstract]
    missing += sorted(set(abstract) - kind.has.keys())
    if missing:
        raise UserError(f"{flag}={value}: no {kind.what}: it lacks {', '.join(missing)}; see docs/extend.md")


def _made(flag: str, value: str, maker: Any) -> Any:
    if not callable(maker):
        require(flag, value, maker)
    try:
        return maker()
    except TypeError as error:
        raise UserError(f"{flag}={value}: it cannot be made without arguments ({error})") from error


def _installed(flag: str, value: str) -> str:
    points = installed(flag)
    if value not in points:
        raise UserError(
            f"{flag}={value}: no installed package offers it in its entry points ({group(flag)}); "
            f"there are {', '.join(points) or 'none'}; install one, or give {FORM}"
        )
    return points[value].value.replace(" ", "").partition("[")[0]


def _module(flag: str, value: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise UserError(f"{flag}={value}: module {name} cannot be imported: {error}") from error
        raise UserError(
            f"{flag}={value}: no module '{error.name}'; install it, or put the folder that holds it on PYTHONPATH"
        ) from error
    except Exception as error:
        raise UserError(f"{flag}={value}: module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _near(path: str, thing: object) -> str:
    from difflib import get_close_matches

    near = get_close_matches(path, [name for name in vars(thing) if not name.startswith("_")], 1)
    return f"; did you mean '{near[0]}'?" if near else "; a name must be defined at its top level"
