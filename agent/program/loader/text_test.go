package loader

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/test/harness/library"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestTheLibraryEndsWithIncompatible: differs cuts that end off.
func TestTheLibraryEndsWithIncompatible(t *testing.T) {
	need.Kernel(t)
	spec := ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	m, err := ebpf.NewMap(&spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	spec.ValueSize = 8
	if err = plain.Error(spec.Compatible(m)); err == nil {
		t.Fatal("a map with larger values is compatible")
	}
	library.Says(t, "github.com/cilium/ebpf", err.Error()+"\n", textIncompatible()+"\n")
}
