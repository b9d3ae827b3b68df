// A grid of states that may have a thousand columns: a canvas draws the cells that are seen, and one element says to assistive technology
// which cell has the focus.

import { h, render } from './dom.js';
import { parts, states } from './state.js';
import { clean } from './text.js';

// sizes of cells, in pixels; small ones are for a look at the whole fleet.
const sizes = { large: { w: 20, h: 22, icon: 13 }, small: { w: 7, h: 9, icon: 0 } };

const shapes = Object.fromEntries(Object.entries(parts).map(([name, [fill, line]]) => [name, { fill: fill && new Path2D(fill), line: line && new Path2D(line) }]));

// grid draws into an element: what it shows are rows, columns, at(row, column), a letter, row and column, the cell that has the focus,
// label(row, column), open(row, column) and chosen(row, column), which is called when the focus moves.
export function grid(element, shown) {
  const isNew = !element.skepGrid;
  const g = element.skepGrid ||= new Grid(element);
  g.show(shown);
  if (isNew) g.reveal();
}

class Grid {
  constructor(element) {
    this.element = element;
    render(element, h('div', { class: 'grid-size' }), h('canvas', { 'aria-hidden': 'true' }), h('div', { role: 'row', class: 'hidden' }));
    [this.spacer, this.canvas, this.live] = element.children;
    element.addEventListener('scroll', () => this.later());
    element.addEventListener('keydown', (event) => this.key(event));
    element.addEventListener('focus', () => this.later());
    element.addEventListener('blur', () => this.later());
    element.addEventListener('mousedown', (event) => this.point(event));
    element.addEventListener('dblclick', () => this.shown.open(this.row, this.column));
    new ResizeObserver(() => this.later()).observe(element);
  }

  show(shown) {
    this.shown = shown;
    this.cell = sizes[shown.size];
    this.left = shown.size === 'large' ? Math.min(230, Math.max(128, this.element.clientWidth * 0.28)) : 12;
    this.top = shown.size === 'large' ? 92 : 12;
    this.heads = distinct(shown.columns);
    this.row = shown.row;
    this.column = shown.column;
    this.element.setAttribute('aria-rowcount', shown.rows.length);
    this.element.setAttribute('aria-colcount', shown.columns.length);
    this.spacer.style.setProperty('width', `${this.left + shown.columns.length * this.cell.w + 12}px`);
    this.spacer.style.setProperty('height', `${this.top + shown.rows.length * this.cell.h + 6}px`);
    // It is no higher than what it shows.
    this.element.style.setProperty('max-height', `${Math.max(140, this.top + shown.rows.length * this.cell.h + 26)}px`);
    this.say();
    this.draw();
  }

  // later draws at the next frame, once.
  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  // say names the cell that has the focus.
  say() {
    const { rows, columns } = this.shown;
    const any = rows.length > 0 && columns.length > 0;
    this.element.setAttribute('aria-activedescendant', any ? 'active-cell' : '');
    this.live.setAttribute('aria-rowindex', this.row + 1);
    render(this.live, any && h('div', { id: 'active-cell', role: 'gridcell', 'aria-selected': 'true', 'aria-colindex': this.column + 1 }, this.shown.label(this.row, this.column)));
  }

  key(event) {
    const { rows, columns } = this.shown;
    const page = Math.max(1, Math.floor((this.element.clientHeight - this.top) / this.cell.h) - 1);
    const far = event.ctrlKey || event.metaKey;
    const to = {
      ArrowUp: [far ? 0 : this.row - 1, this.column], ArrowDown: [far ? rows.length : this.row + 1, this.column],
      ArrowLeft: [this.row, far ? 0 : this.column - 1], ArrowRight: [this.row, far ? columns.length : this.column + 1],
      Home: [far ? 0 : this.row, 0], End: [far ? rows.length : this.row, columns.length],
      PageUp: [this.row - page, this.column], PageDown: [this.row + page, this.column],
    }[event.key];
    if (event.key === 'Enter' || event.key === ' ') this.shown.open(this.row, this.column);
    else if (to) this.move(...to);
    else return;
    event.preventDefault();
  }

