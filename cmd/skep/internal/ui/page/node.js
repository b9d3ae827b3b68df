// One node: which programs a packet meets, in their order, what else runs, and who holds what is not Skep's.

import { h } from './dom.js';
import { badge, icon } from './state.js';
import { ago, bytes, cut, lacking, linkTo, nameOf, nanoseconds, nodeLink, number, percent, plural, rate } from './text.js';

// nameFrom is the node that the address names, or the first.
function nameFrom(rest, overview) { return rest[0] || overview.nodes[0]?.name || ''; }

function path(name) { return `data/node?name=${encodeURIComponent(name)}`; }

export const node = {
  label: (overview) => (overview && !overview.cluster ? 'This host' : 'Node'),
  title: (rest) => rest[0],
  needs: (rest, overview) => (nameFrom(rest, overview) ? [path(nameFrom(rest, overview))] : []),
  draw({ overview, rest, data }) {
    const name = nameFrom(rest, overview);
    const loaded = data[path(name)];
    const n = loaded?.value;
    return [
      h('div', { class: 'heading' }, h('h1', {}, h('bdi', {}, cut(name || 'No node', 80))), overview.nodes.length > 1 && choose(overview, name)),
      stale(loaded),
      n ? body(n, loaded) : !loaded?.error && h('p', { class: 'empty' }, name ? 'Reading…' : lacking(overview, 'bpfnodes', 'nodes') || 'No node reports.'),
    ];
  },
};

// stale says why data are not newer, or are missing.
export function stale(loaded) {
  return loaded?.error && h('p', { class: 'error' }, loaded.error.replace(/\.?$/, '.'), loaded.value && ` What follows was read ${ago(loaded.read)}.`);
}

// choose leads to another node.
function choose(overview, name) {
  return h('label', { class: 'field' }, 'Node ', h('input', {
    type: 'search', list: 'node-names', placeholder: 'name of a node', on: {
      change: (event) => {
        const wanted = event.target.value.trim();
        if (overview.nodes.some((one) => one.name === wanted)) {
          event.target.value = '';
          location.hash = nodeLink(wanted);
        }
      },
    },
  }), h('datalist', { id: 'node-names' }, overview.nodes.filter((one) => one.name !== name).map((one) => h('option', { value: one.name }))));
}

function body(n, loaded) {
  const before = new Map();
  const programs = new Map((n.programs || []).map((p) => [p.id, p]));
  counts(loaded.last, (key, runs) => before.set(key, runs));
  const seconds = passed(loaded);
  const speed = (key, runs) => (before.has(key) && seconds > 0 && runs >= before.get(key) ? (runs - before.get(key)) / seconds : null);
  return [
    facts(n),
    (n.leftOut || []).map((text) => h('p', { class: 'note' }, text)),
    loads(n),
    interfaces(n, programs, speed),
    applications(n),
    places(n, programs),
    others(n),
  ];
}

// passed is how many seconds are between two answers: 0 where a clock was set, or the machine slept, which stops one of the two clocks.
function passed(loaded) {
  const ran = (loaded.at - (loaded.lastAt || loaded.at)) / 1000;
  return Math.abs((loaded.read - loaded.lastRead) / 1000 - ran) < 5 ? ran : 0;
}

// counts calls back with each count of runs, by a key that stays.
function counts(n, each) {
  for (const i of n?.interfaces || []) (i.members || []).forEach((m, at) => m.runs !== undefined && each(memberKey(i, m, at), m.runs));
}

function memberKey(i, m, at) { return `${i.target.text}|${i.hook}|${m.application ? nameOf(m.application) : m.programId || at}|${m.program}`; }

