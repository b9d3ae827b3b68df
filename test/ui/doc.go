// Package ui has tests of skep ui in a real Chromium: the command runs as a process, beside the socket of a host and the API server of a
// cluster that say what the tests have them say, or beside a real skep run. It owns those two, and must not reach into the command: what a
// browser cannot see, the tests of cmd/skep/internal/ui look at.
package ui
