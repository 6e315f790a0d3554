"""The timeline page's second half: pointer, wheel, keys, and what is said of an action."""

INPUT = r"""
function hit(px, py) {
  const row = rows[Math.floor((py - AXIS - STEPS) / ROW)];
  if (!row || px < left || py < AXIS + STEPS) return -1;
  let best = -1, distance = 4;  // the shortest actions are a line: a few pixels beside them count
  for (const i of row.events) {
    const a = x(events[i][START]), b = x(events[i][START] + events[i][DUR]);
    const off = Math.max(a - px, px - b, 0);
    if (off < distance) { best = i; distance = off; }
  }
  return best;
}
function gapAt(px, py) {
  const row = rows[Math.floor((py - AXIS - STEPS) / ROW)], t = time(px);
  if (!row || row.lane !== data.compute || px < left) return null;
  return data.gaps.find(g => g[0] === row.rank && g[1] <= t && t < g[1] + g[2]) || null;
}
function describe(i) {
  const e = events[i];
  return `${data.stages[e[STAGE]]} · batch ${e[BATCH]}${e[PART] < 0 ? '' : ', part ' + e[PART]}`
    + `\n${data.lanes[e[LANE]][0]}${ranks.length > 1 ? ', rank ' + e[RANK] : ''}`
    + `\n${ms(e[START])} – ${ms(e[START] + e[DUR])} ms: ${ms(e[DUR])} ms`
    + (e[BYTES] ? `\n${size(e[BYTES])} moved` : '')
    + (e[EXPOSED] ? `\nexposed: ${ms(e[EXPOSED])} ms of compute idle` : '');
}
function describeGap(gap) {
  const [, start, dur, cause, waiting] = gap;
  return `compute idle ${ms(dur)} ms\nfrom ${ms(start)} ms`
    + (waiting < 0 ? '' : `\nbefore ${label(waiting)}`)
    + `\nfor ${cause < 0 ? 'overhead: no running action explains it' : label(cause)}`;
}
const NOTHING = 'No action chosen: click or tap one, or press n with the focus on the timeline.';
function select(i, reveal) {
  selected = i;
  const names = list => list.length ? list.map(label).join(', ') : 'nothing here';
  by('detail').textContent = i < 0 ? NOTHING : describe(i).replace(/\n/g, ' · ')
    + ` · waited for: ${names(into[i])} · waited for it: ${names(out[i])}`;
  if (reveal && i >= 0) {
    const e = events[i], middle = e[START] + e[DUR] / 2, half = Math.max(t1 - t0, e[DUR] * 1.2) / 2;
    if (e[START] < t0 || e[START] + e[DUR] > t1) return look(middle - half, middle + half);
  }
  draw();
}

const place = event => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
const pointers = new Map();
let moved = 0;
canvas.addEventListener('pointerdown', event => {
  pointers.set(event.pointerId, place(event)); moved = 0;
  canvas.setPointerCapture(event.pointerId); canvas.classList.add('dragging'); tip.hidden = true;
});
canvas.addEventListener('pointermove', event => {
  const [px, py] = place(event), before = pointers.get(event.pointerId);
  if (!before) return hover(px, py);
  if (pointers.size === 1) {
    moved += Math.abs(px - before[0]);
    const by = (before[0] - px) / (width - left) * (t1 - t0);
    if (moved > 3) look(t0 + by, t1 + by);
  } else {
    const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
    const was = Math.abs(before[0] - other[0]), now = Math.abs(px - other[0]);
    if (was > 8 && now > 8) zoom(was / now, (px + other[0]) / 2);
    moved = 99;
  }
  pointers.set(event.pointerId, [px, py]);
});
const release = event => {
  const there = pointers.delete(event.pointerId);
  if (!pointers.size) canvas.classList.remove('dragging');
  if (there && event.type === 'pointerup' && moved <= 3) select(hit(...place(event)), false);
};
canvas.addEventListener('pointerup', release);
canvas.addEventListener('pointercancel', release);
canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
function hover(px, py) {
  const i = hit(px, py), gap = i < 0 && gapAt(px, py);
  tip.hidden = i < 0 && !gap;
  if (tip.hidden) return;
  tip.textContent = i < 0 ? describeGap(gap) : describe(i);
  tip.style.left = Math.max(0, Math.min(px + 14, width - tip.offsetWidth - 4)) + 'px';
  tip.style.top = (py + 18) + 'px';
}
canvas.addEventListener('wheel', event => {
  event.preventDefault();
  const unit = event.deltaMode === 1 ? 16 : 1;
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey)
    move((event.deltaX || event.deltaY) * unit / (width - left));
  else zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY * unit)) * 0.004), Math.max(left, place(event)[0]));
}, {passive: false});

function neighbour(change) {
  if (selected < 0) {
    const visible = rows.flatMap(row => row.events).find(i => events[i][START] >= t0);
    return select(visible === undefined ? 0 : visible, true);
  }
  const inRow = rows[rowOf.get(events[selected][RANK] + ':' + events[selected][LANE])].events;
  const at = inRow.indexOf(selected) + change;
  if (at >= 0 && at < inRow.length) select(inRow[at], true);
}
function otherLane(change) {
  if (selected < 0) return neighbour(0);
  const row = rows[rowOf.get(events[selected][RANK] + ':' + events[selected][LANE]) + change];
  if (!row) return;
  const far = i => Math.abs(events[i][START] - events[selected][START]);
  select(row.events.reduce((best, i) => far(i) < far(best) ? i : best), true);
}
const actions = {previous: () => toStep(-1), next: () => toStep(1), out: () => zoom(1.6), in: () => zoom(1 / 1.6),
  all: () => look(0, end)};
const keys = {ArrowLeft: () => move(-.15), ArrowRight: () => move(.15), ArrowUp: () => otherLane(-1),
  ArrowDown: () => otherLane(1), '+': actions.in, '=': actions.in, '-': actions.out, '0': actions.all,
  n: () => neighbour(1), p: () => neighbour(-1), Escape: () => select(-1, false)};
canvas.addEventListener('keydown', event => {
  const act = keys[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault(); act();
});
document.querySelectorAll('button[data-do]').forEach(b => b.addEventListener('click', () => actions[b.dataset.do]()));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readColours(); draw(); });
new ResizeObserver(resize).observe(canvas.parentElement);
readColours(); resize(); first(); select(-1, false);
})();
"""