function facts(n) {
  const k = n.kernel || {};
  const rows = [
    ['Kernel', [k.release, k.architecture].filter(Boolean).join(' · ')],
    ['Agent', n.agent?.version],
    ['Types of the kernel (BTF)', k.btf === undefined ? '' : k.btf ? 'yes' : 'no'],
    ['Lockdown', k.lockdown],
    ['Hooks', k.hooks ? plural(k.hooks.length, 'hook') : ''],
    ['Observed', n.observed ? new Date(n.observed).toLocaleTimeString('en-GB') : ''],
  ].filter(([, value]) => value);
  return h('dl', { class: 'facts' }, rows.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
}

function loads(n) {
  if (!n.loads?.length) return null;
  return section('Loading now', h('ul', { class: 'plain loads' }, n.loads.map((l) => h('li', {}, icon(l.waiting ? 'P' : 'W'), ' ', appLink(l.application),
    l.since ? ` since ${ago(Date.parse(l.since))}` : '', l.waiting ? ` · waits: ${l.waiting}` : ''))));
}

function section(title, ...content) {
  return h('section', { key: title, class: 'block' }, h('h2', {}, title), content);
}

function appLink(application) { return h('a', { href: linkTo(application), class: 'app' }, h('bdi', {}, cut(nameOf(application), 60))); }

// direction is where a packet comes from and goes to at a hook.
function direction(hook) {
  if (/egress|tx/.test(hook)) return ['from the stack', 'to the wire'];
  if (/netkit\/primary/.test(hook)) return ['from the host', 'to the pod'];
  if (/netkit\/peer/.test(hook)) return ['from the pod', 'to the host'];
  return ['from the wire', 'to the stack'];
}

function interfaces(n, programs, speed) {
  if (!n.interfaces?.length) return !n.leftOut && section('Interfaces', h('p', { class: 'empty' }, 'No program runs on an interface in an order.'));
  const byDevice = Map.groupBy(n.interfaces, (i) => i.target.text || i.target.interface);
  return section('Interfaces', [...byDevice].map(([device, hooks]) => h('article', { key: device, class: 'card device' },
    h('h3', {}, h('bdi', {}, cut(device, 80))),
    hooks.map((i) => hookRow(i, programs, speed)))));
}

function hookRow(i, programs, speed) {
  const [from, to] = direction(i.hook);
  return h('div', { key: i.hook, class: 'hook' },
    h('h4', {}, h('span', { class: 'mono' }, i.hook), i.mode && h('span', { class: 'chip', title: i.modeReason || null }, i.mode)),
    i.error && h('p', { class: 'note' }, i.error),
    h('ol', { class: 'chain', 'aria-label': `Programs at ${i.hook}, in the order in which a packet meets them` },
      h('li', { class: 'end' }, from),
      (i.members || []).map((m, at) => member(i, m, at, programs, speed)),
      h('li', { class: 'end' }, to)));
}

function member(i, m, at, programs, speed) {
  const key = memberKey(i, m, at);
  const program = programs.get(m.programId || (i.members?.length === 1 ? i.programId : 0));
  const moving = m.runs !== undefined && speed(key, m.runs);
  return h('li', { key, class: `member${m.application ? '' : ' foreign'}${m.switchedOff ? ' off' : ''}` },
    h('p', { class: 'name' }, h('span', { class: 'place' }, at + 1), h('bdi', { class: 'mono' }, cut(m.program || program?.name || 'program', 40))),
    h('p', {}, m.application ? appLink(m.application) : h('span', { class: 'unmanaged' }, 'not Skep’s', holders(program))),
    m.switchedOff && h('p', { class: 'note' }, 'switched off: it does not run'),
    runs(m, moving, program),
    m.verdicts && verdicts(m.verdicts),
    h('p', { class: 'fine' }, [m.priority ? `priority ${m.priority}` : '', m.preference ? `preference ${m.preference}` : '',
      m.proceedOn?.length ? `next after ${m.proceedOn.join(', ')}` : '', m.programId ? `id ${m.programId}` : ''].filter(Boolean).join(' · ')),
    (m.notes || []).map((text) => h('p', { class: 'note' }, text)));
}

function runs(m, moving, program) {
  if (m.runs !== undefined) {
    return h('p', { class: 'runs' }, h('strong', {}, number(m.runs)), ` run${m.runs === 1 ? '' : 's'}`, moving > 0 && h('span', { class: 'moving' }, `+${rate(moving)}`));
  }
  const cost = program?.cost;
  if (!cost?.windowSeconds) return null;
  return h('p', { class: 'runs' }, h('strong', {}, rate(cost.runs / cost.windowSeconds)), ` runs, measured ${ago(Date.parse(cost.measured))}`);
}

function holders(program) {
  const all = [...(program?.holders || []).map((p) => `${p.name} (${p.pid})`), ...(program?.pins || []).map((pin) => `pin ${pin}`)];
  return all.length > 0 && h('span', { class: 'fine' }, ` · held by ${cut(all.join(', '), 120)}`);
}

// verdicts is a bar with the share of each answer, and the counts as text.
function verdicts(all) {
  const list = Object.entries(all).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  const sum = list.reduce((total, [, n]) => total + n, 0);
  if (sum === 0) return null;
  let x = 0;
  return h('div', { class: 'verdicts' },
    h('svg', { viewBox: '0 0 100 6', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, list.map(([name, n]) => {
      const width = 100 * n / sum;
      x += width;
      return h('rect', { key: name, class: `verdict-${name.toLowerCase()}`, x: x - width, y: 0, width: Math.max(width - 0.6, 0.4), height: 6 });
    })),
    h('ul', {}, list.map(([name, n]) => h('li', { key: name, class: `verdict-${name.toLowerCase()}` }, h('span', {}, name), ' ', number(n)))));
}

function applications(n) {
  return section('Applications', !n.applications?.length ? h('p', { class: 'empty' }, 'No application is meant for this node.') :
    h('div', { class: 'card list' }, n.applications.map((a) => h('details', { key: `${a.kind}/${nameOf(a)}`, 'aria-label': cut(nameOf(a), 100) },
      h('summary', {}, badge(a.state), h('bdi', { class: 'strong' }, cut(nameOf(a), 60)), h('span', { class: 'fine' },
        [a.attachments?.length || !n.leftOut ? plural(a.attachments?.length || 0, 'attachment') : '', a.pods?.length ? plural(a.pods.length, 'pod') : '', a.retained ? 'previous version' : ''].filter(Boolean).join(' · ')),
      a.message && h('span', { class: 'why' }, cut(a.message, 200))),
      h('p', {}, appLink(a)),
      a.error && h('p', { class: 'error' }, a.error),
      a.pods?.length > 0 && h('p', {}, h('span', { class: 'fine' }, 'Pods: '), cut(a.pods.join(', '), 600)),
      attachments(a),
      a.verifierLog && h('details', { class: 'log', 'aria-label': 'Log of the verifier' }, h('summary', {}, 'Log of the verifier'), h('pre', { tabindex: 0 }, a.verifierLog))))),
  );
}

function attachments(a) {
  if (!a.attachments?.length) return null;
  return table('Attachments', ['State', 'Program', 'Hook', 'Target', 'Place', 'Runs'], a.attachments.map((t) => [
    badge(t.state), h('bdi', { class: 'mono' }, cut(t.program, 60)), h('span', { class: 'mono' }, t.hook), h('bdi', {}, cut(t.target.text, 100)),
    t.position ? `${t.position} of ${t.of}` : '', t.runs === undefined ? '' : number(t.runs),
  ]), (i) => [a.attachments[i].message, ...(a.attachments[i].notes || [])].filter(Boolean));
}

// table is a table whose rows may have notes below them.
export function table(caption, header, rows, notes) {
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption }, h('table', {},
    h('caption', { class: 'hidden' }, caption),
    h('thead', {}, h('tr', {}, header.map((name) => h('th', { scope: 'col' }, name)))),
    h('tbody', {}, rows.map((row, i) => [
      h('tr', {}, row.map((cell, at) => h('td', { 'data-label': header[at] }, cell))),
      notes?.(i).length > 0 && h('tr', { class: 'notes' }, h('td', { colspan: header.length }, notes(i).map((text) => h('p', { class: 'note' }, text)))),
    ]))));
}

