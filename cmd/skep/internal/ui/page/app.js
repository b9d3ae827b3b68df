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

const loaded = new Map();
let failure = '';
let answered = 0;
let shown = '';
let timer = 0;

// where reads the address of the view: its name and what follows.
function where() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
  return views[name] ? { name, rest } : { name: 'applications', rest: [] };
}

// load asks for data, and reports whether they are others than before.
async function load(path) {
  const before = loaded.get(path);
  const answer = await fetch(path, { headers: before?.tag ? { 'If-None-Match': before.tag } : {}, signal: AbortSignal.timeout(30000) }).catch(() => {
    throw new Error('skep ui does not answer. Start it again, and open the address that it prints.');
  });
  if (answer.status === 304) return false;
  const type = answer.headers.get('Content-Type') || '';
  const value = type.startsWith('application/json') ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Error(value.error || `the page's process answers ${answer.status}`);
  loaded.set(path, { tag: answer.headers.get('ETag'), value, at: Date.now(), last: before?.value, lastAt: before?.at });
  return true;
}

// attempt asks for data that a view can do without: why they are missing is data, too.
async function attempt(path) {
  try {
    return await load(path);
  } catch (error) {
    const same = loaded.get(path)?.error === error.message;
    loaded.set(path, { error: error.message });
    return !same;
  }
}

// tick asks for all that the view needs, and draws it.
async function tick() {
  clearTimeout(timer);
  const asked = location.hash;
  let news = false;
  try {
    news = await load('data/overview');
    if (news && loaded.size === 1) draw();
    const overview = loaded.get('data/overview').value;
    const { name, rest } = where();
    for (const path of views[name].needs?.(rest, overview) || []) news = (views[name].optional ? await attempt(path) : await load(path)) || news;
    news = news || failure !== '';
    failure = '';
    answered = Date.now();
  } catch (error) {
    news = failure !== error.message;
    failure = error.message;
  }
  if (news) draw();
  frame();
  clearTimeout(timer);
  timer = setTimeout(() => (document.hidden ? (timer = setTimeout(tick, interval)) : tick()), asked === location.hash ? interval : 0);
}

// frame draws what surrounds the view.
function frame() {
  const { name } = where();
  const overview = loaded.get('data/overview')?.value;
  render(document.getElementById('place'), overview ? [h('span', { class: 'kind' }, overview.cluster ? 'cluster' : 'host'), h('bdi', {}, cut(overview.place, 60))] : []);
  render(document.getElementById('nav'), Object.entries(views).filter(([, view]) => !view.hidden?.(overview)).map(([key, view]) => h('a', { href: `#/${key}`, 'aria-current': key === name ? 'page' : null }, view.label(overview))));
  render(document.getElementById('live'), failure ? h('span', { class: 'stopped' }, answered ? `No answer; last ${ago(answered)}` : 'No answer') : h('span', { class: 'running' }, 'Live'));
  render(document.getElementById('alert'), failure && h('p', {}, failure));
  const notes = overview?.notes || [];
  render(document.getElementById('notes'), notes.length > 0 && h('details', { open: notes.length < 3 || null, 'aria-label': 'Notes' }, h('summary', {}, `${notes.length} note${notes.length === 1 ? '' : 's'}`), h('ul', {}, notes.slice(0, 50).map((note) => h('li', {}, cut(note, 1000))))));
}

// draw draws the view.
function draw() {
  const { name, rest } = where();
  const overview = loaded.get('data/overview')?.value;
  const main = document.getElementById('main');
  frame();
  if (!overview) {
    render(main, h('p', { class: 'empty' }, failure ? 'There is nothing to show yet.' : 'Reading…'));
    return;
  }
  const view = views[name];
  const data = Object.fromEntries((view.needs?.(rest, overview) || []).map((path) => [path, loaded.get(path)]));
  const drawn = view.draw({ overview, rest, data, redraw: draw, again: () => { draw(); tick(); } });
  document.title = `${view.title?.(rest) || view.label(overview)} · ${cut(overview.place, 40)} · Skep`;
  // Another view begins anew: no element of the one before is reused in it.
  render(main, h('div', { key: `${name}/${rest.join('/')}`, class: `view view-${name}` }, drawn));
}

window.addEventListener('hashchange', () => {
  const { name, rest } = where();
  const now = `${name}/${rest.join('/')}`;
  draw();
  if (now !== shown) {
    shown = now;
    window.scrollTo(0, 0);
    document.getElementById('main').focus({ preventScroll: true });
  }
  tick();
});
document.querySelector('.skip').addEventListener('click', (event) => {
  // The address of a view is behind the #, where the link's target would be.
  event.preventDefault();
  document.getElementById('main').focus();
});
window.addEventListener('resize', () => draw());
tick();
