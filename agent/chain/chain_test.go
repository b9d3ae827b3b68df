package chain_test

import (
	"bytes"
	"embed"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/chain"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/test/programs"
)

// pass, drop and the others are values of enum xdp_action.
const (
	aborted uint32 = iota
	drop
	pass
	tx
	redirect
)

//go:generate sh -c "cd testdata && go run ../../../test/programs/compile src ."

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
	m := chain.Member{
		Key:         key,
		Application: key,
		Object:      object(tb, name),
		Program:     name,
		Facts:       bytecode.Program{GPLCompatible: true, License: "Dual BSD/GPL"},
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

// licensed sets what the facts say about the licence.
func licensed(compatible bool, license string, gplOnly ...string) edit {
	return func(_ testing.TB, m *chain.Member) {
		m.Facts.GPLCompatible, m.Facts.License, m.Facts.GPLOnly = compatible, license, gplOnly
	}
}

// running marks a member as part of the running chain.
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
