"""Every run as a card: how it ended, on what data, what came out, and links to all that it left."""

from __future__ import annotations

from html import escape
from pathlib import Path

from nestlab.results.page.views import RunView, shown


def section(results_dir: Path, runs: list[RunView]) -> tuple[str, str]:
    if not runs:
        return "Runs", "<p>No runs yet: <code>make reproduce</code> makes some.</p>"
    none = '<p id="none" hidden>No run is of this experiment and status.</p>'
    return "Runs", "\n".join([_filters(runs), *map(_card, runs), none])


def _filters(runs: list[RunView]) -> str:
    experiments, statuses = sorted({run.experiment for run in runs}), sorted({run.status for run in runs})
    choices = [_select("experiment", experiments), _select("status", statuses)]
    return f'<form class="filters" hidden>{"".join(choices)}<output id="shown" class="quiet"></output></form>'


def _select(name: str, values: list[str]) -> str:
    options = "".join(f'<option value="{escape(value)}">{escape(value)}</option>' for value in values)
    return f'<label>{name} <select name="{name}"><option value="">all</option>{options}</select></label>'


def _card(run: RunView) -> str:
    parts = [_heading(run), _facts(run), _problem(run), _key_figures(run), _thumbnails(run), _links(run), _details(run)]
    attributes = f'data-experiment="{escape(run.experiment)}" data-status="{escape(run.status)}"'
    return f'<article class="run" {attributes}>{"".join(parts)}</article>'


def _heading(run: RunView) -> str:
    title = f" · {escape(run.title)}" if run.title else ""
    status = f'<span class="status {escape(run.status)}">{escape(run.status)}</span>'
    return f"<h3>{status} {escape(run.experiment)}{title}</h3>"


def _facts(run: RunView) -> str:
    facts = [f'<span class="data {run.data_kind}">{escape(run.data_title)}</span>']
    facts += [escape(part) for part in (run.how, f"via {run.via}" if run.via else "") if part]
    if run.seed is not None:
        facts.append(f"seed {escape(str(run.seed))}")
    if run.start is not None:
        facts.append(f'<time datetime="{run.start.isoformat()}">{run.start:%Y-%m-%d %H:%M} UTC</time>')
    if run.seconds is not None:
        facts.append(f"{run.seconds:,.1f} s")
    facts.append(f"<code>{escape(run.run_id)}</code>")
    return f'<p class="facts">{" · ".join(facts)}</p>'


def _problem(run: RunView) -> str:
    return f'<p class="problem">{escape(run.exception)}</p>' if run.exception else ""


def _key_figures(run: RunView) -> str:
    """Figures of a run that is no result are not shown as if they were one."""
    if not run.summary or run.status != "ok":
        return ""
    items = "".join(
        f"<div><dt>{escape(str(n))}</dt><dd>{escape(shown(str(n), v))}</dd></div>" for n, v in run.summary.items()
    )
    return f'<dl class="figures">{items}</dl>'


def _thumbnails(run: RunView) -> str:
    if not run.figures:
        return ""
    pictures = "".join(
        f'<a href="{link}"><img src="{link}" loading="lazy" alt="{escape(name)}"></a>' for name, link in run.figures
    )
    return f'<div class="thumbs">{pictures}</div>'


def _links(run: RunView) -> str:
    links = "".join(f'<li><a href="{link}">{escape(name)}</a></li>' for name, link in run.files)
    return f'<ul class="links">{links}</ul>' if links else ""


def _details(run: RunView) -> str:
    if not run.params:
        return ""
    rows = "".join(
        f"<div><dt>{escape(str(n))}</dt><dd>{escape(shown(str(n), v))}</dd></div>" for n, v in run.params.items()
    )
    return f'<details><summary>parameters</summary><dl class="figures">{rows}</dl></details>'
