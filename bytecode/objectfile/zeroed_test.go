package objectfile

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
)

func TestSectionsThatBeginAsZeroAreMapsOfTheirNames(t *testing.T) {
	object := corpusObject(t, "sections")
	before := bytes.Clone(object)
	o, err := Read(object)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, object) {
		t.Error("the file that was given is changed")
	}
	names := map[string]string{}
	for name, m := range o.Spec.Maps {
		names[name] = m.Name + " " + m.Value.(*btf.Datasec).Name
	}
	want := map[string]string{}
	for _, name := range []string{".bss", ".bss.lock", ".bss.seen", ".data.begun", ".rodata.most"} {
		want[name] = name + " " + name
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("maps, with their names in the kernel and in the types (-want +got):\n%s", diff)
	}
	if section := o.Spec.Variables["seen"].SectionName; section != ".bss.seen" {
		t.Errorf("variable seen is in %s", section)
	}
	referred := map[string]bool{}
	for _, ins := range o.Spec.Programs["counts"].Instructions {
		if ins.IsLoadFromMap() {
			referred[ins.Reference()] = true
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(referred))); diff != "" {
		t.Errorf("sections that the program refers to (-want +got):\n%s", diff)
	}
}

// TestANameThatIsTakenIsLeft: two sections of one name would be one to the library.
func TestANameThatIsTakenIsLeft(t *testing.T) {
	object := bytes.ReplaceAll(corpusObject(t, "sections"), []byte(".data.begun\x00"), []byte(".datalock\x00\x00\x00"))
	bound, err := Bind(object)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{".dataseen": ".bss.seen"}, bound.zeroed); diff != "" {
		t.Errorf("renamed sections (-want +got):\n%s", diff)
	}
}
