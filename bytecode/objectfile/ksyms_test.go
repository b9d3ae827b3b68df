package objectfile

import (
	"bytes"
	"debug/elf"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/test/corpus"
)

func corpusObject(t *testing.T, name string) []byte {
	t.Helper()
	object, err := corpus.Objects.ReadFile("testdata/" + name + ".o")
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func TestVariablesOfTheKernelKeepTheirTypesInMind(t *testing.T) {
	object := corpusObject(t, "ksym_typed")
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

// TestFilesThatLieEndNothing has every byte lie once of what is read beside the library:
// the header of the file, those of its sections, and the types.
func TestFilesThatLieEndNothing(t *testing.T) {
	for _, name := range []string{"ksym_typed", "sections"} {
		object := corpusObject(t, name)
		f, err := elf.NewFile(bytes.NewReader(object))
		if err != nil {
			t.Fatal(err)
		}
		types := f.Section(".BTF")
		headers := f.ByteOrder.Uint64(object[headersAt:])
		for _, part := range [][2]uint64{{0, 64}, {headers, uint64(len(object))}, {types.Offset, types.Offset + types.FileSize}} {
			for at := part[0]; at < part[1]; at++ {
				lying := bytes.Clone(object)
				lying[at] ^= 0xff
				bound, err := Bind(lying)
				if err == nil && len(bound.File) != len(object) {
					t.Errorf("%s, byte %d: the file has %d bytes, and not %d", name, at, len(bound.File), len(object))
				}
			}
		}
	}
}
