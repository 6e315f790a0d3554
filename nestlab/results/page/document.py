"""The page around its parts: all of its style and script is in the file itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from nestlab.results import manifest

if TYPE_CHECKING:
    from nestlab.results.page.views import RunView

# Colours are Okabe and Ito's, darkened or lightened until text on them is readable; each status is also a word.
_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --card: #f6f7f8; --ink: #1d2126; --quiet: #5a636d; --line: #d8dde2;
  --link: #00588f; --good: #00674b; --bad: #a33f00; --wait: #5a636d; --made: #7d4e00; --on: #fff; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --card: #1d2125; --ink: #e6e9ec; --quiet: #a0a9b2;
  --line: #353c43; --link: #7cc4ee; --good: #4ccfa6; --bad: #ff9a5c; --wait: #a0a9b2; --made: #f0b429;
  --on: #14171a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem clamp(.75rem, 3vw, 2rem) 4rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: .5rem 0 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .75rem; }
h3 { font-size: 1rem; margin: 0; } p { margin: .25rem 0; } a { color: var(--link); }
code { font: .85em ui-monospace, monospace; } .quiet, .facts { color: var(--quiet); font-size: .875rem; }
nav a { margin-right: 1rem; }
.table { overflow-x: auto; } table { border-collapse: collapse; } th, td { padding: .25rem .6rem; text-align: left;
  border-bottom: 1px solid var(--line); vertical-align: top; }
.run, .series { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem 1rem;
  margin: 0 0 .75rem; } [hidden] { display: none !important; }
.status { display: inline-block; min-width: 4.5rem; text-align: center; border-radius: .3rem; padding: 0 .5rem;
  margin-right: .35rem; font-size: .8rem; background: var(--bad); color: var(--on); }
.status.ok { background: var(--good); } .status.running { background: var(--wait); }
.data { font-weight: 600; font-size: .875rem; color: var(--good); } .data.synthetic { color: var(--made); }
.data.none { color: var(--quiet); font-weight: 400; }
.problem { color: var(--bad); font-size: .875rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .5rem; margin-top: .5rem; }
.tile { display: grid; grid-template-columns: auto 1fr; gap: .1rem .5rem; font-size: .85rem; align-items: center;
  border: 1px solid var(--line); border-radius: .3rem; padding: .35rem .5rem; background: var(--paper); }
.tile span { grid-column: 1 / -1; } .spark { width: 100%; height: 1.9rem; }
.spark polyline { fill: none; stroke: var(--link); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.spark circle { fill: var(--bad); }
.figures { display: flex; flex-wrap: wrap; gap: .1rem 1.25rem; margin: .4rem 0; font-size: .875rem; }
.figures div { display: flex; gap: .35rem; } dt { color: var(--quiet); } dd { margin: 0; font-weight: 600; }
details dd { font-weight: 400; } summary { cursor: pointer; font-size: .875rem; color: var(--quiet); }
.thumbs { display: flex; gap: .5rem; overflow-x: auto; padding: .25rem 0; }
.thumbs img { height: 7rem; width: auto; display: block; background: #fff; border: 1px solid var(--line);
  border-radius: .3rem; }
.links { display: flex; flex-wrap: wrap; gap: .1rem 1rem; list-style: none; padding: 0; margin: .3rem 0;
  font-size: .875rem; }
.filters { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center; margin-bottom: .75rem; }
select { font: inherit; max-width: 100%; }
@media (max-width: 30rem) { .run, .series { padding: .6rem .7rem; } .thumbs img { height: 6rem; } }
"""

# Values are compared and never written into the page.
_SCRIPT = """
const form = document.querySelector(".filters");
if (form) {
  const apply = () => {
    let shown = 0;
    for (const item of document.querySelectorAll("[data-experiment]")) {
      const hide = ["experiment", "status"].some(
        (name) => form.elements[name].value && form.elements[name].value !== item.dataset[name]);
      item.hidden = hide;
      if (!hide && item.matches(".run")) shown += 1;
    }
    document.getElementById("shown").textContent = shown + (shown === 1 ? " run" : " runs");
    document.getElementById("none").hidden = shown > 0;
  };
  form.hidden = false;
  form.addEventListener("change", apply);
  apply();
}
"""


def document(parts: Sequence[tuple[str, str]], runs: Sequence[RunView]) -> str:
    """The whole page. Titles are text, the rest of a part is HTML."""
    anchors = [f"part-{number}" for number in range(1, len(parts) + 1)]
    links = "".join(f'<a href="#{a}">{escape(title)}</a>' for a, (title, _) in zip(anchors, parts, strict=True))
    sections = "\n".join(
        f'<section id="{anchor}"><h2>{escape(title)}</h2>\n{html}</section>'
        for anchor, (title, html) in zip(anchors, parts, strict=True)
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>NestLab results</title>
<style>{_STYLE}</style></head>
<body><header><h1>NestLab results</h1>
<p class="quiet">{_counted(runs)}. Written {manifest.now():%Y-%m-%d %H:%M} UTC.</p>
<nav>{links}</nav></header>
<main>{sections}</main>
<script>{_SCRIPT}</script></body></html>
"""


def _counted(runs: Sequence[RunView]) -> str:
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.status] = counts.get(run.status, 0) + 1
    told = ", ".join(f"{number} {escape(status)}" for status, number in sorted(counts.items()))
    return f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}{f': {told}' if told else ''}"
