"""The script of the timeline page: draws on a canvas what `html.data` gives, and moves the view.

In Python strings, so that no installation can lack a file of it.
"""

from nestlab.tracing.page_input import INPUT

DRAWING = r"""
(() => {
'use strict';
const data = JSON.parse(document.getElementById('trace').textContent);
const [RANK, LANE, STAGE, BATCH, PART, START, DUR, BYTES, EXPOSED] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
const events = data.events, by = id => document.getElementById(id);
const canvas = by('canvas'), tip = by('tip'), pen = canvas.getContext('2d');
const AXIS = 20, STEPS = 18, ROW = 27, BAR = 21, GAP = 12, MEMORY = 58;
by('timeline').hidden = false;

// Rows: the lanes of each rank that have an action, and where their events are, by start.
const ranks = [...new Set(events.map(e => e[RANK]))].sort((a, b) => a - b);
const rows = [], rowOf = new Map();
for (const rank of ranks) data.lanes.forEach(([name], lane) => {
  const inRow = events.map((_, i) => i).filter(i => events[i][RANK] === rank && events[i][LANE] === lane);
  if (!inRow.length) return;
  rowOf.set(rank + ':' + lane, rows.length);
  rows.push({rank, lane, name, events: inRow.sort((a, b) => events[a][START] - events[b][START])});
});
const into = events.map(() => []), out = events.map(() => []);
for (const [source, target] of data.edges) { into[target].push(source); out[source].push(target); }
const end = events.reduce((last, e) => Math.max(last, e[START] + e[DUR]), 1);
const steps = data.steps.filter(s => s[0] === ranks[0]);
const samples = data.memory.samples.filter(s => s[0] === ranks[0]);
const highest = samples.reduce((most, s) => Math.max(most, s.slice(2).reduce((a, b) => a + b, 0)), 1);

let width = 0, height = 0, left = 70, t0 = 0, t1 = end, selected = -1, colours = {};
const shortest = Math.min(end, 2000);
const x = t => left + (t - t0) / (t1 - t0) * (width - left);
const time = px => t0 + (px - left) / (width - left) * (t1 - t0);
const top = row => AXIS + STEPS + row * ROW;
const ms = (ns, digits = 3) => (ns / 1e6).toFixed(digits);
const size = n => n < 1024 ? n + ' B' : n < 1048576 ? (n / 1024).toFixed(1) + ' KiB'
  : (n / 1048576).toFixed(1) + ' MiB';
const number = e => e[BATCH] + (e[PART] < 0 ? '' : '.' + e[PART]);
const label = i => data.stages[events[i][STAGE]] + ' ' + number(events[i]);

function look(from, to) {
  const span = Math.min(Math.max(to - from, shortest), end * 1.02);
  const begin = Math.min(Math.max(from, -end * 0.01), end * 1.01 - span);
  t0 = begin; t1 = begin + span;
  draw();
}
function zoom(factor, at) {
  const t = time(at === undefined ? (left + width) / 2 : at);
  look(t - (t - t0) * factor, t + (t1 - t) * factor);
}
function move(share) { const by = (t1 - t0) * share; look(t0 + by, t1 + by); }
function toStep(change) {
  const middle = (t0 + t1) / 2;
  let at = steps.findIndex(s => middle < s[3]);
  if (at < 0) at = steps.length - 1;
  const step = steps[Math.min(Math.max(at + change, 0), steps.length - 1)];
  if (!step) return;
  const margin = (step[3] - step[2]) * 0.04;
  look(step[2] - margin, step[3] + margin);
}
function first() {  // steps in the middle: three, as the printed timeline has it, or what a phone has room for
  const many = width < 500 ? 1 : 3;
  if (steps.length <= many) return look(0, end);
  const at = Math.floor((steps.length - many) / 2);
  look(steps[at][2], steps[at + many - 1][3]);
}

function resize() {
  const scale = window.devicePixelRatio || 1;
  width = canvas.clientWidth || 600;
  left = width < 500 ? 56 : 70;
  if (ranks.length > 1) left += 22;
  height = AXIS + STEPS + rows.length * ROW + 6 + (samples.length ? MEMORY : 0);
  canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale);
  canvas.style.height = height + 'px';
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  draw();
}
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['paper', 'ink', 'muted', 'line', 'band', 'idle', 'focus'])
    colours[name] = style.getPropertyValue('--' + name).trim();
}

function draw() {
  if (!width) return;
  pen.clearRect(0, 0, width, height);
  pen.fillStyle = colours.paper; pen.fillRect(0, 0, width, height);
  pen.font = '11px system-ui, sans-serif'; pen.textBaseline = 'middle';
  rows.forEach((row, i) => {
    if (i % 2 === 0) { pen.fillStyle = colours.band; pen.fillRect(0, top(i), width, ROW); }
  });
  drawAxis();
  pen.save();
  pen.beginPath(); pen.rect(left, 0, width - left, height); pen.clip();
  drawGaps();
  rows.forEach((row, i) => row.events.forEach(e => drawEvent(e, top(i) + (ROW - BAR) / 2)));
  if (samples.length) drawMemory(top(rows.length) + 6);
  if (selected >= 0) drawEdges();
  pen.restore();
  drawLabels();
  const shown = steps.filter(s => s[3] > t0 && s[2] < t1).map(s => s[1]);
  by('where').textContent = ms(Math.max(0, t1 - t0), 2) + ' ms'
    + (shown.length ? ', step' + (shown.length > 1 ? 's ' + shown[0] + '–' : ' ') + shown[shown.length - 1] : '');
}
function drawAxis() {
  const least = (t1 - t0) / Math.max(2, (width - left) / 80);
  let tick = Math.pow(10, Math.ceil(Math.log10(least)));
  if (tick / 5 >= least) tick /= 5; else if (tick / 2 >= least) tick /= 2;
  const digits = Math.max(0, -Math.floor(Math.log10(tick / 1e6) + 1e-9));
  pen.textAlign = 'left';
  for (let t = Math.ceil(Math.max(t0, 0) / tick) * tick; t <= t1; t += tick) {
    pen.fillStyle = colours.line; pen.fillRect(x(t), AXIS - 4, 1, height);
    const text = ms(t, digits) + ' ms';
    if (x(t) + pen.measureText(text).width + 4 < width) {
      pen.fillStyle = colours.muted; pen.fillText(text, x(t) + 3, AXIS / 2);
    }
  }
  pen.textAlign = 'center';
  for (const [, batch, from, to] of steps) {
    const a = Math.max(x(from), left), b = Math.min(x(to), width);
    if (b - a < 1) continue;
    pen.strokeStyle = colours.muted;
    pen.strokeRect(a + 0.5, AXIS + 2.5, b - a - 1, STEPS - 6);
    const text = [`step ${batch}`, `${batch}`].find(t => pen.measureText(t).width < b - a - 6);
    if (text) { pen.fillStyle = colours.ink; pen.fillText(text, (a + b) / 2, AXIS + STEPS / 2 - 0.5); }
  }
}
function fits(choices, room) { return choices.find(text => pen.measureText(text).width <= room - 4); }
function drawEvent(i, y) {
  const e = events[i], a = x(e[START]), b = x(e[START] + e[DUR]);
  if (b < left || a > width) return;
  const from = Math.max(a, left - 2), wide = Math.max(Math.min(b, width + 2) - from, 1);
  const [, colour, ink] = data.lanes[e[LANE]];
  pen.fillStyle = colour; pen.fillRect(from, y, wide, BAR);
  if (e[BATCH] % 2 && wide > 5) hatch(from, y, wide, BAR, ink, a);
  if (wide > 3) {
    pen.strokeStyle = colours.paper; pen.lineWidth = 1;
    pen.strokeRect(from + .5, y + .5, wide - 1, BAR - 1);
  }
  const short = data.short[e[STAGE]];
  const text = wide > 14 && fits([`${short} ${number(e)}`, short], wide);
  if (!text) return;
  const middle = from + wide / 2, half = pen.measureText(text).width / 2 + 2;
  pen.fillStyle = colour; pen.fillRect(middle - half, y + 4, 2 * half, BAR - 8);
  pen.textAlign = 'center'; pen.fillStyle = ink; pen.fillText(text, middle, y + BAR / 2 + .5);
}
function hatch(a, y, wide, high, ink, origin) {
  pen.save();
  pen.beginPath(); pen.rect(a, y, wide, high); pen.clip();
  pen.globalAlpha = 0.28; pen.strokeStyle = ink; pen.lineWidth = 1;
  pen.beginPath();
  for (let at = a - high - ((a - origin) % 7 + 7) % 7; at < a + wide; at += 7) {
    pen.moveTo(at, y + high); pen.lineTo(at + high, y);
  }
  pen.stroke();
  pen.restore();
}
function drawGaps() {
  for (const [rank, start, dur, cause] of data.gaps) {
    const row = rowOf.get(rank + ':' + data.compute);
    const a = Math.max(x(start), left), b = Math.min(x(start + dur), width);
    if (row === undefined || b - a < 0.5) continue;
    const y = top(row) + (ROW - GAP) / 2;
    pen.globalAlpha = cause < 0 ? 0.8 : 0.45;
    pen.fillStyle = cause < 0 ? colours.idle : data.lanes[events[cause][LANE]][1];
    pen.fillRect(a, y, b - a, GAP);
    pen.globalAlpha = 1;
    const short = cause < 0 ? 'ovh' : data.short[events[cause][STAGE]];
    const text = b - a > 20 && fits(['← ' + short, short], b - a);
    if (!text) continue;
    pen.textAlign = 'center'; pen.fillStyle = colours.ink;
    pen.fillText(text, (a + b) / 2, y + GAP / 2 + .5);
  }
}
function drawMemory(y) {
  const high = MEMORY - 12, scale = high / highest;
  const last = samples.findIndex(s => s[1] > t1), from = Math.max(0, samples.findIndex(s => s[1] >= t0) - 1);
  const seen = samples.slice(from, last < 0 ? samples.length : last + 1);
  for (let kind = data.memory.kinds.length - 1; kind >= 0; kind--) {
    pen.beginPath(); pen.moveTo(x(seen[0][1]), y + high);
    seen.forEach((s, i) => {
      const sum = s.slice(2, 3 + kind).reduce((a, b) => a + b, 0), at = y + high - sum * scale;
      pen.lineTo(x(s[1]), at);
      pen.lineTo(i + 1 < seen.length ? x(seen[i + 1][1]) : x(Math.min(t1, end)), at);
    });
    pen.lineTo(x(Math.min(t1, end)), y + high); pen.closePath();
    pen.fillStyle = data.memory.kinds[kind][1]; pen.fill();
  }
}
function drawEdges() {
  const row = i => rowOf.get(events[i][RANK] + ':' + events[i][LANE]);
  const line = (source, target, dash) => {
    const a = x(events[source][START] + events[source][DUR]), b = x(events[target][START]);
    const ya = top(row(source)) + ROW / 2, yb = top(row(target)) + ROW / 2, bend = Math.max(14, Math.abs(b - a) / 2);
    pen.setLineDash(dash); pen.beginPath(); pen.moveTo(a, ya);
    pen.bezierCurveTo(a + bend, ya, b - bend, yb, b, yb); pen.stroke();
    pen.setLineDash([]); pen.beginPath(); pen.moveTo(b, yb); pen.lineTo(b - 6, yb - 3); pen.lineTo(b - 6, yb + 3);
    pen.fill();
  };
  for (const [paint, wide] of [[colours.paper, 4], [colours.ink, 1.6]]) {
    pen.strokeStyle = pen.fillStyle = paint; pen.lineWidth = wide;
    into[selected].forEach(source => line(source, selected, []));
    out[selected].forEach(target => line(selected, target, [5, 4]));
  }
  const e = events[selected], a = x(e[START]), y = top(row(selected)) + (ROW - BAR) / 2;
  pen.strokeStyle = colours.ink; pen.lineWidth = 2.5;
  pen.strokeRect(a - 1, y - 1, Math.max(x(e[START] + e[DUR]) - a, 1) + 2, BAR + 2);
  pen.lineWidth = 1;
}
function drawLabels() {
  pen.fillStyle = colours.paper; pen.fillRect(0, 0, left, height);
  rows.forEach((row, i) => {
    if (i % 2 === 0) { pen.fillStyle = colours.band; pen.fillRect(0, top(i), left, ROW); }
    pen.fillStyle = data.lanes[row.lane][1]; pen.fillRect(0, top(i) + 3, 4, BAR);
    pen.fillStyle = colours.ink; pen.textAlign = 'left';
    pen.fillText((ranks.length > 1 ? row.rank + ' · ' : '') + row.name, 8, top(i) + ROW / 2, left - 10);
    if (i && rows[i - 1].rank !== row.rank) { pen.fillStyle = colours.muted; pen.fillRect(0, top(i) - .5, width, 1); }
  });
  pen.fillStyle = colours.muted;
  if (samples.length) {
    pen.fillText('memory' + (ranks.length > 1 ? ', rank ' + ranks[0] : ''), 8, top(rows.length) + 22, left - 10);
    pen.fillText(size(highest), 8, top(rows.length) + 37, left - 10);
  }
}
"""

SCRIPT = DRAWING + INPUT
