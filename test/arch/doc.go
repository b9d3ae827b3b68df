// Package arch holds the plan of the house: which room may import which, what
// the agent must never link, who may seal, and that the hook table, the agent
// and the schemas name the same hooks.
//
// It owns rules about the source and has nothing but tests. It looks at
// packages and files; it runs none of the code it evaluates, but for reading key
// sets.
package arch
