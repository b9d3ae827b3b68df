// Package hooks tests what the agent attaches, hook by hook: each through a life of attaching, updating, healing and unloading on this
// kernel, and what is particular to some of them. It has nothing but tests, which see the agent as its users do.
package hooks
