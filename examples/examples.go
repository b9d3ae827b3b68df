// Package examples holds definitions to copy, each in a folder with the C
// source of its program, the compiled object, a policy and a page that leads
// through it, and policies to copy.
//
// It owns the embedded files and nothing that acts on them.
package examples

import "embed"

//go:generate go run ../test/fixture/programs/compile xdp-counter xdp-counter
//go:generate go run ../test/fixture/programs/compile tcx-firewall tcx-firewall
//go:generate go run ../test/fixture/programs/compile tcx-denylist tcx-denylist
//go:generate go run ../test/fixture/programs/compile exec-snoop exec-snoop
//go:generate go run ../test/fixture/programs/compile shared-map shared-map
//go:generate go run ../test/fixture/programs/compile flow-agent flow-agent
//go:generate go run ../test/fixture/programs/compile node-firewall node-firewall

// FS holds the folders of the examples, each with its .c, .o, .cue or .yaml and
// .rego files and its README.md.
//
//go:embed README.md xdp-counter tcx-firewall tcx-denylist exec-snoop pod-execs shared-map port-fleet flow-agent node-firewall evidence
var FS embed.FS
