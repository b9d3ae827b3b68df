package chain_test

import (
	"bytes"
	"embed"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// pass, drop and the others are values of enum xdp_action.
const (
	aborted uint32 = iota
	drop
	pass
	tx
	redirect
)

//go:generate go run ../../../test/fixture/programs/compile testdata/src testdata

//go:embed testdata/*.o
var own embed.FS

// object parses one of the test objects of this folder or of the project anew.
func object(tb testing.TB, name string) *ebpf.CollectionSpec {
	tb.Helper()
	body, err := own.ReadFile("testdata/" + name + ".o")
	if err != nil {
		body = programs.Object(name)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(body))
	if err != nil {
		tb.Fatalf("read object %s: %v", name, err)
	}
	return spec
}

// edit changes a member of a test.
type edit func(testing.TB, *chain.Member)

// member is an application of its own with one program, named like its object,
// under a GPL compatible licence, proceeding on Pass.
func member(tb testing.TB, key, name string, edits ...edit) chain.Member {
	tb.Helper()
	spec := object(tb, name)
	license := ""
	for _, p := range spec.Programs {
		license = p.License
	}
	m := chain.Member{
		Key:         key,
		Application: key,
		Object:      spec,
		Program:     name,
		Facts:       bytecode.Program{GPLCompatible: true, License: license},
		ProceedOn:   1 << pass,
	}
	for _, e := range edits {
		e(tb, &m)
	}
	return m
}

// returning makes xdp_verdict return a verdict.
func returning(verdict uint32) edit {
	return func(tb testing.TB, m *chain.Member) {
		tb.Helper()
		if err := m.Object.Variables["verdict"].Set(verdict); err != nil {
			tb.Fatalf("set verdict: %v", err)
		}
	}
}

// proceedingOn sets the mask.
func proceedingOn(mask uint32) edit {
	return func(_ testing.TB, m *chain.Member) { m.ProceedOn = mask }
}

// closed makes the member's licence one that the kernel does not count as GPL
// compatible.
func closed(_ testing.TB, m *chain.Member) {
	m.Object.Programs[m.Program].License = "Proprietary"
	m.Facts.License, m.Facts.GPLCompatible = "Proprietary", false
}

// needing makes the member call helpers that only the GPL gets.
func needing(helpers ...string) edit {
	return func(_ testing.TB, m *chain.Member) { m.Facts.GPLOnly = helpers }
}

// newcomer marks a member that the running chain does not have.
func newcomer(_ testing.TB, m *chain.Member) { m.New = true }

// several makes n members out of one object, each an application of its own.
func several(tb testing.TB, n int, name string, edits ...edit) []chain.Member {
	tb.Helper()
	out := make([]chain.Member, n)
	for i := range out {
		out[i] = member(tb, fmt.Sprintf("default/app-%d %s", i, name), name, edits...)
	}
	return out
}

// joined are members that fit, in one program.
func joined(tb testing.TB, members ...chain.Member) *chain.Linked {
	tb.Helper()
	linked, err := chain.Link(members, chain.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return linked
}
