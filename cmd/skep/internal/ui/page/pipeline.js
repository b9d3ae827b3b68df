// The way of an application as one picture: from its source to the nodes.

import { h, render } from './dom.js';
import { lookOf, placed, states, urgency } from './state.js';
import { clean, cut, nameOf, number } from './text.js';

const labels = { source: 'Source', signature: 'Signature', bytecode: 'Bytecode', verdict: 'Verdict', rollout: 'Rollout', nodes: 'Nodes' };

// shares are how wide a step is, of all.
const shares = { source: 1.15, signature: 1, bytecode: 1.15, verdict: 1.5, rollout: 0.9, nodes: 1.2 };

const measure = document.createElement('canvas').getContext('2d');

// wrap breaks a text into lines of a width, at spaces where it has them, of at most so many lines.
function wrap(text, width, font, most) {
  measure.font = font;
  const fits = (s) => measure.measureText(s).width <= width;
  const out = [];
  let line = '';
  // A path or an address breaks after its separators.
  for (const word of clean(text).split(/(?<=\s)|(?<=[/:@])(?=\S)/)) {
    let rest = word;
    if (line && fits((line + rest).trimEnd())) {
      line += rest;
      continue;
    }
    if (line) out.push(line.trimEnd());
    while (!fits(rest) && out.length <= most) {
      let n = rest.length;
      while (n > 1 && !fits(rest.slice(0, n))) n = Math.min(n - 1, Math.ceil(n * width / measure.measureText(rest.slice(0, n)).width));
      out.push(rest.slice(0, n));
      rest = rest.slice(n);
    }
    line = rest;
    if (out.length > most) break;
  }
  if (line) out.push(line);
  if (out.length > most) return [...out.slice(0, most - 1), `${out[most - 1].slice(0, -1)}…`];
  return out;
}

// picture draws the way of an application into an element, as wide as that is.
export function picture(element, application, overview) {
  const width = Math.max(280, element.clientWidth || 800);
  const drawn = width >= 760 ? across(application, width) : down(application, width);
  const text = application.stages.map((s) => `${labels[s.name]}: ${s.title}. ${s.lines.join(', ')}`).join('. ');
  render(element, h('svg', { class: 'pipeline', viewBox: `0 0 ${width} ${drawn.height}`, width, height: drawn.height, role: 'img', 'aria-label': cut(`The way of ${nameOf(application)} from its source to ${overview.cluster ? 'the nodes' : 'this host'}. ${text}`, 1500) }, drawn.content));
}

// block is the text of a step from a place on, and how high it is.
function block(stage, x, y, width, most) {
  const family = getComputedStyle(document.body).fontFamily;
  const content = [h('text', { class: 'label', x, y }, labels[stage.name])];
  let at = y + 19;
  for (const line of wrap(stage.title, width, `650 14px ${family}`, 2)) {
    content.push(h('text', { class: `title text-${lookOf(stage.state)[0]}`, x, y: at }, line));
    at += 18;
  }
  let left = most;
  for (const text of stage.lines) {
    if (left <= 0) break;
    const broken = wrap(text, width, `12px ${family}`, left);
    left -= broken.length;
    for (const line of broken) {
      content.push(h('text', { class: 'more', x, y: at }, line));
      at += 16;
    }
  }
  return { content, height: at - y };
}

// dots are the nodes, the worst first, each as its shape; beyond the room for them their number stands.
function dots(application, x, y, width, rows) {
  const letters = [...application.states].filter((l) => 'FUWPRL'.includes(l)).sort((a, b) => urgency[a] - urgency[b]);
  const columns = Math.max(1, Math.floor((width + 4) / 16));
  const room = columns * rows;
  const shown = letters.slice(0, letters.length > room ? room - columns : room);
  const content = shown.map((letter, i) => placed(letter, x + 6 + (i % columns) * 16, y + 6 + Math.floor(i / columns) * 16, 12));
  let height = Math.ceil(shown.length / columns) * 16;
  if (letters.length > shown.length) {
    content.push(h('text', { class: 'more', x, y: y + height + 12 }, `and ${number(letters.length - shown.length)} more`));
    height += 16;
  }
  const tally = Object.keys(states).filter((l) => l !== 'L' && letters.includes(l)).map((l) => `${number(letters.filter((one) => one === l).length)} ${states[l].name.toLowerCase()}`);
  for (const text of tally) {
    content.push(h('text', { class: 'more', x, y: y + height + 14 }, text));
    height += 16;
  }
  return { content, height };
}

// stops is the first step that keeps a version from going on.
function stops(stages) {
  const i = stages.findIndex((s) => s.state === 'Failed' || s.state === 'Unknown');
  return i < 0 ? stages.length : i;
}

function across(application, width) {
  const { stages } = application;
  const pad = 22;
  const gap = 22;
  const unit = (width - 2 * pad - gap * (stages.length - 1)) / stages.reduce((sum, s) => sum + shares[s.name], 0);
  const line = 34;
  const until = stops(stages);
  const content = [];
  let height = 0;
  let x = pad;
  stages.forEach((stage, i) => {
    const w = unit * shares[stage.name];
    if (i < stages.length - 1) content.push(h('path', { class: i >= until ? 'way cut' : 'way', d: `M${x + 30} ${line}H${x + w + gap - 8}` }));
    content.push(placed(stage.state, x + 11, line, 22));
    const text = block(stage, x, line + 36, w, 9);
    content.push(...text.content);
    let h0 = text.height;
    if (stage.name === 'nodes') {
      const nodes = dots(application, x, line + 36 + h0 - 4, w, 6);
      content.push(...nodes.content);
      h0 += nodes.height;
    }
    height = Math.max(height, line + 36 + h0);
    x += w + gap;
  });
  return { content, height: height + 14 };
}

function down(application, width) {
  const { stages } = application;
  const until = stops(stages);
  const content = [];
  let y = 34;
  stages.forEach((stage, i) => {
    const text = block(stage, 54, y - 4, width - 70, 7);
    let tall = text.height;
    if (stage.name === 'nodes') {
      const nodes = dots(application, 54, y - 8 + tall, width - 70, 4);
      content.push(...nodes.content);
      tall += nodes.height;
    }
    if (i < stages.length - 1) content.push(h('path', { class: i >= until ? 'way cut' : 'way', d: `M27 ${y + 18}V${y + tall + 6}` }));
    content.push(placed(stage.state, 27, y, 22), ...text.content);
    y += tall + 26;
  });
  return { content, height: y - 12 };
}
