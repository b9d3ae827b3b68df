// Who signed what, and which policies decided.

import { h } from './dom.js';
import { badge, icon, overall } from './state.js';
import { cut, lacking, linkTo, nameOf, plural, short } from './text.js';
import { table } from './node.js';

// longest is how many applications are listed.
const longest = 100;

export const trust = {
  label: () => 'Signers',
  draw({ overview }) {
    const { applications, signers, policies } = overview;
    const missing = (resource, what) => {
      const why = lacking(overview, resource, what);
      return why && h('p', { class: 'fine missing' }, `${why} Those that applications name are here.`);
    };
    const signed = new Map(signers.map((s) => [s.name, applications.filter((a) => a.signers.includes(s.name))]));
    const sorted = [...applications].sort((x, y) => (overall(x) === 'Denied' ? 0 : 1) - (overall(y) === 'Denied' ? 0 : 1));
    const unsigned = applications.filter((a) => a.signers.length === 0);
    return [
      h('div', { class: 'heading' }, h('h1', {}, 'Who signed what, and which policies decided')),
      h('section', { class: 'block' }, h('h2', {}, 'Signers'), missing('bpfsigners', 'the signers of the cluster'), signers.length === 0 ? h('p', { class: 'empty' }, 'No signer’s signature counted for any application.') :
        h('ul', { class: 'tiles' }, signers.map((s) => h('li', { key: s.name, class: 'card tile' },
          h('p', { class: 'strong' }, s.revoked ? icon('F', 'revoked') : icon('L'), ' ', h('bdi', {}, cut(s.name, 60)), s.revoked && h('span', { class: 'text-bad' }, ' revoked')),
          s.kind && h('p', { class: 'fine' }, s.kind, s.detail ? ': ' : '', h('bdi', {}, cut(s.detail || '', 160))),
          h('p', {}, `signed ${plural(signed.get(s.name).length, 'application')}`),
          h('p', { class: 'fine names' }, signed.get(s.name).slice(0, 4).map((a, i) => [i > 0 && ', ', h('a', { href: linkTo(a) }, h('bdi', {}, cut(nameOf(a), 40)))]), signed.get(s.name).length > 4 && ` and ${signed.get(s.name).length - 4} more`))))),
      (policies.length > 0 || missing('clusterbpfpolicies', '')) && h('section', { class: 'block' }, h('h2', {}, 'Policies'), missing('clusterbpfpolicies', 'the policies of the cluster'), h('ul', { class: 'tiles' }, policies.map((p) => h('li', { key: p.name, class: 'card tile' },
        h('p', { class: 'strong' }, h('bdi', {}, cut(p.name, 60)), p.mode === 'Audit' && h('span', { class: 'chip' }, 'Audit: denies nothing')),
        p.scope && h('p', { class: 'fine' }, cut(p.scope, 120)),
        p.ready === 'False' && h('p', { class: 'note' }, 'it is not ready, and what it matches is denied'),
        h('p', {}, `allowed ${plural(applications.filter((a) => a.policies.includes(p.name)).length, 'application')}, denied ${applications.filter((a) => a.reasons.some((r) => r.rule.startsWith(`${p.name}/`))).length}`))))),
      h('section', { class: 'block' }, h('h2', {}, 'Applications'), unsigned.length > 0 && h('p', { class: 'fine' }, `${plural(unsigned.length, 'application')} without a signature that counts`),
        applications.length === 0 ? h('p', { class: 'empty' }, 'There is no application yet.') : h('div', { class: 'card' }, table('Who signed which application by which policy',
          ['State', 'Application', 'Digest', 'Signed by', 'Allowed by', 'Denied by'], sorted.slice(0, longest).map((a) => [
            badge(overall(a)), h('a', { href: linkTo(a) }, h('bdi', {}, cut(nameOf(a), 80))), h('span', { class: 'mono' }, short(a.digest)), h('bdi', {}, cut(a.signers.join(', '), 120)),
            h('bdi', {}, cut(a.policies.join(', '), 120)), h('bdi', {}, cut([...new Set(a.reasons.map((r) => r.rule))].join(', '), 120)),
          ]))),
        applications.length > longest && h('p', { class: 'fine' }, `${plural(applications.length - longest, 'more application')}: see Applications`)),
    ];
  },
};