  point(event) {
    const box = this.element.getBoundingClientRect();
    const x = event.clientX - box.left - this.left;
    const y = event.clientY - box.top - this.top;
    if (y < 0 || event.clientX - box.left > this.element.clientWidth || event.clientY - box.top > this.element.clientHeight) return;
    const row = Math.floor((y + this.element.scrollTop) / this.cell.h);
    const column = x < 0 ? this.column : Math.floor((x + this.element.scrollLeft) / this.cell.w);
    if (row < this.shown.rows.length && column < this.shown.columns.length) this.move(row, column);
  }

  // move gives another cell the focus.
  move(row, column) {
    this.row = Math.max(0, Math.min(row, this.shown.rows.length - 1));
    this.column = Math.max(0, Math.min(column, this.shown.columns.length - 1));
    this.reveal();
    this.say();
    this.shown.chosen(this.row, this.column);
    this.later();
  }

  // reveal scrolls to the cell that has the focus.
  reveal() {
    const e = this.element;
    const x = this.column * this.cell.w;
    const y = this.row * this.cell.h;
    const width = e.clientWidth - this.left;
    const height = e.clientHeight - this.top;
    if (x < e.scrollLeft) e.scrollLeft = x;
    if (x + this.cell.w > e.scrollLeft + width) e.scrollLeft = x + this.cell.w - width;
    if (y < e.scrollTop) e.scrollTop = y;
    if (y + this.cell.h > e.scrollTop + height) e.scrollTop = y + this.cell.h - height;
  }

  draw() {
    const e = this.element;
    const width = e.clientWidth;
    const height = e.clientHeight;
    if (width === 0 || !this.shown) return;
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.setProperty('width', `${width}px`);
    this.canvas.style.setProperty('height', `${height}px`);
    const c = this.canvas.getContext('2d');
    c.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const look = { style, color: (name) => style.getPropertyValue(`--${name}`).trim(), family: getComputedStyle(document.body).fontFamily };
    const from = { row: Math.floor(e.scrollTop / this.cell.h), column: Math.floor(e.scrollLeft / this.cell.w) };
    const to = {
      row: Math.min(this.shown.rows.length, Math.ceil((e.scrollTop + height - this.top) / this.cell.h)),
      column: Math.min(this.shown.columns.length, Math.ceil((e.scrollLeft + width - this.left) / this.cell.w)),
    };
    c.save();
    c.beginPath();
    c.rect(this.left, this.top, width - this.left, height - this.top);
    c.clip();
    this.drawCells(c, look, from, to);
    c.restore();
    this.drawRows(c, look, from, to, height);
    this.drawColumns(c, look, from, to, width);
  }

  drawCells(c, look, from, to) {
    const tones = Object.fromEntries(Object.values(states).map((s) => [s.tone, look.color(s.tone)]));
    const marks = { light: look.color('mark'), dark: look.color('dark-mark') };
    const { w, h: tall, icon } = this.cell;
    c.lineCap = 'round';
    for (let row = from.row; row < to.row; row += 1) {
      const y = this.top + row * tall - this.element.scrollTop;
      if (icon && row === this.row) {
        c.fillStyle = look.color('wash');
        c.fillRect(this.left, y, 1e5, tall);
      }
      for (let column = from.column; column < to.column; column += 1) {
        const x = this.left + column * w - this.element.scrollLeft;
        const state = states[this.shown.at(row, column)] || states['.'];
        if (icon) large(c, state, x + (w - icon) / 2, y + (tall - icon) / 2, icon / 16, tones, marks);
        else small(c, state, x, y, w - 1, tall - 1, tones, marks);
      }
    }
    const x = this.left + this.column * w - this.element.scrollLeft;
    const y = this.top + this.row * tall - this.element.scrollTop;
    if (this.shown.rows.length === 0) return;
    c.strokeStyle = look.color(document.activeElement === this.element ? 'focus' : 'strong');
    c.lineWidth = 2;
    const out = icon ? -1 : 1;
    c.strokeRect(x - out, y - out, w + 2 * out - (icon ? 0 : 1), tall + 2 * out - (icon ? 0 : 1));
  }

  drawRows(c, look, from, to, height) {
    c.fillStyle = look.color('surface');
    c.fillRect(0, 0, this.left - (this.cell.icon ? 4 : 0), height);
    if (!this.cell.icon) return;
    c.textBaseline = 'middle';
    for (let row = from.row; row < to.row; row += 1) {
      const y = this.top + row * this.cell.h - this.element.scrollTop + this.cell.h / 2;
      c.font = `${row === this.row ? '650 ' : ''}12.5px ${look.family}`;
      c.fillStyle = look.color('text');
      c.fillText(fit(c, this.shown.rows[row], this.left - 26), 12, y);
    }
  }

