// Text and numbers for people.

// Characters that are not seen, or that change the order of others (Unicode TR 36 and 39).
const unseen = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

// longest is how many characters of one text are shown.
const longest = 20000;

// clean shows what a text would hide, such as a change of the direction of writing.
export function clean(text) {
  const short = text.length > longest ? `${text.slice(0, longest)}…` : text;
  return short.replace(unseen, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

// cut shortens a text to some characters.
export function cut(text, most) {
  const all = clean(text);
  return all.length <= most ? all : `${all.slice(0, most - 1)}…`;
}

// short is a digest or a commit as people compare them.
export function short(text) {
  const hash = (text || '').replace(/^sha256:/, '');
  return /^[0-9a-f]{13,}$/.test(hash) ? hash.slice(0, 12) : hash;
}

const whole = new Intl.NumberFormat('en');
const brief = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });

// number is a count, whole.
export function number(n) { return whole.format(n); }

// rate is a count in a second.
export function rate(n) { return `${n >= 10 || n === 0 ? brief.format(n) : n.toPrecision(2)}/s`; }

// percent is a share of one CPU.
export function percent(share) {
  const p = 100 * share;
  if (p === 0) return '0 %';
  return p < 0.001 ? '< 0.001 %' : `${p < 10 ? p.toPrecision(2) : p.toFixed(0)} %`;
}

// bytes is a size.
export function bytes(n) {
  if (n < 1024) return `${n} B`;
  return n < 1 << 20 ? `${(n / 1024).toFixed(n < 10240 ? 1 : 0)} KiB` : `${(n / (1 << 20)).toFixed(1)} MiB`;
}

// nanoseconds is a time.
export function nanoseconds(n) { return n < 1000 ? `${n.toFixed(0)} ns` : `${(n / 1000).toPrecision(3)} µs`; }

// ago is how long something is past.
export function ago(time, now = Date.now()) {
  const s = Math.max(0, Math.round((now - time) / 1000));
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.round(s / 60)} min ago`;
  return s < 172800 ? `${Math.round(s / 3600)} h ago` : `${Math.round(s / 86400)} days ago`;
}

// plural is a number and its noun.
export function plural(n, noun) { return `${number(n)} ${noun}${n === 1 ? '' : 's'}`; }

// nameOf is an application as skep status prints it.
export function nameOf(application) { return application.namespace ? `${application.namespace}/${application.name}` : application.name; }

// linkTo is the page of an application.
export function linkTo(application) {
  return `#/applications/${[application.kind, application.namespace || '-', application.name].map(encodeURIComponent).join('/')}`;
}

// lacking says that something is not shown since the user lacks the right to read a resource; empty if the user has it.
export function lacking(overview, resource, what) {
  const right = (overview.needs || []).find((one) => one.split(' ')[1].startsWith(`${resource}.`));
  return right ? `You may not see ${what}: you lack the right to ${right}.` : '';
}

// nodeLink is the page of a node.
export function nodeLink(name) { return `#/nodes/${encodeURIComponent(name)}`; }
