package skepmap

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// statsInC is struct stats { __u32 cpu; __u64 packets; struct { __u16 port[2]; char comm[4]; } peer; union { __u32 v4; __u8 v6[16]; } addr; }.
func statsInC() btf.Type {
	number := func(name string, size uint32) btf.Type { return &btf.Int{Name: name, Size: size} }
	peer := &btf.Struct{Size: 8, Members: []btf.Member{
		{Name: "port", Type: &btf.Array{Index: number("int", 4), Type: number("unsigned short", 2), Nelems: 2}},
		{Name: "comm", Type: &btf.Array{Index: number("int", 4), Type: number("char", 1), Nelems: 4}, Offset: 32},
	}}
	return &btf.Typedef{Name: "stats_t", Type: &btf.Struct{Name: "stats", Size: 40, Members: []btf.Member{
		{Name: "cpu", Type: number("unsigned int", 4)},
		{Name: "packets", Type: number("unsigned long long", 8), Offset: 64},
		{Name: "peer", Type: peer, Offset: 128},
		{Name: "addr", Type: &btf.Union{Size: 16, Members: []btf.Member{{Name: "v4", Type: number("unsigned int", 4)}}}, Offset: 192},
	}}}
}

type goPeer struct {
	Port [2]uint16
	Comm [4]byte
}

func TestAGoTypeIsComparedWithBTF(t *testing.T) {
	type padded struct {
		CPU     uint32
		_       [4]byte
		Packets uint64
		Peer    goPeer
		Addr    [16]byte
	}
	type narrow struct {
		CPU     uint32
		_       [4]byte
		Packets uint32
		_       [4]byte
		Peer    goPeer
		Addr    [16]byte
	}
	type shifted struct {
		Packets uint64
		CPU     uint32
		_       [4]byte
		Peer    goPeer
		Addr    [16]byte
	}
	type ports struct {
		CPU     uint32
		_       [4]byte
		Packets uint64
		Both    uint32
		Comm    uint32
		Addr    [4]uint32
	}
	for name, c := range map[string]struct {
		v    any
		want string
	}{
		"it fits":          {padded{}, ""},
		"a pointer to it":  {&padded{}, ""},
		"bytes":            {[40]byte{}, ""},
		"a slice of bytes": {[]byte{}, ""},
		"a number of another size": {narrow{}, "narrow does not fit the map's value: it has Packets at byte 8 with 4 bytes (uint32), " +
			"where the BTF of the map has packets at byte 8 with 8 bytes (unsigned long long)"},
		"fields in another order":      {shifted{}, "Packets at byte 0 with 8 bytes (uint64), where the BTF of the map has cpu at byte 0"},
		"two numbers as one":           {&ports{}, "Both at byte 16 with 4 bytes (uint32), where the BTF of the map has peer.port[0] at byte 16 with 2 bytes"},
		"what has no size is not told": {map[string]int{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := fits(c.v, statsInC(), theValue)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if layout := new(LayoutError); err != nil && !errors.As(err, &layout) {
				t.Errorf("%T", err)
			}
		})
	}
}

func TestTheTypesOfAMapAreReadFromItsFile(t *testing.T) {
	dir := t.TempDir()
	b, err := btf.NewBuilder([]btf.Type{statsInC()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Marshal(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "m.btf"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	spec, err := btf.LoadSpec(filepath.Join(dir, "m.btf"))
	if err != nil {
		t.Fatal(err)
	}
	written, err := spec.AnyTypeByName("stats_t")
	if err != nil {
		t.Fatal(err)
	}
	number, err := spec.TypeID(written)
	if err != nil {
		t.Fatal(err)
	}
	got, err := readTypes(dir, MapInfo{BTF: "m.btf", ValueTypeID: uint32(number)})
	if err != nil || got.key != nil || got.value == nil || got.value.TypeName() != "stats_t" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := readTypes(dir, MapInfo{BTF: "m.btf", ValueTypeID: 1000}); err == nil {
		t.Error("a type that is not there")
	}
	if err := os.WriteFile(filepath.Join(dir, "m.btf"), []byte("no BTF"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readTypes(dir, MapInfo{BTF: "m.btf", ValueTypeID: 1}); err == nil || !strings.Contains(err.Error(), "m.btf") {
		t.Error(err)
	}
}

func TestSizesAreComparedWithTheMaps(t *testing.T) {
	var number uint32
	var bytes []byte
	var all []uint16
	for name, c := range map[string]struct {
		do   func() error
		want string
	}{
		"a key of another size":    {func() error { _, err := bytesOf(uint64(1), 4, theKey); return err }, "uint64 has 8 bytes, and the map's key 4: write"},
		"int":                      {func() error { _, err := bytesOf(1, 4, theKey); return err }, "int has no fixed size and cannot be the key"},
		"a string":                 {func() error { _, err := bytesOf("a", 1, theKey); return err }, "string has no fixed size"},
		"nothing":                  {func() error { _, err := bytesOf(nil, 1, theValue); return err }, "the value is nil"},
		"no pointer":               {func() error { return fill(number, make([]byte, 4), theValue) }, "give a pointer"},
		"a value of another size":  {func() error { return fill(&number, make([]byte, 8), theValue) }, "*uint32 has 4 bytes, and the map's value 8"},
		"one value for all CPUs":   {func() error { return fillAll(&number, make([]byte, 8), 4) }, "give a pointer to a slice, such as *[]uint64"},
		"bytes for all CPUs":       {func() error { return fillAll(&bytes, make([]byte, 8), 4) }, "give a pointer to a slice"},
		"elements of another size": {func() error { return fillAll(&all, make([]byte, 8), 4) }, "*uint16 has 2 bytes, and the map's value 4"},
		"too few CPUs":             {func() error { _, err := bytesOfAll([]uint32{1}, 4, 2); return err }, "a value for each of 2 CPUs, and the slice 1"},
		"one of all CPUs":          {func() error { _, err := bytesOfAll(number, 4, 2); return err }, "give a slice of 2"},
	} {
		if err := c.do(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if err := fillAll(&all, []byte{1, 0, 2, 0}, 2); err != nil || len(all) != 2 || all[1] != 2 {
		t.Error(all, err)
	}
	if raw, err := bytesOfAll(all, 2, 2); err != nil || string(raw) != "\x01\x00\x02\x00" {
		t.Error(raw, err)
	}
	if err := fill(&bytes, []byte("abc"), theValue); err != nil || string(bytes) != "abc" {
		t.Error(bytes, err)
	}
}
