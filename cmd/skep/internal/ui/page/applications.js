// The applications, and the way of one of them from a commit to the nodes.

import { h } from './dom.js';
import { badge, icon, overall, urgency } from './state.js';
import { ago, cut, lacking, linkTo, nameOf, nodeLink, number, plural } from './text.js';
import { stale, table } from './node.js';
import { picture } from './pipeline.js';

// filter is what the user looks for, among names.
let filter = '';

// most is how many applications the list draws at once.
const most = 400;

const order = { Denied: 0, Failed: 1, Unknown: 2, Waiting: 3, Ready: 4 };

// asked are the applications of a cluster whose nodes the user wants to be asked.
const asked = new Set();

const sorted = (overview) => [...overview.applications].sort((a, b) => order[overall(a)] - order[overall(b)]);
const find = (rest, all) => (rest.length === 3 ? all.find((a) => linkTo(a) === `#/applications/${rest.map(encodeURIComponent).join('/')}`) : all[0]);
const path = (a) => `data/application?${new URLSearchParams({ kind: a.kind, namespace: a.namespace || '', name: a.name })}`;

export const applications = {
  label: () => 'Applications',
  title: (rest) => rest.length === 3 && rest[2],
  keeps: true,
  needs(rest, overview) {
    const chosen = find(rest, sorted(overview));
    return chosen && (!overview.cluster || asked.has(linkTo(chosen))) ? [path(chosen)] : [];
  },
  draw({ overview, rest, data, redraw, again }) {
    const all = sorted(overview);
    const chosen = find(rest, all);
    return h('div', { class: `split${rest.length === 3 ? ' chosen' : ''}` },
      list(all, chosen, redraw),
      h('div', { key: chosen ? linkTo(chosen) : 'none', class: 'detail' }, chosen ? detail(chosen, overview, data[path(chosen)], again) :
        h('p', { class: 'empty' }, rest.length === 3 ? `There is no application ${cut(rest[2], 80)} that you may see.` : none(overview))));
  },
};

function none(overview) {
  const why = lacking(overview, 'bpfapplications', 'applications');
  return why ? `${why} kubectl skep ui -n NAMESPACE shows those of one namespace.` : 'There is no application yet: skep run --source reads definitions, and kubectl apply stores them.';
}

function list(all, chosen, redraw) {
  const found = all.filter((a) => nameOf(a).includes(filter.toLowerCase()));
  return h('section', { class: 'list-of', 'aria-labelledby': 'all-applications' },
    h('div', { class: 'list-head' }, h('h2', { id: 'all-applications' }, plural(all.length, 'application')),
      h('input', { type: 'search', value: filter, placeholder: 'Filter by name', 'aria-label': 'Filter applications by name', on: { input: (event) => { filter = event.target.value; redraw(); } } })),
    h('ul', { class: 'rows' }, found.slice(0, most).map((a) => h('li', { key: linkTo(a) }, h('a', { href: linkTo(a), 'aria-current': a === chosen ? 'true' : null },
      icon(overall(a), `${overall(a)}:`), h('span', { class: 'text' },
        h('span', { class: 'first' }, h('bdi', {}, cut(a.name, 60))),
        h('span', { class: 'fine' }, h('bdi', {}, a.namespace ? cut(a.namespace, 40) : 'cluster-wide'), a.ready === 'True' ? '' : ` · ${a.why || 'not ready'}`)))))),
    found.length > most && h('p', { class: 'fine' }, `${plural(found.length - most, 'more')}: filter by name`),
    found.length === 0 && all.length > 0 && h('p', { class: 'empty' }, 'No name has this in it.'));
}

