import { h } from './dom.js';
export const cost = { label: () => 'cost', draw: () => h('p', {}, 'soon') };
