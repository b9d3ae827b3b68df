package objectfile

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

func linkedObject(t testing.TB, name string) []byte {
	t.Helper()
	object, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// TestStaticFunctionsOfOneNameAreTwo reads two files that bpftool gen object linked: each has a function of its own.
func TestStaticFunctionsOfOneNameAreTwo(t *testing.T) {
	object := linkedObject(t, "linked.o")
	before := bytes.Clone(object)
	o, err := Read(object)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, object) {
		t.Error("the file that was given is changed")
	}
	for program, adds := range map[string]int64{"prog_a": 1, "prog_b": 2} {
		p := o.Spec.Programs[program]
		if p == nil {
			t.Fatalf("programs are %v", o.Spec.Programs)
		}
		found := false
		for _, ins := range p.Instructions {
			found = found || ins.Constant == 101+adds
		}
		if !found {
			t.Errorf("%s calls the other one's function:\n%v", program, p.Instructions)
		}
	}
}

// TestAnInnerMapMayHaveANameOfItsType: the type of __array(values, …) is behind a typedef.
func TestAnInnerMapMayHaveANameOfItsType(t *testing.T) {
	o, err := Read(linkedObject(t, "inner_typedef.o"))
	if err != nil {
		t.Fatal(err)
	}
	outer := o.Spec.Maps["outer"]
	if outer == nil || outer.InnerMap == nil || outer.InnerMap.ValueSize != 8 || len(outer.Contents) != 1 {
		t.Errorf("outer is %+v", outer)
	}
}

// FuzzRead changes what these objects have: a reader neither ends nor changes what it was given.
func FuzzRead(f *testing.F) {
	for _, name := range []string{"linked.o", "inner_typedef.o"} {
		object := linkedObject(f, name)
		for _, at := range []int{0, len(object) / 2, len(object) - 40} {
			f.Add(name == "linked.o", at, []byte{255, 255, 255, 255})
		}
	}
	f.Fuzz(func(t *testing.T, linked bool, at int, with []byte) {
		name := "inner_typedef.o"
		if linked {
			name = "linked.o"
		}
		object := linkedObject(t, name)
		if at < 0 || at >= len(object) {
			return
		}
		copy(object[at:], with)
		before := bytes.Clone(object)
		_, _ = Read(object)
		if !bytes.Equal(before, object) {
			t.Error("the file that was given is changed")
		}
	})
}

// TestADefinitionIsLookedAtOnce, however often a section lists its variable, and however many members have one name.
func TestADefinitionIsLookedAtOnce(t *testing.T) {
	const many = 2000
	info := &typeInformation{order: binary.LittleEndian, strings: []byte("\x00.maps\x00xvalues\x00"), records: []record{{}}}
	add := func(name, kind, count, size uint32, members []byte) {
		info.records = append(info.records, record{len(info.data), name, kind<<24 | count, size})
		info.data = append(append(info.data, make([]byte, recordSize)...), members...)
	}
	member := func(first uint32) []byte { return binary.LittleEndian.AppendUint32(nil, first) }
	// The name is the end of another one.
	add(0, kindStruct, many, 0, bytes.Repeat(append(member(8), make([]byte, 8)...), many))
	add(0, kindVar, 0, 1, make([]byte, 4))
	add(1, kindSection, many, 0, bytes.Repeat(append(member(2), make([]byte, 8)...), many))
	if found := info.valuesOfMaps(); len(found) != 1 {
		t.Errorf("valuesOfMaps has %d places, want one", len(found))
	}
}
