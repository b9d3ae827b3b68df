import { h } from './dom.js';
export const trust = { label: () => 'trust', draw: () => h('p', {}, 'soon') };
