package series_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/values/series"
)

// node has one interface.
type node struct{}

func (node) Errno(n uint64) string { return map[uint64]string{2: "ENOENT"}[n] }

func (node) Device(major, minor uint32) string {
	return map[[2]uint32]string{{8, 1}: "sda1"}[[2]uint32{major, minor}]
}

func (node) Interface(index uint32) string { return map[uint32]string{7: "eth\x1b[0m"}[index] }

// The types of C.
var (
	u8     = &btf.Int{Name: "unsigned char", Size: 1}
	u16    = &btf.Int{Name: "unsigned short", Size: 2}
	u32    = &btf.Int{Name: "unsigned int", Size: 4}
	u64    = &btf.Int{Name: "unsigned long", Size: 8}
	s32    = &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	yes    = &btf.Int{Name: "_Bool", Size: 1, Encoding: btf.Bool}
	char   = &btf.Int{Name: "char", Size: 1, Encoding: btf.Signed}
	inAddr = &btf.Struct{Name: "in_addr", Size: 4, Members: []btf.Member{{Name: "s_addr", Type: u32}}}
	enum   = &btf.Enum{Name: "e", Size: 4, Values: []btf.EnumValue{{Name: "first", Value: 1}}}
)

func array(of btf.Type, n uint32) btf.Type { return &btf.Array{Type: of, Nelems: n} }

// reader reads one label of a key.
func reader(t *testing.T, key btf.Type, decoder v1alpha1.MapDecoder) *series.Reader {
	t.Helper()
	r, misfits := series.New(&v1alpha1.MapMetrics{Name: "n", Labels: []v1alpha1.MapLabel{{Name: "l", Decoder: decoder}}}, of(key))
	for _, misfit := range misfits {
		t.Fatal(misfit)
	}
	return r
}

// of is a map with keys of a type.
func of(key btf.Type) series.Map {
	size, err := btf.Sizeof(key)
	if err != nil {
		size = 0
	}
	return series.Map{Type: ebpf.Hash, Key: key, Value: u64, KeySize: uint32(size), ValueSize: 8, Order: binary.LittleEndian}
}

func TestBytesOfAKeyBecomeALabel(t *testing.T) {
	long := strings.Repeat("é", 100)
	for sentence, c := range map[string]struct {
		key     btf.Type
		decoder v1alpha1.MapDecoder
		bytes   string
		want    string
	}{
		"a number":                             {u16, "", "\x34\x12", "4660"},
		"one below zero":                       {s32, "", "\xfe\xff\xff\xff", "-2"},
		"one in the order of a network":        {&btf.Typedef{Name: "__be16", Type: u16}, "", "\x01\xbb", "443"},
		"a truth":                              {yes, "", "\x01", "true"},
		"a member of an enum":                  {enum, "", "\x01\x00\x00\x00", "first"},
		"one without a name":                   {enum, "", "\x02\x00\x00\x00", "2"},
		"one by its number":                    {enum, v1alpha1.DecodeUint, "\x01\x00\x00\x00", "1"},
		"text":                                 {array(char, 6), "", "sda\x00xx", "sda"},
		"text without an end":                  {array(char, 3), "", "sda", "sda"},
		"text in bytes":                        {array(u8, 4), v1alpha1.DecodeString, "ab\x00\x00", "ab"},
		"text that is no UTF-8":                {array(char, 4), "", "a\xff\xc3\x00", "a��"},
		"text that a terminal would obey":      {array(char, 6), "", "\x1b[2J\n\x00", "�[2J�"},
		"text that is too long":                {array(char, uint32(len(long))), "", long, strings.Repeat("é", 64)},
		"bytes":                                {array(u8, 3), "", "\x01\xab\xff", "01abff"},
		"more bytes than a label has":          {array(u8, 100), "", strings.Repeat("\xab", 100), strings.Repeat("ab", 64)},
		"a number in digits of 16":             {u32, v1alpha1.DecodeHex, "\x0f\x00\x00\xff", "0xff00000f"},
		"an address of 4 bytes":                {u32, v1alpha1.DecodeInetIP, "\xc0\x00\x02\x01", "192.0.2.1"},
		"an address of 16 bytes":               {array(u8, 16), v1alpha1.DecodeInetIP, "\x20\x01\x0d\xb8" + strings.Repeat("\x00", 11) + "\x01", "2001:db8::1"},
		"an address in one of 16":              {array(u8, 16), v1alpha1.DecodeInetIP, strings.Repeat("\x00", 10) + "\xff\xff\x0a\x00\x00\x01", "10.0.0.1"},
		"an address by its type":               {inAddr, "", "\x7f\x00\x00\x01", "127.0.0.1"},
		"a hardware address":                   {array(u8, 6), v1alpha1.DecodeMAC, "\x02\x00\x5e\x00\x00\x01", "02:00:5e:00:00:01"},
		"a name of DNS":                        {array(u8, 12), v1alpha1.DecodeDname, "\x03www\x02io\x00abcd", "www.io"},
		"one that lies about its length":       {array(u8, 4), v1alpha1.DecodeDname, "\x09abc", "."},
		"an error":                             {s32, v1alpha1.DecodeErrno, "\xfe\xff\xff\xff", "ENOENT"},
		"an error without a name":              {s32, v1alpha1.DecodeErrno, "\x00\xf0\x00\x00", "61440"},
		"an interface":                         {u32, v1alpha1.DecodeIfname, "\x07\x00\x00\x00", "eth�[0m"},
		"an interface that is gone":            {u32, v1alpha1.DecodeIfname, "\x08\x00\x00\x00", "8"},
		"a device":                             {u32, v1alpha1.DecodeDevice, "\x01\x00\x80\x00", "sda1"},
		"a device that is gone":                {u32, v1alpha1.DecodeDevice, "\x02\x00\x80\x00", "8:2"},
		"a device in two bytes":                {u16, v1alpha1.DecodeDevice, "", ""},
		"an address of the kernel":             {u64, "", "\x00\x00\x20\x81\xff\xff\xff\xff", series.KernelAddress},
		"one in digits of 16":                  {u64, v1alpha1.DecodeHex, "\x00\x00\x20\x81\xff\xff\xff\xff", series.KernelAddress},
		"an error of the kernel in 8 bytes":    {u64, v1alpha1.DecodeHex, "\xfe\xff\xff\xff\xff\xff\xff\xff", "0xfffffffffffffffe"},
		"a number of 16 bytes":                 {&btf.Int{Name: "__int128", Size: 16}, "", strings.Repeat("\x01", 16), strings.Repeat("01", 16)},
		"a member of a union without a name":   {&btf.Union{Size: 4, Members: []btf.Member{{Name: "v4", Type: u32}}}, v1alpha1.DecodeInetIP, "", ""},
		"a pointer":                            {&btf.Pointer{Target: u8}, "", "", ""},
		"a pointer in digits":                  {&btf.Pointer{Target: u8}, v1alpha1.DecodeHex, "", ""},
		"pointers":                             {array(&btf.Pointer{Target: u8}, 2), v1alpha1.DecodeInetIP, "", ""},
		"a processor of a map that has no own": {u32, v1alpha1.DecodeCPU, "", ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			if c.want == "" {
				_, misfits := series.New(&v1alpha1.MapMetrics{Name: "n", Labels: []v1alpha1.MapLabel{{Name: "l", Decoder: c.decoder}}}, of(c.key))
				if len(misfits) == 0 {
					t.Error("it is read")
				}
				return
			}
			got := reader(t, c.key, c.decoder).Append(nil, []byte(c.bytes), 0, node{})
			if labels := series.Split(string(got)); len(labels) != 1 || labels[0] != c.want {
				t.Errorf("labels are %q, want %q", labels, c.want)
			}
		})
	}
}