// places are attachments elsewhere than on an interface: functions, tracepoints, cgroups and binaries.
function places(n, programs) {
  const rows = [];
  for (const a of n.applications || []) {
    for (const t of a.attachments || []) {
      if (t.target.interface && !t.target.pod) continue;
      rows.push([badge(t.state), h('span', { class: 'mono' }, t.hook), h('bdi', {}, cut(t.target.text, 100)), appLink(a), h('bdi', { class: 'mono' }, cut(t.program, 40)), spent(programs.get(t.programId))]);
    }
  }
  return rows.length > 0 && section('Pods, functions and other places',
    h('div', { class: 'card' }, table('Pods, functions and other places', ['State', 'Hook', 'Where', 'Application', 'Program', 'Runs'], rows.slice(0, 500))),
    rows.length > 500 && h('p', { class: 'note' }, `${plural(rows.length - 500, 'more place')}: see skep status -o json`));
}

function spent(program) {
  const cost = program?.cost;
  return cost?.windowSeconds ? `${rate(cost.runs / cost.windowSeconds)} · ${percent(cost.nanoseconds / 1e9 / cost.windowSeconds)} CPU` : '';
}

function others(n) {
  const all = (n.programs || []).filter((p) => !p.application && !p.chain);
  if (n.others) return section('Programs of others', h('p', {}, `${plural(n.others.programs, 'program')} of ${plural(n.others.applications, 'application')} that you may not see.`));
  if (all.length === 0) return !n.leftOut && section('Programs of others', h('p', { class: 'empty' }, 'The kernel has no program that is not Skep’s.'));
  return section('Programs of others', h('div', { class: 'card' }, table('Programs of others', ['Id', 'Type', 'Name', 'Attached', 'Held by', 'Memory', 'Cost'], all.slice(0, 500).map((p) => [
    p.id, p.type, h('bdi', { class: 'mono' }, cut(p.name || '–', 40)), h('bdi', {}, cut((p.attached || []).join(', ') || '–', 120)),
    h('bdi', {}, cut([...(p.holders || []).map((one) => `${one.name} (${one.pid})`), ...(p.pins || [])].join(', ') || '–', 120)),
    p.memoryBytes ? bytes(p.memoryBytes) : '', costOf(p.cost),
  ]))), all.length > 500 && h('p', { class: 'note' }, `${plural(all.length - 500, 'more program')}: see skep inventory`));
}

function costOf(cost) {
  if (!cost?.windowSeconds) return '';
  return `${rate(cost.runs / cost.windowSeconds)} × ${nanoseconds(cost.runs ? cost.nanoseconds / cost.runs : 0)}`;
}
