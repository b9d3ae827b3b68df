package relocate

import (
	"testing"

	"github.com/cilium/ebpf/btf"
)

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
