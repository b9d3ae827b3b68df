// Package arch tests the architecture: which package may import which, what the
// agent must never link, who may seal, how large a package or a type is, and that the
// hook table, the agent and the schemas name the same hooks.
//
// It has nothing but tests. They read packages and files, and run none of the code
// that they read, but for key sets.
package arch
