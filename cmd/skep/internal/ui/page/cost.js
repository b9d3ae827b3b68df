// What programs cost in the last minutes, Skep's and others'.

import { h, render } from './dom.js';
import { cut, lacking, linkTo, nameOf, nanoseconds, nodeLink, percent, rate } from './text.js';
import { stale, table } from './node.js';

const path = (name) => `data/node?name=${encodeURIComponent(name)}`;
const nameFrom = (rest, overview) => rest[0] || overview.nodes[0]?.name || '';

// lines is how many programs have a line of their own; a line's dashes and its letter name it without its colour.
const lines = 6;
const dashes = ['', '7 3', '2 3', '9 3 2 3', '4 4', '12 4'];

export const cost = {
  label: () => 'Cost',
  title: (rest) => rest[0] && `Cost on ${cut(rest[0], 60)}`,
  needs: (rest, overview) => (nameFrom(rest, overview) ? [path(nameFrom(rest, overview))] : []),
  draw({ overview, rest, data }) {
    const name = nameFrom(rest, overview);
    const loaded = data[path(name)];
    const n = loaded?.value;
    return [
      h('div', { class: 'heading' }, h('h1', {}, name ? ['Cost on ', h('bdi', {}, cut(name, 80))] : 'Cost'), overview.cluster && name && h('a', { href: nodeLink(name) }, 'This node’s programs')),
      stale(loaded),
      n ? body(n) : !loaded?.error && h('p', { class: 'empty' }, name ? 'Reading…' : lacking(overview, 'bpfnodes', 'nodes') || 'No node reports.'),
    ];
  },
};

function body(n) {
  if (!n.cost?.length) {
    if (n.leftOut) return n.leftOut.map((text) => h('p', { class: 'note' }, text));
    return h('p', { class: 'empty' }, 'Nothing was measured yet. The agent measures for a second of every fifteen, unless an admin switched that off.');
  }
  const last = n.cost[n.cost.length - 1];
  const ours = sum(last, (p) => p.ours);
  const others = sum(last, (p) => !p.ours) + (last.rest || 0);
  return [
    h('dl', { class: 'facts' }, [['Skep’s programs', percent(ours)], ['Programs of others', percent(others)], ['Measured', `${new Date(last.at).toLocaleTimeString('en-GB')}, for ${last.seconds.toPrecision(2)} s`]]
      .map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value)))),
    h('section', { class: 'block' }, h('h2', {}, 'Share of one CPU'), plot(n.cost)),
    h('section', { class: 'block' }, h('h2', {}, 'Programs in the last window'), h('div', { class: 'card' }, table('Programs in the last window', ['CPU', 'Runs', 'Each', 'Program', 'Owner', 'Id'], (last.programs || []).map((p) => [
      percent(p.share), rate(p.rate), p.rate ? nanoseconds(p.each) : '–', h('bdi', { class: 'mono' }, cut(p.name, 60)),
      p.application ? h('a', { href: linkTo(p.application) }, h('bdi', {}, cut(nameOf(p.application), 60))) : p.ours ? 'Skep: a chain' : 'not Skep’s', p.id,
    ])))),
  ];
}

function sum(window, which) { return (window.programs || []).filter(which).reduce((total, p) => total + p.share, 0); }

// leastScale is the least that the plot is high, as a share of one CPU: what costs less is on its ground.
const leastScale = 1e-4;

// gap is how long nothing was measured where a line ends and begins anew, in milliseconds.
const gap = 60000;

// plot has a line for each of the programs that cost most in all windows, and names them.
function plot(windows) {
  const totals = new Map();
  for (const w of windows) {
    for (const p of w.programs || []) {
      const one = totals.get(p.id) || { id: p.id, name: p.name, ours: p.ours, application: p.application, share: 0 };
      one.share += p.share;
      totals.set(p.id, one);
    }
  }
  // What costs nothing needs no line.
  const chosen = [...totals.values()].filter((c) => c.share > 0).sort((a, b) => b.share - a.share).slice(0, lines);
  const now = (c) => percent(windows[windows.length - 1].programs?.find((p) => p.id === c.id)?.share || 0);
  const label = `Share of one CPU of the ${chosen.length} programs that cost most: ${chosen.map((c) => `${c.name}, ${now(c)}`).join('; ')}`;
  return h('div', { class: 'card plot' },
    h('div', { own: true, ref: (element) => draw(element, windows, chosen, label) }),
    h('ul', { class: 'keys' }, chosen.map((c, i) => h('li', { key: c.id },
      h('svg', { viewBox: '0 0 26 8', 'aria-hidden': 'true' }, h('path', { class: `series series-${i}`, 'stroke-dasharray': dashes[i] || null, d: 'M1 4H25' })),
      h('bdi', { class: 'mono' }, cut(c.name, 40)), h('span', { class: 'fine' }, c.application ? cut(nameOf(c.application), 40) : c.ours ? 'Skep' : 'not Skep’s')))));
}

// draw draws the lines into an element, as wide as that is.
function draw(element, windows, chosen, label) {
  const width = Math.max(240, element.clientWidth || 1000);
  const height = 260;
  const pad = { left: 72, right: 30, top: 14, bottom: 28 };
  // Now is at the right.
  const last = Date.parse(windows[windows.length - 1].at);
  const span = Math.max(60000, last - Date.parse(windows[0].at));
  const first = last - span;
  const most = nice(Math.max(leastScale, ...windows.flatMap((w) => (w.programs || []).filter((p) => chosen.some((c) => c.id === p.id)).map((p) => p.share))));
  const x = (at) => pad.left + (Date.parse(at) - first) / span * (width - pad.left - pad.right);
  const y = (share) => height - pad.bottom - share / most * (height - pad.top - pad.bottom);
  const content = [0, 0.25, 0.5, 0.75, 1].map((part) => [
    h('path', { class: 'rule', d: `M${pad.left} ${y(part * most)}H${width - pad.right}` }), h('text', { class: 'tick', x: pad.left - 8, y: y(part * most) + 4, 'text-anchor': 'end' }, percent(part * most))]);
  // A time needs some room beside the next.
  const every = [15000, 30000, 60000, 300000, 600000].find((step) => step / span * (width - pad.left) > 74) || 1800000;
  for (let t = Math.ceil(first / every) * every; t <= first + span; t += every) {
    content.push(h('text', { class: 'tick', x: x(new Date(t).toISOString()), y: height - 8, 'text-anchor': 'middle' }, new Date(t).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit', second: every < 60000 ? '2-digit' : undefined })));
  }
  chosen.forEach((c, i) => {
    const points = windows.map((w) => [x(w.at), y(w.programs?.find((p) => p.id === c.id)?.share || 0)]);
    const line = points.map((p, at) => (at > 0 && Date.parse(windows[at].at) - Date.parse(windows[at - 1].at) <= gap ? 'L' : 'M') + p.map((v) => v.toFixed(1)).join(' '));
    content.push(h('path', { class: `series series-${i}`, 'stroke-dasharray': dashes[i] || null, d: line.join('') }));
    const [px, py] = points[points.length - 1];
    content.push(h('circle', { class: `dot series-${i}`, cx: px, cy: py, r: 3.5 }));
  });
  render(element, h('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': cut(label, 800) }, content));
}

// nice is the next round number.
function nice(n) {
  const power = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 4, 5, 8, 10].map((f) => f * power).find((f) => f >= n);
}
