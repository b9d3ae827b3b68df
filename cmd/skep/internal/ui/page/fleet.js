import { h } from './dom.js';
export const fleet = { label: () => 'fleet', draw: () => h('p', {}, 'soon') };
