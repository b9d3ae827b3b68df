package objectfile

import (
	"bytes"
	"debug/elf"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/test/corpus"
)

func kernelVariables(t *testing.T) []byte {
	t.Helper()
	object, err := corpus.Objects.ReadFile("testdata/ksym_typed.o")
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func TestVariablesOfTheKernelKeepTheirTypesInMind(t *testing.T) {
	object := kernelVariables(t)
	before := bytes.Clone(object)
	o, err := Read(object)
	if err != nil {
		t.Fatal(err)
	}
	// The value says whether the object can do without.
	if diff := cmp.Diff(map[string]bool{"runqueues": false, "bpf_prog_active": false, "skep_no_such_queue": true}, o.TypedKsyms); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	if !bytes.Equal(before, object) {
		t.Error("the file that was given is changed")
	}
}

// TestTypesThatLieEndNothing has every byte of the type information's header and of the
// types lie once.
func TestTypesThatLieEndNothing(t *testing.T) {
	object := kernelVariables(t)
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	types := f.Section(".BTF")
	for at := types.Offset; at < types.Offset+types.FileSize; at++ {
		lying := bytes.Clone(object)
		lying[at] ^= 0xff
		bound, err := Bind(lying)
		if err == nil && len(bound.File) != len(object) {
			t.Errorf("byte %d: the file has %d bytes, and not %d", at, len(bound.File), len(object))
		}
	}
}
