"""The two READMEs say the same: equal headings in number and level, equal commands, equal code, equal table rows."""

from __future__ import annotations

import re
import shlex

import pytest

from nestlab import cli
from nestlab.experiments import claims

pytestmark = pytest.mark.core


@pytest.fixture
def readmes(project):
    return [(project / name).read_text() for name in ("README.md", "README.zh.md")]


def headings(text: str) -> list[str]:
    return re.findall(r"^#+(?= )", _without_code(text), flags=re.MULTILINE)


def code(text: str) -> list[str]:
    return re.findall(r"```\w*\n(.*?)```", text, flags=re.DOTALL)


def _without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def commands(text: str) -> set[str]:
    """Code quoted in the running text, the names of files, flags and data sets among it."""
    return set(re.findall(r"`([^`\n]+)`", _without_code(text)))


def test_equal_headings(readmes):
    first, second = map(headings, readmes)
    assert first == second and len(first) >= 6


def test_equal_code(readmes):
    first, second = map(code, readmes)
    assert first == second and len(first) >= 5


def test_equal_commands_and_names(readmes):
    first, second = map(commands, readmes)
    assert first == second


def test_equal_numbers_of_table_rows(readmes):
    first, second = ([line.count("|") for line in text.splitlines() if line.startswith("|")] for text in readmes)
    assert first == second


def test_every_command_of_the_readme_is_one(readmes):
    """Each `nestlab …` line parses: a command or an option that is no more would be found here."""
    lines = [line for block in code(readmes[0]) for line in block.splitlines() if line.startswith("nestlab ")]
    assert len(lines) >= 10
    for line in lines:
        cli.parser().parse_args(shlex.split(line, comments=True)[1:])


def test_targets_of_the_readme_are_in_the_makefile(readmes, project):
    targets = set(re.findall(r"^(\w[\w-]*):", (project / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"\bmake (\w[\w-]*)", readmes[0]))
    assert named and named <= targets


def test_the_register_has_as_many_claims_as_the_readmes_say(readmes):
    """Their row on the register of published claims, in either language."""
    for text in readmes:
        numbers = re.findall(r"^\|.*?\b(\d+) (?:claims|条论断)", text, flags=re.MULTILINE)
        assert numbers == [str(len(claims.claims()))]
