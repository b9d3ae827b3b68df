package layout

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// hashed is the layout of a map that has one.
func hashed(t *testing.T, ms *ebpf.MapSpec) string {
	t.Helper()
	text, err := New().Map(ms)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// noted is what an earlier agent noted of the map.
func noted(t *testing.T, ms *ebpf.MapSpec) string {
	t.Helper()
	text, ok := New().text(ms)
	if !ok {
		t.Fatal("no text")
	}
	return text
}

func TestLayoutsDifferWhereMeaningDoes(t *testing.T) {
	u32 := &btf.Int{Name: "unsigned int", Size: 4}
	u64 := &btf.Int{Name: "unsigned long", Size: 8}
	pair := func(first, second string) *btf.Struct {
		return &btf.Struct{Name: "pair", Size: 8, Members: []btf.Member{{Name: first, Type: u32}, {Name: second, Type: u32, Offset: 32}}}
	}
	section := func(names ...string) *btf.Datasec {
		ds := &btf.Datasec{Name: ".bss", Size: 16}
		for i, n := range names {
			ds.Vars = append(ds.Vars, btf.VarSecinfo{Type: &btf.Var{Name: n, Type: u64}, Offset: uint32(8 * i), Size: 8})
		}
		return ds
	}
	for sentence, c := range map[string]struct {
		a, b btf.Type
		same bool
	}{
		"a typedef is its type":              {u32, &btf.Typedef{Name: "__u32", Type: u32}, true},
		"qualifiers do not matter":           {u32, &btf.Volatile{Type: &btf.Const{Type: u32}}, true},
		"the name of an int does not matter": {u32, &btf.Int{Name: "u32", Size: 4}, true},
		"a tag does not matter":              {pair("a", "b"), func() btf.Type { s := pair("a", "b"); s.Name = "other"; return s }(), true},
		"signedness matters":                 {u32, &btf.Int{Size: 4, Encoding: btf.Signed}, false},
		"size matters":                       {u32, u64, false},
		"two fields that change places":      {pair("a", "b"), pair("b", "a"), false},
		"one 64-bit value or two of 32":      {u64, pair("a", "b"), false},
		"a struct or a union":                {pair("a", "b"), &btf.Union{Size: 8, Members: pair("a", "b").Members}, false},
		"the kernel's own structs by name": {
			&btf.Struct{Name: "bpf_spin_lock", Size: 4, Members: []btf.Member{{Name: "val", Type: u32}}},
			&btf.Struct{Name: "lock", Size: 4, Members: []btf.Member{{Name: "val", Type: u32}}}, false,
		},
		"a bit field is not its integer": {
			&btf.Struct{Size: 4, Members: []btf.Member{{Name: "a", Type: u32}}}, &btf.Struct{Size: 4, Members: []btf.Member{{Name: "a", Type: u32, BitfieldSize: 3}}},
			false,
		},
		"two globals that change places": {section("x", "y"), section("y", "x"), false},
		"the same globals":               {section("x", "y"), section("x", "y"), true},
		"arrays by length":               {&btf.Array{Type: u32, Nelems: 2}, &btf.Array{Type: u32, Nelems: 3}, false},
		"pointers by what they point to": {&btf.Pointer{Target: pair("a", "b")}, &btf.Pointer{Target: u32}, false},
		"enums by size":                  {&btf.Enum{Name: "e", Size: 4}, &btf.Enum{Name: "f", Size: 8}, false},
		"floats by size":                 {&btf.Float{Size: 4}, &btf.Float{Size: 8}, false},
		"nothing is not void":            {nil, &btf.Void{}, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			a, b := &ebpf.MapSpec{Key: u32, Value: c.a}, &ebpf.MapSpec{Key: u32, Value: c.b}
			if hashed(t, a) == hashed(t, b) != c.same {
				t.Errorf("equal layouts: %v", !c.same)
			}
			if got := New().Equal(c.a, c.b); got != c.same {
				t.Errorf("Equal = %v", got)
			}
			// The same holds of what an earlier agent noted.
			if got := New().Same(noted(t, a), b); got != c.same {
				t.Errorf("the layout noted by an earlier agent is the same: %v", got)
			}
		})
	}
	inner := func(entries uint32) *ebpf.MapSpec {
		return &ebpf.MapSpec{Key: u32, InnerMap: &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: entries}}
	}
	if hashed(t, inner(1)) == hashed(t, inner(2)) || New().Same(noted(t, inner(1)), inner(2)) || !New().Same(noted(t, inner(1)), inner(1)) {
		t.Error("inner maps are not compared by their sizes")
	}
	for noted, same := range map[string]bool{None: true, "": false, "unknown": false, hashed(t, inner(1)): false} {
		if got := New().Same(noted, &ebpf.MapSpec{}); got != same {
			t.Errorf("a map without BTF has the layout noted as %q: %v", noted, got)
		}
	}
}

