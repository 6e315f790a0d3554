"""No published figure stands outside the register: what shows one takes it from there.

A figure is distinctive if it has a decimal point and at least three significant digits. With four it is looked for
everywhere; with three only in notebooks, README and documentation, and, where numbers of our own abound (code, design,
log), only beside its unit. If a number is plainly ours and happens to equal a published one, OURS says why.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nestlab.experiments import claims as register

NUMBER = re.compile(r"(?<![\w.])(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+)(?!\.?\d)")
UNITS = {"×": r"\s?(×|x\b|times|-fold)", "%": r"\s?(%|per ?cent)", "ms": r"\s?(ms\b|milliseconds)", "GB": r"\s?Gi?B"}
PROSE, OWN_NUMBERS = "prose", "own numbers"

# (file, figure): why it is ours. Keep it short: to quote a source, take the figure from nestlab.experiments.claims.
OURS: dict[tuple[str, str], str] = {}


def figures() -> dict[str, set[str]]:
    """Distinctive published numbers as shortest text, each with the unit patterns it is published with."""
    found: dict[str, set[str]] = {}
    for claim in register.claims():
        values = claim.value if isinstance(claim.value, tuple) else (claim.value,)
        pattern = next((rest for unit, rest in UNITS.items() if (claim.unit or "").startswith(unit)), None)
        for value in values:
            if value is None:
                continue
            found.setdefault(shortest(value), set()).update({pattern} - {None})
            if pattern == UNITS["%"]:  # a share may be written as such
                found.setdefault(shortest(value / 100), set())
    return {text: units for text, units in found.items() if "." in text and digits(text) >= 3}


def shortest(value: float) -> str:
    return f"{abs(value):.10f}".rstrip("0").rstrip(".")


def digits(text: str) -> int:
    return len(text.replace(".", "").lstrip("0"))


def published_in(text: str, kind: str) -> list[str]:
    """The published figures that stand in a text, as shortest text."""
    known = figures()
    found = []
    for match in NUMBER.finditer(text):
        figure = shortest(float(match.group().replace(",", "")))
        if figure not in known:
            continue
        beside_unit = any(re.match(pattern, text[match.end() :]) for pattern in known[figure])
        if digits(figure) >= 4 or kind == PROSE or beside_unit:
            found.append(figure)
    return found


def texts(project: Path) -> list[tuple[str, str, str]]:
    """(name, kind, text) of all that is searched; of notebooks the sources, since outputs hold what was obtained."""
    found = []
    for path in sorted(project.glob("notebooks/*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        found.append((path, PROSE, "\n".join("".join(cell["source"]) for cell in cells)))
    for path in [*sorted(project.glob("README*.md")), *sorted(project.glob("docs/**/*.md"))]:
        kind = OWN_NUMBERS if path.name in ("design.md", "log.md") else PROSE
        found.append((path, kind, path.read_text(encoding="utf-8")))
    register_itself = project / "nestlab" / "experiments" / "claims"
    for path in sorted(project.glob("nestlab/**/*.py")):
        if register_itself not in path.parents:
            found.append((path, OWN_NUMBERS, path.read_text(encoding="utf-8")))
    return [(path.relative_to(project).as_posix(), kind, text) for path, kind, text in found]


def test_no_published_figure_stands_outside_the_register(project):
    searched = texts(project)
    assert {"README.md", "docs/design.md", "nestlab/techniques.py"} <= {name for name, _, _ in searched}
    strays = {(name, figure) for name, kind, text in searched for figure in published_in(text, kind)}
    assert strays - OURS.keys() == set(), "take it from nestlab.experiments.claims, or say in OURS why it is your own"
    assert OURS.keys() <= strays, "no longer there: take it out of OURS"


def test_headline_figures_are_distinctive():
    assert {"3.06", "94.07", "0.9407", "2870.99", "5793.83", "90.3", "6.82", "38.5"} <= figures().keys()
    assert not {"512", "0.5", "0.001", "3.1"} & figures().keys()


@pytest.mark.parametrize(
    ("text", "kind", "found"),
    [
        ("it is 3.06× as fast", OWN_NUMBERS, ["3.06"]),
        ("it is 3.06 times as fast", OWN_NUMBERS, ["3.06"]),
        ("| NestPipe | 3.06 |", PROSE, ["3.06"]),
        ("gain = 3.06", OWN_NUMBERS, []),
        ("a step of 5,793.83 ms, or 5793.830", OWN_NUMBERS, ["5793.83", "5793.83"]),
        ("efficiency 0.9407", OWN_NUMBERS, ["0.9407"]),
        ("13.06 3.061 3.06.1 v3.06 15793.83", PROSE, []),
        ("(94.07 %)", PROSE, ["94.07"]),
    ],
)
def test_figures_are_found_as_whole_numbers(text, kind, found):
    assert published_in(text, kind) == found
