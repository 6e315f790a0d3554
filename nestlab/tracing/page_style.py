"""The look of the timeline page; here and not in a file of its own, so that no installation can lack it."""

STYLE = """
:root { --paper: #fff; --ink: #222; --muted: #666; --line: #ddd; --band: #f6f6f6; --idle: #ccc; --focus: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181d; --ink: #e8e8e8; --muted: #a4a8b0; --line: #363a42; --band: #1d2026; --idle: #555;
    --focus: #56b4e9; }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 16px 20px 32px; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 19px; margin: 0 0 2px; overflow-wrap: anywhere; }
.source { margin: 0 0 12px; color: var(--muted); overflow-wrap: anywhere; }
.notice { border: 1px solid var(--line); border-radius: 6px; padding: 8px 10px; }
.bar { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; margin-bottom: 8px; }
button { font: inherit; color: inherit; background: var(--band); border: 1px solid var(--line); border-radius: 6px;
  padding: 4px 10px; min-width: 34px; min-height: 32px; cursor: pointer; }
button:hover { border-color: var(--muted); }
button:focus-visible, canvas:focus-visible { outline: 2px solid var(--focus); outline-offset: 1px; }
#where { color: var(--muted); margin-left: 4px; font-variant-numeric: tabular-nums; }
.stage { position: relative; }
canvas { display: block; width: 100%; touch-action: pan-y; cursor: grab; border: 1px solid var(--line);
  border-radius: 6px; }
canvas.dragging { cursor: grabbing; }
#tip { position: absolute; pointer-events: none; max-width: 300px; background: var(--ink); color: var(--paper);
  font-size: 12px; line-height: 1.4; padding: 5px 8px; border-radius: 5px; white-space: pre-line; z-index: 1; }
#detail { min-height: 3em; margin: 8px 0 4px; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.help { color: var(--muted); font-size: 12.5px; margin: 0 0 18px; max-width: 900px; }
.tables { display: flex; flex-wrap: wrap; gap: 20px 48px; align-items: flex-start; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; white-space: nowrap; font-weight: 600; padding-bottom: 4px; }
th, td { padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid var(--line); font-weight: 400; }
thead th { color: var(--muted); }
th:first-child { text-align: left; }
i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 7px;
  border: 1px solid var(--line); }
@media (max-width: 600px) { body { padding: 10px 10px 24px; } h1 { font-size: 16px; } .help { font-size: 12px; } }
"""
