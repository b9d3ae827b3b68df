// States as shape, letter and colour: one of the three is enough to tell them apart.

import { h } from './dom.js';

// The states of an application on a node, by letter, in the order of their urgency.
export const states = {
  F: { name: 'Failed', tone: 'bad', shape: 'diamond' },
  U: { name: 'Unsupported', tone: 'odd', shape: 'triangle' },
  W: { name: 'Waiting', tone: 'wait', shape: 'clock' },
  P: { name: 'Pending', tone: 'busy', shape: 'half' },
  R: { name: 'Retained', tone: 'kept', shape: 'pause' },
  L: { name: 'Loaded', tone: 'good', shape: 'check' },
  X: { name: 'Removed', tone: 'none', shape: 'square' },
  N: { name: 'Not selected', tone: 'none', shape: 'dash' },
  '.': { name: 'Not reported', tone: 'none', shape: 'dot' },
};

// urgency orders letters.
export const urgency = Object.fromEntries(Object.keys(states).map((letter, i) => [letter, i]));

// The states of a stage, and of attachments, as shapes.
const looks = {
  Done: ['good', 'check'], Failed: ['bad', 'diamond'], Waiting: ['wait', 'clock'], Unknown: ['odd', 'question'], None: ['none', 'dash'],
  Attached: ['good', 'check'], Ran: ['good', 'check'], NoPods: ['none', 'dash'], Skipped: ['none', 'dash'], SwitchedOff: ['kept', 'pause'],
  DriftConflict: ['bad', 'diamond'], Ready: ['good', 'check'], Denied: ['bad', 'diamond'],
};

// letterOf is the letter of a node's state.
export function letterOf(name) {
  if (name === 'NotSelected') return 'N';
  return Object.keys(states).find((letter) => states[letter].name === name) || '.';
}

// lookOf is tone and shape of any state.
export function lookOf(state) {
  const node = states[Object.hasOwn(states, state) ? state : letterOf(state)];
  return Object.hasOwn(looks, state) ? looks[state] : [node.tone, node.shape];
}

// parts draw a shape in 16 by 16: what is filled, and the line on it.
export const parts = {
  check: ['M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1Z', 'M4.700 8.300l2.300 2.300 4.300-4.800'],
  diamond: ['M8 .5 15.500 8 8 15.500.5 8Z', 'M5.800 5.800l4.400 4.400M10.200 5.800l-4.400 4.400'],
  triangle: ['M8 1.200 15.500 14.500H.5Z', 'M8 5.800v4M8 12v.4'],
  clock: ['M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1Z', 'M8 4.500V8.300l2.500 1.700'],
  half: ['M8 1a7 7 0 1 0 0 14Z', 'M8 1.800a6.200 6.200 0 0 1 0 12.400'],
  pause: ['M3 1.500h10A1.500 1.500 0 0 1 14.500 3v10a1.500 1.500 0 0 1-1.500 1.500H3A1.500 1.500 0 0 1 1.500 13V3A1.500 1.500 0 0 1 3 1.500Z', 'M6 5v6M10 5v6'],
  square: ['', 'M3 3h10v10H3Z'],
  dash: ['', 'M4 8h8'],
  dot: ['M8 6.500a1.500 1.500 0 1 0 0 3 1.500 1.500 0 0 0 0-3Z', ''],
  question: ['M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1Z', 'M6.200 6.200a1.800 1.800 0 1 1 2.600 1.700c-.6.3-.8.6-.8 1.200M8 11.200v.3'],
};

// icon is a state's shape; without a title, text beside it names it.
export function icon(state, title) {
  const [tone, shape] = lookOf(state);
  const [fill, line] = parts[shape];
  const open = shape === 'half' || fill === '' || shape === 'dot';
  return h('svg', { class: `icon tone-${tone}`, viewBox: '0 0 16 16', role: title ? 'img' : null, 'aria-label': title || null, 'aria-hidden': title ? null : 'true' },
    fill && h('path', { class: 'fill', d: fill }), line && h('path', { class: open ? 'line' : 'mark', d: line }));
}

// placed is an icon's content at a place of a picture.
export function placed(state, x, y, size) {
  const [tone, shape] = lookOf(state);
  const [fill, line] = parts[shape];
  const open = shape === 'half' || fill === '' || shape === 'dot';
  return h('g', { class: `icon tone-${tone}`, transform: `translate(${x - size / 2} ${y - size / 2}) scale(${size / 16})` },
    fill && h('path', { class: 'fill', d: fill }), line && h('path', { class: open ? 'line' : 'mark', d: line }));
}

// badge is a state's shape and name.
export function badge(state) {
  const name = Object.hasOwn(states, state) ? states[state].name : state.replace(/([a-z])([A-Z])/g, (_, a, b) => `${a} ${b.toLowerCase()}`);
  return h('span', { class: `badge text-${lookOf(state)[0]}` }, icon(state), h('span', {}, name));
}

// overall is how an application does: the first step that failed, or whether it is ready.
export function overall(application) {
  if (application.stages.some((s) => s.name === 'verdict' && s.state === 'Failed')) return 'Denied';
  if (application.stages.some((s) => s.state === 'Failed')) return 'Failed';
  if (application.ready === 'True') return 'Ready';
  return application.stages.some((s) => s.state === 'Unknown') ? 'Unknown' : 'Waiting';
}
