// The frame: which view is shown, and when its data are asked for again.

import { h, render } from './dom.js';
import { ago, cut } from './text.js';
import { applications } from './applications.js';
import { fleet } from './fleet.js';
import { node } from './node.js';
import { trust } from './trust.js';
import { cost } from './cost.js';

// A view has a name for the navigation, a title, which data it needs besides the overview, and how it is drawn.
const views = { applications, fleet, nodes: node, trust, cost };

// interval is how often the data are asked for, in milliseconds; the page's process asks no more often whatever this says.
const interval = 2000;

// kept is how many answers are kept, the newest; silent is how long an answer may take before the page says so.
const kept = 8;
const silent = 5000;

// loaded has by path: the value, when it came, the value before, and why there is no newer one.
const loaded = new Map();
let failure = '';
let broken = '';
let answered = 0;
let asking = 0;
let drawn = 0;
let shown = '';
let timer = 0;
let turn = 0;

// where reads the address of the view: its name and what follows.
function where() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, '').split('/').map(decoded);
  return Object.hasOwn(views, name) ? { name, rest } : { name: 'applications', rest: [] };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// load asks for data, and reports whether they are others than before.
async function load(path) {
  const before = loaded.get(path);
  const { ok, status, tag, value } = await ask(path, before?.tag);
  if (!ok && status !== 304) throw new Error(value.error || `the page's process answers ${status}`);
  loaded.delete(path);
  const times = { at: performance.now(), read: Date.now() };
  loaded.set(path, status === 304 ? { ...before, ...times, error: '' } :
    { tag, value, ...times, last: before?.value, lastAt: before?.at, lastRead: before?.read, error: '' });
  for (const old of loaded.keys()) {
    if (loaded.size <= kept) break;
    loaded.delete(old);
  }
  return status !== 304 || Boolean(before.error);
}

// ask is an answer of the page's process.
async function ask(path, tag) {
  try {
    const answer = await fetch(path, { headers: tag ? { 'If-None-Match': tag } : {}, signal: AbortSignal.timeout(30000) });
    const { ok, status, headers } = answer;
    const isJSON = (headers.get('Content-Type') || '').startsWith('application/json');
    return { ok, status, tag: headers.get('ETag'), value: status === 304 ? null : isJSON ? await answer.json() : { error: await answer.text() } };
  } catch (error) {
    throw new Error(error.name === 'TimeoutError' ? 'skep ui has not answered for 30 seconds.' : 'skep ui does not answer. Start it again, and open the address that it prints.');
  }
}

// attempt asks for data of one view: why there are none is shown there, with what was read before.
async function attempt(path) {
  try {
    return await load(path);
  } catch (error) {
    const before = loaded.get(path);
    loaded.set(path, { ...before, error: error.message });
    return before?.error !== error.message;
  }
}

// tick asks for all that the view needs, and draws it. A later one takes over.
async function tick() {
  clearTimeout(timer);
  turn += 1;
  const mine = turn;
  asking ||= Date.now();
  let news = false;
  try {
    news = await load('data/overview');
    if (mine !== turn) return;
    if (news && loaded.size === 1) draw();
    const overview = loaded.get('data/overview').value;
    const { name, rest } = where();
    for (const path of views[name].needs?.(rest, overview) || []) news = await attempt(path) || news;
    if (mine !== turn) return;
    news = news || failure !== '';
    failure = '';
    answered = Date.now();
  } catch (error) {
    if (mine !== turn) return;
    news = failure !== error.message;
    failure = error.message;
  }
  asking = 0;
  if (news) draw();
  frame();
  // A page that is not seen asks for nothing.
  if (!document.hidden) timer = setTimeout(tick, interval);
}

// live says how old the page is.
function live() {
  const last = answered ? `; last ${ago(answered)}` : '';
  if (failure) return h('span', { class: 'stopped' }, `No answer${last}`);
  if (asking && Date.now() - asking > silent) return h('span', { class: 'stopped' }, `Waiting for an answer${last}`);
  return h('span', { class: 'running' }, 'Live');
}

// frame draws what surrounds the view.
function frame() {
  const { name } = where();
  const overview = loaded.get('data/overview')?.value;
  render(document.getElementById('place'), overview ? [h('span', { class: 'kind' }, overview.cluster ? 'cluster' : 'host'), h('bdi', {}, cut(overview.place, 60))] : []);
  render(document.getElementById('nav'), Object.entries(views).filter(([, view]) => !view.hidden?.(overview)).map(([key, view]) => h('a', { href: `#/${key}`, 'aria-current': key === name ? 'page' : null }, view.label(overview))));
  render(document.getElementById('live'), live());
  render(document.getElementById('alert'), [failure, broken].filter(Boolean).map((text) => h('p', {}, text)));
  const needs = overview?.needs?.length ? [`You see a part. You lack the right to: ${overview.needs.join('; ')}.`] : [];
  const notes = [...needs, ...(overview?.notes || [])];
  render(document.getElementById('notes'), notes.length > 0 && h('details', { open: notes.length < 3 || null, 'aria-label': 'Notes' }, h('summary', {}, `${notes.length} note${notes.length === 1 ? '' : 's'}`), h('ul', {}, notes.slice(0, 50).map((note) => h('li', {}, cut(note, 1000))))));
}

// draw draws the view. One that cannot be drawn says so, and is tried again.
function draw() {
  drawn = Date.now();
  const main = document.getElementById('main');
  try {
    view(main);
    broken = '';
  } catch (error) {
    broken = `This view cannot be drawn: ${error.message}. The same is in skep status and skep inventory, and the others may work.`;
    render(main, h('p', { class: 'empty' }, 'There is nothing to show.'));
  }
  frame();
}

function view(main) {
  const { name, rest } = where();
  const overview = loaded.get('data/overview')?.value;
  if (!overview) {
    render(main, h('p', { class: 'empty' }, failure ? 'There is nothing to show yet.' : 'Reading…'));
    return;
  }
  const one = views[name];
  const data = Object.fromEntries((one.needs?.(rest, overview) || []).map((path) => [path, loaded.get(path)]));
  const content = one.draw({ overview, rest, data, redraw: draw, again: () => { draw(); tick(); } });
  document.title = `${one.title?.(rest) || one.label(overview)} · ${cut(overview.place, 40)} · Skep`;
  // Another view begins anew: no element of the one before is reused in it.
  render(main, h('div', { key: one.keeps ? name : `${name}/${rest.join('/')}`, class: `view view-${name}` }, content));
}

window.addEventListener('hashchange', () => {
  const { name, rest } = where();
  const now = `${name}/${rest.join('/')}`;
  draw();
  if (now !== shown) {
    shown = now;
    window.scrollTo(0, 0);
    // Who goes through a list stays in it.
    const at = document.activeElement;
    if (!views[name].keeps || at === document.body || !at.offsetParent) document.getElementById('main').focus({ preventScroll: true });
  }
  tick();
});
document.querySelector('.skip').addEventListener('click', (event) => {
  // The address of a view is behind the #, where the link's target would be.
  event.preventDefault();
  document.getElementById('main').focus();
});
window.addEventListener('resize', () => draw());
document.addEventListener('visibilitychange', () => {
  if (document.hidden) clearTimeout(timer);
  else tick();
});
for (const scheme of ['(prefers-color-scheme: dark)', '(forced-colors: active)']) matchMedia(scheme).addEventListener('change', () => draw());
// How long ago something was is said anew.
setInterval(() => {
  if (document.hidden) return;
  if (Date.now() - drawn >= 10000) draw();
  else frame();
}, 1000);
tick();