function detail(a, overview, views, again) {
  return [
    h('div', { class: 'heading' }, h('div', {}, h('a', { class: 'back', href: '#/applications' }, 'All applications'),
      h('h1', {}, h('bdi', {}, cut(nameOf(a), 120)))), h('p', { class: 'fine line' }, badge(overall(a)), ` ${a.kind}`, a.changed ? ` · changed ${ago(Date.parse(a.changed))}` : '')),
    h('div', { class: 'card picture', own: true, ref: (el) => picture(el, a, overview) }),
    reasons('Denied', a.reasons, 'Failed'),
    reasons('Warnings', a.warnings, 'Waiting'),
    reasons('Policies in mode Audit would deny', a.audited, 'Waiting'),
    problems(a, overview),
    places(a, overview, views, again),
    h('section', { class: 'block' }, h('h2', {}, 'Image'), h('dl', { class: 'facts' }, [
      ['Reference', a.image], ['Digest', a.digest], ['Signers', a.signers.join(', ') || 'none'], ['Policies', a.policies.join(', ')],
    ].filter(([, value]) => value).map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', { class: name === 'Digest' ? 'mono' : '' }, h('bdi', {}, cut(value, 400))))))),
  ];
}

function reasons(title, all, state) {
  return all.length > 0 && h('section', { key: title, class: 'block' }, h('h2', {}, title), h('ul', { class: 'card reasons' }, all.map((r) => h('li', {},
    h('p', { class: 'line' }, icon(state), h('span', { class: 'mono strong' }, cut(r.rule || '', 200)), r.path && h('span', { class: 'fine' }, 'at ', h('span', { class: 'mono' }, cut(r.path, 200)))),
    h('p', {}, cut(r.message, 2000)),
    r.fix && h('p', {}, h('span', { class: 'fix' }, 'Fix'), ' ', cut(r.fix, 1000))))));
}

// problems are the nodes that do not run the application as it is meant, those together that say the same.
function problems(a, overview) {
  const groups = new Map();
  [...a.states].forEach((letter, i) => {
    if (!'FUWPR'.includes(letter)) return;
    const key = `${letter}${a.messages?.[i] || ''}`;
    if (!groups.has(key)) groups.set(key, { letter, message: a.messages?.[i], nodes: [] });
    groups.get(key).nodes.push(overview.nodes[i].name);
  });
  if (groups.size === 0) return null;
  const all = [...groups.values()].sort((x, y) => urgency[x.letter] - urgency[y.letter] || y.nodes.length - x.nodes.length);
  return h('section', { key: 'problems', class: 'block' }, h('h2', {}, overview.cluster ? 'Nodes where it does not run as defined' : 'It does not run as defined'),
    h('ul', { class: 'card reasons' }, all.slice(0, 50).map((g) => h('li', { key: `${g.letter}${g.message}` },
      h('p', { class: 'line' }, badge(g.letter), h('span', {}, overview.cluster ? `on ${plural(g.nodes.length, 'node')}` : '')),
      g.message && h('p', {}, g.message),
      h('p', { class: 'names' }, g.nodes.slice(0, 12).map((name, i) => [i > 0 && ', ', h('a', { href: nodeLink(name) }, h('bdi', {}, cut(name, 80)))]), g.nodes.length > 12 && ` and ${g.nodes.length - 12} more`)))),
    all.length > 50 && h('p', { class: 'fine' }, 'More is in Fleet.'));
}

// places are where it is attached, on the nodes that were asked.
function places(a, overview, views, again) {
  const ask = h('button', {
    type: 'button', on: {
      click: () => {
        asked.add(linkTo(a));
        again();
      },
    },
  }, 'Ask its nodes');
  if (overview.cluster && !asked.has(linkTo(a))) return section(h('p', { class: 'line' }, ask, h('span', { class: 'fine' }, 'each node is asked, the first 50')));
  if (!views?.value) return section(stale(views) || h('p', { class: 'empty' }, 'Reading…'));
  const rows = [];
  const logs = new Map();
  for (const n of views.value.items || []) {
    for (const one of n.applications || []) {
      if (one.verifierLog && !logs.has(one.verifierLog)) logs.set(one.verifierLog, n.metadata.name);
      for (const t of one.attachments || []) {
        rows.push([badge(t.state), ...(overview.cluster ? [h('a', { href: nodeLink(n.metadata.name) }, h('bdi', {}, cut(n.metadata.name, 80)))] : []),
          h('bdi', { class: 'mono' }, cut(t.program, 60)), h('span', { class: 'mono' }, cut(t.hook, 60)), h('bdi', {}, cut(t.target.text, 100)), t.position ? `${t.position} of ${t.of}` : '', t.runs === undefined ? '' : number(t.runs)]);
      }
    }
  }
  return section(stale(views),
    rows.length === 0 ? h('p', { class: 'empty' }, 'It is attached nowhere.') : h('div', { class: 'card' }, table('Where it is attached',
      ['State', ...(overview.cluster ? ['Node'] : []), 'Program', 'Hook', 'Target', 'Place', 'Runs'], rows.slice(0, 300))),
    (rows.length > 300 || views.value.metadata?.continue) && h('p', { class: 'fine' }, 'There are more than these: kubectl get bpfattachments lists all.'),
    [...logs].slice(0, 3).map(([log, name]) => h('details', { key: name, class: 'log', open: true, 'aria-label': 'Log of the verifier' }, h('summary', {}, 'Log of the verifier', overview.cluster && ` on ${cut(name, 80)}`), h('pre', { tabindex: 0 }, log))));
}

function section(...content) {
  return h('section', { key: 'places', class: 'block' }, h('h2', {}, 'Where it is attached'), content);
}
