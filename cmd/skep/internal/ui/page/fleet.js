// The fleet: applications by nodes, as a grid to look at and as a table to read.

import { h } from './dom.js';
import { grid } from './grid.js';
import { badge, icon, states, urgency } from './state.js';
import { cut, lacking, linkTo, nameOf, nodeLink, number, plural } from './text.js';
import { table } from './node.js';

// What the user chose: the state that rows and columns must have somewhere, their order, and how they are shown.
const choice = { state: '', order: 'urgency', form: 'grid', size: 'large', search: '' };

// at is the cell that has the focus, by the names of its row and column.
let at = null;

// longest is how many rows the table has at once.
const longest = 300;

export const fleet = {
  label: () => 'Fleet',
  hidden: (overview) => overview && !overview.cluster,
  draw({ overview, redraw }) {
    if (overview.nodes.length === 0) {
      const why = lacking(overview, 'bpfnodes', 'nodes');
      return [h('div', { class: 'heading' }, h('h1', {}, 'Fleet')),
        h('p', { class: 'empty' }, why ? `${why} Applications shows on how many nodes each runs.` : 'No node reports yet.')];
    }
    const seen = look(overview);
    const set = (name, value) => {
      choice[name] = value;
      redraw();
    };
    return [
      h('div', { class: 'heading' }, h('h1', {}, 'Fleet'), h('p', { class: 'fine' }, `${plural(overview.applications.length, 'application')} × ${plural(overview.nodes.length, 'node')}`)),
      legend(seen, set),
      h('div', { class: 'tools' },
        h('label', { class: 'field' }, 'Find ', h('input', { type: 'search', value: choice.search, placeholder: 'application or node', on: { input: (event) => set('search', event.target.value) } })),
        h('label', { class: 'field' }, 'Order ', h('select', { on: { change: (event) => set('order', event.target.value) } }, h('option', { value: 'urgency', selected: choice.order === 'urgency' }, 'problems first'), h('option', { value: 'name', selected: choice.order === 'name' }, 'by name'))),
        toggle('Form', 'form', { grid: 'Grid', table: 'Table' }, set),
        choice.form === 'grid' && toggle('Cells', 'size', { large: 'Large', small: 'Small' }, set)),
      choice.form === 'grid' ? picture(seen, overview, redraw) : list(seen, overview),
    ];
  },
};

// look finds the rows and columns that are shown, in their order, and counts states.
function look({ applications, nodes }) {
  const tally = Object.fromEntries(Object.keys(states).map((letter) => [letter, 0]));
  const worstOf = (letters) => letters.reduce((worst, letter) => Math.min(worst, urgency[letter] ?? 99), 99);
  const columnWorst = new Array(nodes.length).fill(99);
  const columnHas = new Array(nodes.length).fill(choice.state === '');
  const rows = [];
  applications.forEach((a, row) => {
    let worst = 99;
    let has = choice.state === '';
    for (let i = 0; i < nodes.length; i += 1) {
      const letter = a.states[i] || '.';
      tally[letter] += 1;
      const rank = urgency[letter] ?? 99;
      worst = Math.min(worst, rank);
      columnWorst[i] = Math.min(columnWorst[i], rank);
      if (letter === choice.state) {
        has = true;
        columnHas[i] = true;
      }
    }
    if (has) rows.push({ row, worst, name: nameOf(a) });
  });
  let columns = nodes.map((n, column) => ({ column, worst: columnWorst[column], name: n.name })).filter(({ column }) => columnHas[column]);
  let found = rows;
  if (choice.search) {
    const wanted = choice.search.toLowerCase();
    const some = found.filter(({ name }) => name.includes(wanted));
    const others = columns.filter(({ name }) => name.includes(wanted));
    if (some.length > 0 || others.length === 0) found = some;
    if (others.length > 0) columns = others;
  }
  if (choice.order === 'urgency') {
    const by = (x, y) => x.worst - y.worst;
    found.sort(by);
    columns.sort(by);
  }
  return { tally, rows: found, columns, worstOf };
}