// The hashes were taken with the agent before hashes had a version.
func TestWhatEarlierAgentsNotedIsTheSame(t *testing.T) {
	u32 := &btf.Int{Name: "unsigned int", Size: 4}
	pair := &btf.Struct{Name: "pair", Size: 8, Members: []btf.Member{{Name: "a", Type: u32}, {Name: "b", Type: &btf.Array{Type: u32, Nelems: 1}, Offset: 32}}}
	section := &btf.Datasec{Name: ".bss", Size: 8, Vars: []btf.VarSecinfo{{Type: &btf.Var{Name: "x", Type: pair}, Size: 8}}}
	for sentence, c := range map[string]struct {
		noted string
		of    *ebpf.MapSpec
	}{
		"a hash of pairs": {"e331eb1a43f41055381bf39f2cc771cf", &ebpf.MapSpec{Key: u32, Value: pair}},
		"a data section":  {"23da8a16ef1de43408dc9f1f4e95f8b4", &ebpf.MapSpec{Key: &btf.Void{}, Value: section}},
		"a hash of arrays": {"2b7e8b852731c8ab9a1a41062a5b89b5", &ebpf.MapSpec{
			Key: u32, InnerMap: &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2, Key: u32, Value: pair},
		}},
		"a map without BTF": {"none", &ebpf.MapSpec{}},
	} {
		t.Run(sentence, func(t *testing.T) {
			if !New().Same(c.noted, c.of) {
				got, ok := New().text(c.of)
				t.Errorf("noted as %s, and now %s, %v", c.noted, got, ok)
			}
			if c.noted != None && New().Same(c.noted, &ebpf.MapSpec{Key: u32, Value: u32}) {
				t.Error("another map has its layout")
			}
		})
	}
}

// nested is a union in a union, so often, each held twice.
func nested(depth int) btf.Type {
	t := btf.Type(&btf.Int{Size: 4})
	for range depth {
		t = &btf.Union{Name: "u", Size: 4, Members: []btf.Member{{Name: "a", Type: t}, {Name: "b", Type: t}}}
	}
	return t
}

func TestTypesBeyondABound(t *testing.T) {
	u32 := &btf.Int{Size: 4}
	arrays := func(depth int) btf.Type {
		t := btf.Type(u32)
		for range depth {
			t = &btf.Array{Type: &btf.Typedef{Name: "t", Type: t}, Nelems: 1}
		}
		return t
	}
	itself := &btf.Struct{Name: "itself", Size: 4}
	itself.Members = []btf.Member{{Name: "a", Type: itself}, {Name: "b", Type: itself}}
	list := &btf.Struct{Name: "list", Size: 8}
	list.Members = []btf.Member{{Name: "next", Type: &btf.Pointer{Target: list}}}
	wide := &btf.Struct{Name: "wide", Size: 4}
	some := nested(9)
	for range MaxMembers>>10 + 2 {
		wide.Members = append(wide.Members, btf.Member{Type: some})
	}
	for sentence, c := range map[string]struct {
		t    btf.Type
		want string
	}{
		"as deep as the kernel goes":                  {arrays(MaxDepth), ""},
		"one deeper":                                  {arrays(MaxDepth + 1), "nested more than 32 deep"},
		"a struct that holds itself":                  {itself, "contains itself"},
		"a struct that points to itself":              {list, ""},
		"unions that stay within the bound":           {nested(18), ""},
		"unions that multiply":                        {nested(20), "more than 1048576 members"},
		"unions that would multiply beyond a counter": {nested(MaxDepth), "more than 1048576 members"},
		"many that multiply a little":                 {wide, "more than 1048576 members"},
	} {
		t.Run(sentence, func(t *testing.T) {
			for _, ms := range []*ebpf.MapSpec{{Key: u32, Value: c.t}, {Key: c.t}, {Key: u32, InnerMap: &ebpf.MapSpec{Value: c.t}}} {
				h := New()
				text, err := h.Map(ms)
				var bound *Error
				switch {
				case c.want == "" && err != nil:
					t.Error(err)
				case c.want != "" && (!errors.As(err, &bound) || !strings.Contains(err.Error(), c.want)):
					t.Errorf("Map = %q, %v; want an error with %q", text, err, c.want)
				case c.want != "" && (h.Same(text, ms) || h.Same("unknown", ms) || h.Equal(c.t, c.t)):
					t.Error("what is beyond a bound is like something")
				}
				// Each type is looked at once, however often it is used.
				if len(h.known) > 4096 {
					t.Errorf("%d types are remembered", len(h.known))
				}
			}
		})
	}
}

func TestADepthIsCountedFromTheTopThoughATypeIsKnown(t *testing.T) {
	h, inner := New(), btf.Type(&btf.Int{Size: 4})
	for range MaxDepth {
		inner = &btf.Array{Type: inner, Nelems: 1}
	}
	if _, err := h.Map(&ebpf.MapSpec{Value: inner}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Map(&ebpf.MapSpec{Value: &btf.Array{Type: inner, Nelems: 1}}); err == nil {
		t.Error("a known type hid that another nests too deep")
	}
}
