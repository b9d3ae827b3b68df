package loader

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestARejectionNamesWhatTheKernelHasNot(t *testing.T) {
	need.Kernel(t)
	p, err := Prepare(opened(t, intent.Payload{Programs: program("raw_tp_missing", "raw_tp", "sys_enter")}), programs.Object("raw_tp_missing"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err = Load(p, nil, nil, nil); err == nil {
		t.Fatal("it was loaded")
	}
	if !strings.Contains(err.Error(), "the program reads task_struct.inside.skep_nope, which this kernel has not") {
		t.Error(err)
	}
}

func TestARejectionSaysThatNodesAreUnknown(t *testing.T) {
	need.Kernel(t)
	p, err := Prepare(opened(t, intent.Payload{Programs: program("tcx_tree", "tcx/ingress", "")}), programs.Object("tcx_tree"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err = Load(p, nil, nil, nil); err == nil {
		t.Fatal("it was loaded: the library knows nodes now, and the explanation can go")
	}
	if known := LogOf(err); strings.Contains(known, "has no valid bpf_spin_lock") != strings.Contains(err.Error(), "which nodes its lists and trees hold") {
		t.Error(err)
	}
}

func TestWhatIndexesLeadTo(t *testing.T) {
	word := &btf.Int{Name: "int", Size: 4}
	union := &btf.Union{Members: []btf.Member{{Name: "a", Type: word}, {Name: "b", Type: word}}}
	list := &btf.Array{Index: word, Type: &btf.Struct{Name: "e", Members: []btf.Member{{Name: "x", Type: word}}}, Nelems: 2}
	top := &btf.Struct{Name: "s___old", Members: []btf.Member{{Type: union}, {Name: "list", Type: &btf.Typedef{Name: "l", Type: list}}}}
	level := &btf.Enum{Name: "level", Values: []btf.EnumValue{{Name: "LOW"}, {Name: "HIGH"}}}
	for sentence, c := range map[string]struct {
		of       btf.Type
		accessor []int
		want     string
	}{
		"the type itself":            {top, []int{0}, "s"},
		"a member of a nameless one": {top, []int{0, 0, 1}, "s.b"},
		"a field of an element":      {top, []int{0, 1, 1, 0}, "s.list.x"},
		"a constant":                 {level, []int{1}, "HIGH of enum level"},
		"a constant that is not":     {level, []int{2}, "level"},
		"a member that is not":       {top, []int{0, 2}, "s"},
		"a member of what has none":  {word, []int{0, 3}, "int"},
		"a qualified and named type": {&btf.Typedef{Name: "t", Type: &btf.Const{Type: top}}, []int{0, 1}, "s.list"},
	} {
		if got := nameOfAccess(c.of, c.accessor); got != c.want {
			t.Errorf("%s: %q, want %q", sentence, got, c.want)
		}
	}
}