function legend({ tally }, set) {
  return h('div', { class: 'legend', role: 'group', 'aria-label': 'States; choose one to see where it is' },
    h('button', { type: 'button', 'aria-pressed': String(choice.state === ''), on: { click: () => set('state', '') } }, 'All'),
    Object.keys(states).filter((letter) => tally[letter] > 0).map((letter) => h('button', {
      key: letter, type: 'button', 'aria-pressed': String(choice.state === letter), on: { click: () => set('state', choice.state === letter ? '' : letter) },
    }, icon(letter), h('span', {}, states[letter].name), h('strong', {}, number(tally[letter])))));
}

function toggle(label, name, values, set) {
  return h('div', { class: 'toggle', role: 'group', 'aria-label': label }, Object.entries(values).map(([value, text]) => h('button', {
    type: 'button', 'aria-pressed': String(choice[name] === value), on: { click: () => set(name, value) },
  }, text)));
}

function picture({ rows, columns }, { applications, nodes }, redraw) {
  if (rows.length === 0 || columns.length === 0) return h('p', { class: 'empty' }, 'No application or node has this.');
  const pair = (row, column) => ({ a: applications[rows[row].row], n: nodes[columns[column].column], letter: applications[rows[row].row].states[columns[column].column] || '.', message: applications[rows[row].row].messages?.[columns[column].column] });
  const place = at && rows.findIndex((r) => r.name === at.row) >= 0 ? at : null;
  const row = place ? rows.findIndex((r) => r.name === place.row) : 0;
  const column = place ? Math.max(0, columns.findIndex((c) => c.name === place.column)) : 0;
  const { a, n, letter, message } = pair(row, column);
  return [
    h('div', {
      key: 'grid', class: 'card grid', role: 'grid', tabindex: 0, own: true, 'aria-label': 'States of applications on nodes; the arrow keys move, Enter opens the application', ref: (element) => grid(element, {
        rows: rows.map((r) => r.name), columns: columns.map((c) => c.name), row, column, size: choice.size,
        at: (i, j) => applications[rows[i].row].states[columns[j].column] || '.',
        label: (i, j) => {
          const one = pair(i, j);
          return `${cut(nameOf(one.a), 200)} on ${cut(one.n.name, 200)}: ${states[one.letter].name}`;
        },
        chosen: (i, j) => {
          at = { row: rows[i].name, column: columns[j].name };
          redraw();
        },
        open: (i, j) => { location.hash = linkTo(pair(i, j).a); },
      }),
    }),
    h('p', { class: 'chosen-cell line' }, badge(letter), ' ', h('a', { href: linkTo(a) }, h('bdi', {}, cut(nameOf(a), 80))), ' on ', h('a', { href: nodeLink(n.name) }, h('bdi', {}, cut(n.name, 80))),
      message && h('span', { class: 'why' }, cut(message, 500))),
  ];
}

function list({ rows, columns }, { applications, nodes }) {
  const all = [];
  for (const { row } of rows) {
    for (const { column } of columns) {
      const letter = applications[row].states[column] || '.';
      if (choice.state ? letter === choice.state : letter !== 'N' && letter !== '.') all.push({ a: applications[row], n: nodes[column], letter, message: applications[row].messages?.[column] });
    }
  }
  if (choice.order === 'urgency') all.sort((x, y) => urgency[x.letter] - urgency[y.letter]);
  if (all.length === 0) return h('p', { class: 'empty' }, 'No application or node has this.');
  return [
    h('div', { key: 'table', class: 'card' }, table('States of applications on nodes', ['State', 'Application', 'Node', 'Message'], all.slice(0, longest).map(({ a, n, letter, message }) => [
      badge(letter), h('a', { href: linkTo(a) }, h('bdi', {}, cut(nameOf(a), 80))), h('a', { href: nodeLink(n.name) }, h('bdi', {}, cut(n.name, 80))), cut(message || '', 300),
    ]))),
    all.length > longest && h('p', { class: 'fine' }, `${plural(all.length - longest, 'more row')}: choose a state, or look for a name`),
  ];
}
