"""The register's section of the results page: a summary a source, and every claim beside what was obtained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from nestlab.experiments.claims import loader
from nestlab.experiments.claims.page import rows
from nestlab.experiments.claims.recorded import answers

_HEAD = ("claim", "sentence", "published", "obtained", "how", "verdict", "run")
_INTRO = (
    "What the sources published, how each claim is to be answered, and what runs here obtained. "
    "A “?” marks what a source contradicts itself or gets wrong."
)


def section(results_dir: Path, runs: Sequence[Any]) -> tuple[str, str]:
    """A part of `results/index.html` (see `nestlab.results.page`)."""
    lines = rows(loader.chosen(None), answers(results_dir))
    sources = [_source(name, list(group)) for name, group in groupby(lines, key=lambda row: row["source"])]
    return "Published claims", f"<p>{_INTRO}</p>{''.join(sources)}"


def _source(name: str, lines: list[dict[str, Any]]) -> str:
    counted = ", ".join(f"{count} {verdict}" for verdict, count in Counter(row["verdict"] for row in lines).items())
    head = "".join(f"<th>{column}</th>" for column in _HEAD)
    body = "".join(map(_line, lines))
    return (
        f"<details><summary><b>{escape(name)}</b>: {len(lines)} claims, {escape(counted)}</summary>"
        f'<div class="table"><table><tr>{head}</tr>{body}</table></div></details>'
    )


def _line(row: dict[str, Any]) -> str:
    doubt = row["error"] or row["suspect"]
    mark = f' <abbr title="{escape(doubt)}">?</abbr>' if doubt else ""
    how = row["how"] or f"({row['answer']})"
    values = [row["sentence"], row["published"], _text(row["obtained"]), how, row["verdict"], row["run"]]
    cells = "".join(f"<td>{escape(value or '–')}</td>" for value in values)
    return f"<tr><td>{escape(row['claim'])}{mark}</td>{cells}</tr>"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else str(value)