  drawColumns(c, look, from, to, width) {
    c.fillStyle = look.color('surface');
    c.fillRect(0, 0, width, this.top);
    if (!this.cell.icon) return;
    for (let column = from.column; column < to.column; column += 1) {
      const x = this.left + column * this.cell.w - this.element.scrollLeft + this.cell.w / 2;
      if (x < this.left) continue;
      c.save();
      c.translate(x, this.top - 8);
      c.rotate(-Math.PI / 2);
      c.textBaseline = 'middle';
      c.font = `${column === this.column ? '650 ' : ''}11.5px ${look.family}`;
      c.fillStyle = look.color(column === this.column ? 'text' : 'muted');
      c.fillText(fit(c, this.heads[column], this.top - 18), 0, 0);
      c.restore();
    }
    c.fillStyle = look.color('line');
    c.fillRect(0, this.top - 1, width, 1);
  }
}

// distinct leaves out what all names begin and end with, up to a separator: names of nodes differ in between.
function distinct(names) {
  if (names.length < 2) return names;
  const common = (all) => {
    let n = 0;
    while (n < all[0].length && all.every((name) => name[n] === all[0][n])) n += 1;
    const cutAt = Math.max(...['-', '.', '_'].map((c) => all[0].slice(0, n).lastIndexOf(c)));
    return cutAt + 1;
  };
  const begin = common(names);
  const end = common(names.map((name) => [...name].reverse().join('')));
  return names.map((name) => (name.length > begin + end ? name.slice(begin, name.length - Math.max(0, end - 1) - (end > 0 ? 1 : 0)) : name));
}

// fit shortens a name to a width, in its middle: names of nodes differ at their ends.
function fit(c, text, width) {
  const all = clean(text).slice(0, 300);
  if (c.measureText(all).width <= width) return all;
  let n = Math.max(2, Math.floor(all.length * width / c.measureText(all).width) - 1);
  const short = () => `${all.slice(0, Math.ceil(n / 2))}…${all.slice(all.length - Math.floor(n / 2))}`;
  while (n > 2 && c.measureText(short()).width > width) n -= 1;
  return short();
}

function large(c, state, x, y, scale, tones, marks) {
  const shape = shapes[state.shape];
  const open = !shape.fill || state.shape === 'half';
  c.save();
  c.translate(x, y);
  c.scale(scale, scale);
  c.lineWidth = 1.8;
  if (shape.fill) {
    c.fillStyle = tones[state.tone];
    c.fill(shape.fill);
  }
  if (shape.line) {
    c.strokeStyle = open ? tones[state.tone] : state.tone === 'wait' ? marks.dark : marks.light;
    c.stroke(shape.line);
  }
  c.restore();
}

// small draws a state into a few pixels: each has a form of its own.
function small(c, state, x, y, w, tall, tones, marks) {
  c.fillStyle = tones[state.tone];
  c.strokeStyle = tones[state.tone];
  c.lineWidth = 1.4;
  switch (state.shape) {
    case 'check':
      c.globalAlpha = 0.45;
      c.fillRect(x, y, w, tall);
      c.globalAlpha = 1;
      break;
    case 'diamond':
      c.fillRect(x, y, w, tall);
      c.strokeStyle = marks.light;
      c.beginPath();
      c.moveTo(x + 1, y + 1);
      c.lineTo(x + w - 1, y + tall - 1);
      c.moveTo(x + w - 1, y + 1);
      c.lineTo(x + 1, y + tall - 1);
      c.stroke();
      break;
    case 'triangle':
      c.beginPath();
      c.moveTo(x + w / 2, y);
      c.lineTo(x + w, y + tall);
      c.lineTo(x, y + tall);
      c.fill();
      break;
    case 'clock':
      c.strokeRect(x + 1, y + 1, w - 2, tall - 2);
      break;
    case 'half':
      c.fillRect(x, y, w / 2, tall);
      break;
    case 'pause':
      c.fillRect(x, y, w / 3, tall);
      c.fillRect(x + 2 * w / 3, y, w / 3, tall);
      break;
    default:
      c.fillRect(x + w / 2 - 1, y + tall / 2 - 1, 2, 2);
  }
}
