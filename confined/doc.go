// Package confined runs untrusted work in a child process that holds no rights and
// is bounded in memory.
//
// A child is the same binary once more, in a role: with an empty environment, in
// namespaces of its own, without files, network and capabilities. Its parent talks to
// it by its standard input and output, and kills it where it takes too long. The
// package knows nothing of the work itself.
package confined