// TestMembersThatAreNotWhereTheyMayBe: those that BTF places outside, bit fields, members of what has none, and long ways.
func TestMembersThatAreNotWhereTheyMayBe(t *testing.T) {
	inner := &btf.Union{Name: "in", Size: 4, Members: []btf.Member{{Name: "whole", Type: u32}, {Name: "part", Type: u16}}}
	key := &btf.Struct{Name: "key", Size: 12, Members: []btf.Member{
		{Name: "in", Type: inner}, {Type: inner, Offset: 32}, {Name: "bits", Type: u32, Offset: 64, BitfieldSize: 3}, {Name: "outside", Type: u32, Offset: 80},
	}}
	for field, want := range map[string]string{
		"in.whole": "", "part": "", "outside": "outside of it", "bits": "bit field", "in.whole.x": "has no members", "in.other": "it has whole, part",
		"a.b.c.d.e.f.g.h.i": "more than 8 members", "in": "no text by itself", ".": "no member",
	} {
		_, misfits := series.New(&v1alpha1.MapMetrics{Name: "n", Labels: []v1alpha1.MapLabel{{Name: "l", Field: field}}}, of(key))
		got := ""
		for _, misfit := range misfits {
			got += misfit.Error()
		}
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
	}
}

func TestNumbersOfAValue(t *testing.T) {
	inner := &btf.Struct{Name: "in", Size: 8, Members: []btf.Member{{Name: "low", Type: s32}, {Name: "high", Type: u32, Offset: 32}}}
	value := &btf.Struct{Name: "v", Size: 16, Members: []btf.Member{{Name: "a", Type: u64}, {Name: "in", Type: inner, Offset: 64}}}
	m := series.Map{Type: ebpf.Hash, Key: u32, Value: value, KeySize: 4, ValueSize: 16, Order: binary.LittleEndian}
	r, misfits := series.New(&v1alpha1.MapMetrics{Name: "n", Values: map[string]v1alpha1.MapField{"a": "a", "high": "in.high", "low": "in.low"}}, m)
	if len(misfits) > 0 {
		t.Fatal(misfits[0])
	}
	b := []byte("\x00\x00\x00\x00\x01\x00\x00\x00\xff\xff\xff\xff\x05\x00\x00\x00")
	want := map[string]float64{"n_a": 1 << 32, "n_high": 5, "n_low": -1}
	for i, name := range r.Names {
		if got := r.Number(i, b); got != want[name] {
			t.Errorf("%s is %v, want %v", name, got, want[name])
		}
	}
}

// FuzzLabels reads keys of every decoder: a label is UTF-8, and no longer than it may be.
func FuzzLabels(f *testing.F) {
	f.Add([]byte("\x03www\x02io\x00abcd\xff\x1b"))
	f.Add(bytes.Repeat([]byte{0xff}, 256))
	f.Fuzz(func(t *testing.T, key []byte) {
		if len(key) == 0 {
			return
		}
		for _, d := range []v1alpha1.MapDecoder{"", v1alpha1.DecodeString, v1alpha1.DecodeDname, v1alpha1.DecodeHex} {
			got := reader(t, array(u8, uint32(len(key))), d).Append(nil, key, 0, node{})
			label, ended := bytes.CutSuffix(got, []byte{series.Separator})
			if !ended || !utf8.Valid(label) || len(label) > series.MaxLabel {
				t.Errorf("%q of %q", got, d)
			}
		}
	})
}
