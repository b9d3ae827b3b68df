// Elements from descriptions. Text is text always: nothing here reads markup, so a name that looks like it does nothing.

import { clean } from './text.js';

const SVG = 'http://www.w3.org/2000/svg';

// h describes an element. Properties are attributes, but for: key, which has the element found again among its siblings; on, its listeners;
// css, its custom properties and styles; ref, called with the element after each drawing; own, which leaves its children alone.
export function h(tag, props, ...children) {
  return { tag, props: props || {}, children: children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false && c !== '') };
}

// render makes the children of an element those described, and keeps the elements that are the same: what has the focus keeps it.
export function render(root, ...tree) {
  const wanted = h('', {}, ...tree).children;
  const keyed = new Map();
  const free = [];
  for (const child of root.childNodes) {
    if (child.skepKey !== undefined) keyed.set(child.skepKey, child);
    else free.push(child);
  }
  let at = root.firstChild;
  for (const want of wanted) {
    const found = reuse(want, keyed, free);
    const node = found || make(want, root);
    if (node === at) at = at.nextSibling;
    else root.insertBefore(node, at);
    // What is drawn as wide as its element needs it in the document.
    update(node, want);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function reuse(want, keyed, free) {
  if (typeof want !== 'object') return take(free, (n) => n.nodeType === Node.TEXT_NODE);
  if (want.props.key === undefined) return take(free, (n) => n.localName === want.tag);
  const node = keyed.get(want.props.key);
  keyed.delete(want.props.key);
  return node && node.localName === want.tag ? node : null;
}

// take returns the first of the list if it fits, and drops it.
function take(list, fits) {
  if (list.length === 0) return null;
  const node = list.shift();
  return fits(node) ? node : null;
}

function make(want, root) {
  if (typeof want !== 'object') return document.createTextNode('');
  const inSVG = want.tag === 'svg' || (root.namespaceURI === SVG && root.localName !== 'foreignObject');
  const node = inSVG ? document.createElementNS(SVG, want.tag) : document.createElement(want.tag);
  if (want.props.key !== undefined) node.skepKey = want.props.key;
  return node;
}

function update(node, want) {
  if (typeof want !== 'object') {
    const text = clean(String(want));
    if (node.data !== text) node.data = text;
    return;
  }
  const before = node.skepProps || {};
  const { key, on, css, ref, own, ...attributes } = want.props;
  for (const name of Object.keys(before)) {
    if (!(name in attributes)) node.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(attributes)) {
    if (before[name] !== value) set(node, name, value);
  }
  node.skepProps = attributes;
  for (const [name, value] of Object.entries(css || {})) node.style.setProperty(name, value);
  listen(node, on || {});
  if (!own) render(node, ...want.children);
  if (ref) ref(node);
}

function set(node, name, value) {
  if (value === false || value === null || value === undefined) {
    node.removeAttribute(name);
    return;
  }
  if (name.startsWith('on') || name === 'style' || (name === 'href' && !String(value).startsWith('#'))) throw new Error(`${name} is no attribute for this page`);
  node.setAttribute(name, value === true ? '' : clean(String(value)));
  if (name === 'value' && node.value !== value) node.value = value;
}

// listen has one listener for each event, which calls the newest function.
function listen(node, on) {
  node.skepOn ||= {};
  for (const name of Object.keys(on)) {
    if (!(name in node.skepOn)) node.addEventListener(name, (event) => node.skepOn[name]?.(event));
  }
  for (const name of Object.keys(node.skepOn)) {
    if (!(name in on)) node.skepOn[name] = null;
  }
  Object.assign(node.skepOn, on);
}
