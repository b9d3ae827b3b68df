package objectfile

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

func TestConfigurationOutsideOfItsSectionIsRefused(t *testing.T) {
	word := &btf.Int{Name: "unsigned int", Size: 4}
	variable := func(name string, t btf.Type) *btf.Var { return &btf.Var{Name: name, Type: t} }
	for name, c := range map[string]struct {
		section btf.Datasec
		want    string
	}{
		"a variable behind a typedef": {btf.Datasec{Size: 4, Vars: []btf.VarSecinfo{{Type: variable("a", &btf.Typedef{Name: "u32", Type: word})}}}, ""},
		// The offsets wrapped around at 4 GiB.
		"a variable behind the end": {btf.Datasec{Size: 8, Vars: []btf.VarSecinfo{{Type: variable("a", word), Offset: 1<<32 - 8}}}, "lies outside"},
		"a variable over the end":   {btf.Datasec{Size: 6, Vars: []btf.VarSecinfo{{Type: variable("a", word), Offset: 4}}}, "lies outside"},
		"a variable of no size":     {btf.Datasec{Size: 4, Vars: []btf.VarSecinfo{{Type: variable("a", &btf.Array{Type: word, Index: word})}}}, "lies outside"},
		"a section of 2 GiB":        {btf.Datasec{Size: 1 << 31}, "more than 1048576"},
		"what is no variable":       {btf.Datasec{Size: 4, Vars: []btf.VarSecinfo{{Type: word}}}, "is no variable"},
	} {
		err := settle(&c.section)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if v := c.section.Vars; err == nil && (v[0].Size != 4 || v[0].Type.(*btf.Var).Type != word) {
			t.Errorf("%s: size %d, type %v", name, v[0].Size, v[0].Type)
		}
	}
}
