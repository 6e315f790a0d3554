"""Reading the register: one YAML file a source, every claim checked."""

from __future__ import annotations

import functools
import importlib.resources
from typing import TYPE_CHECKING, Any

from nestlab.errors import UserError
from nestlab.experiments.claims.form import NONE, Claim, FormError, claim_from

if TYPE_CHECKING:
    import pandas

# In the order in which they are listed. A source's id prefix is its own, so that an id says where it is from.
SOURCES = {
    "nestpipe-paper": "NP-P",
    "nestpipe-article": "NP-A",
    "freescale-paper": "FS-P",
    "freescale-article": "FS-A",
    "jd-article": "JD-A",
    "recsdk-article": "RS-A",
    "recsdk-code": "RS-C",
    "ecorec-paper": "ER-P",
    "ecorec-article": "ER-A",
    "relatives": "RL-P",
}
SYSTEMS = ("NestPipe", "FreeScale", "JD", "RecSDK", "EcoRec", "relatives")

# What may confirm a claim besides one of the sources.
OTHER_SOURCES = ("artifact code", "torchrec", "vendor documentation", NONE)


@functools.cache
def claims() -> tuple[Claim, ...]:
    """Every claim, source by source.

    Raises:
        UserError: a file of the register cannot be read, or an entry is not as it must be; it names file, id and field.
    """
    folder = importlib.resources.files(__package__)
    found: list[Claim] = []
    for source in SOURCES:
        name = f"{source}.yaml"
        found += parse(name, (folder / name).read_text(encoding="utf-8"))
    return tuple(found)


def load(source: str | None = None) -> pandas.DataFrame:
    """The register as a table, one row a claim; `source` may be the beginning of a name, such as `nestpipe`."""
    import pandas

    return pandas.DataFrame([_row(claim) for claim in chosen(source)], columns=list(Claim.__dataclass_fields__))


def chosen(source: str | None = None) -> tuple[Claim, ...]:
    """The claims of one source, of all sources whose names begin so, or of all.

    Raises:
        UserError: no source is called so.
    """
    if source is None:
        return claims()
    names = [source] if source in SOURCES else [name for name in SOURCES if source and name.startswith(source)]
    if not names:
        raise UserError(f"no source '{source}': there is {', '.join(SOURCES)}")
    return tuple(claim for claim in claims() if claim.source in names)


def claim(claim_id: str) -> Claim:
    """One claim.

    Raises:
        UserError: the register has no such id.
    """
    try:
        return by_id()[claim_id]
    except KeyError:
        raise UserError(f"no claim '{claim_id}': nestlab claims lists the ids") from None


@functools.cache
def by_id() -> dict[str, Claim]:
    return {claim.id: claim for claim in claims()}


def parse(name: str, text: str) -> list[Claim]:
    """The claims in the text of one file, called `<source>.yaml`."""
    import yaml

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{name}: not YAML: {error}") from None
    source = name.removesuffix(".yaml")
    system = _checked_head(name, source, content)
    found: list[Claim] = []
    for position, entry in enumerate(content["claims"], 1):
        claim_id = entry.get("id") if isinstance(entry, dict) else None
        place = f"{name}: {claim_id or f'claim {position}'}"
        try:
            made = claim_from(source, system, entry)
        except FormError as error:
            raise UserError(f"{place}: {error}") from None
        _check_in_file(place, made, found)
        found.append(made)
    return found


def _checked_head(name: str, source: str, content: Any) -> str:
    if source not in SOURCES:
        raise UserError(f"{name}: no source is called so: there is {', '.join(SOURCES)}")
    if not isinstance(content, dict) or set(content) != {"system", "title", "claims"}:
        raise UserError(f"{name}: the fields of a file are system, title and claims")
    if content["system"] not in SYSTEMS:
        raise UserError(f"{name}: system: {content['system']!r} is not one of {', '.join(SYSTEMS)}")
    if not isinstance(content["claims"], list):
        raise UserError(f"{name}: claims: is not a list")
    return content["system"]


def _check_in_file(place: str, made: Claim, before: list[Claim]) -> None:
    prefix = SOURCES[made.source]
    if not made.id.startswith(f"{prefix}-"):
        raise UserError(f"{place}: id: ids of {made.source} begin with {prefix}-")
    if any(other.id == made.id for other in before):
        raise UserError(f"{place}: id: is there twice")
    if made.second_source not in (*SOURCES, *OTHER_SOURCES):
        raise UserError(f"{place}: second_source: '{made.second_source}' is neither a source nor '{NONE}'")


def _row(claim: Claim) -> dict[str, Any]:
    return {name: getattr(claim, name) for name in Claim.__dataclass_fields__}
