package values_test

import (
	"bytes"
	"encoding/binary"
	"maps"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/values"
	"github.com/skep-dev/skep/test/fixture/programs"
)

func object(t testing.TB, name string) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(programs.Object(name)))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestValuesBecomeBytesByBTF(t *testing.T) {
	le := binary.LittleEndian
	u32 := func(n uint32) []byte { return le.AppendUint32(nil, n) }
	u64 := func(n uint64) []byte { return le.AppendUint64(nil, n) }
	for sentence, c := range map[string]struct {
		name, json string
		want       []byte
	}{
		"a bool is true":                         {"a_bool", `true`, []byte{1}},
		"a bool is false":                        {"a_bool", `false`, []byte{0}},
		"an unsigned byte takes its largest":     {"a_u8", `255`, []byte{255}},
		"a signed byte takes its smallest":       {"an_s8", `-128`, []byte{0x80}},
		"16 bits are little endian":              {"a_u16", `258`, []byte{2, 1}},
		"a negative number is two's complement":  {"an_s16", `-2`, []byte{0xfe, 0xff}},
		"32 bits as a number":                    {"a_u32", `4294967295`, u32(4294967295)},
		"32 bits signed":                         {"an_s32", `-2147483648`, u32(1 << 31)},
		"64 bits as a decimal string":            {"a_u64", `"18446744073709551615"`, u64(1<<64 - 1)},
		"64 bits as a 0x string":                 {"a_u64", `"0xFFFFffff00000001"`, u64(0xffffffff00000001)},
		"a number above 2^53 loses no bit":       {"a_u64", `9007199254740993`, u64(9007199254740993)},
		"the smallest 64-bit number as a string": {"an_s64", `"-9223372036854775808"`, u64(1 << 63)},
		"an enum by name":                        {"a_mode", `"ENFORCE"`, u32(1)},
		"an enum by number":                      {"a_mode", `7`, u32(7)},
		"a wide enum by name":                    {"a_wide", `"LARGE"`, u64(0x100000000)},
		"text ends with zeros":                   {"a_name", `"eth0"`, append([]byte("eth0"), make([]byte, 12)...)},
		"text may fill all but the last byte":    {"a_name", `"123456789012345"`, append([]byte("123456789012345"), 0)},
		"empty text is zeros":                    {"a_name", `""`, make([]byte, 16)},
		"a short list leaves zeros":              {"ports", `[1, 258]`, []byte{1, 0, 2, 1, 0, 0, 0, 0}},
		"a list of lists":                        {"grid", `[[1,2,3],[4,5,"0x6"]]`, bytes.Join([][]byte{u32(1), u32(2), u32(3), u32(4), u32(5), u32(6)}, nil)},
		"a struct with absent fields zero":       {"a_config", `{"from":{"x":-1,"y":2},"to":[{},{"y":3}],"name":"ab","mode":"OFF","on":true}`, config()},
		"an empty struct is zeros":               {"a_config", `{}`, make([]byte, 40)},
		"a variable in .data":                    {"in_data", `9`, u32(9)},
		"a variable in .bss":                     {"in_bss", `9`, u64(9)},
		"a variable in a section of its own":     {"in_own_rodata", `9`, u32(9)},
	} {
		t.Run(sentence, func(t *testing.T) {
			spec := object(t, "xdp_variables")
			err := values.Apply(spec, map[string]apiextensionsv1.JSON{c.name: {Raw: []byte(c.json)}})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, spec.Variables[c.name].Value); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// config is a_config laid out by hand: from at 0, to at 8 and 16, name at 24,
// mode at 32, on at 36.
func config() []byte {
	b := make([]byte, 40)
	copy(b, []byte{0xff, 0xff, 0, 0, 2})
	b[20] = 3
	copy(b[24:], "ab")
	b[32], b[36] = 7, 1
	return b
}

func TestWhatCannotBeSetIsRefusedInWords(t *testing.T) {
	for sentence, c := range map[string]struct {
		object, name, json string
		want               []string
	}{
		"a name the object lacks":            {"xdp_variables", "nope", `1`, []string{"variables.nope", "no variable of that name", "a_bool"}},
		"a static variable":                  {"xdp_variables", "a_static", `1`, []string{"variables.a_static", "static", "without static"}},
		"an object without BTF":              {"xdp_nobtf", "x", `1`, []string{"no variable"}},
		"a number out of range":              {"xdp_variables", "a_u8", `256`, []string{"256 is out of range", "__u8", "0 to 255"}},
		"a negative number for unsigned":     {"xdp_variables", "a_u32", `-1`, []string{"-1 is out of range", "0 to 4294967295"}},
		"a number below the smallest":        {"xdp_variables", "an_s8", `-129`, []string{"-128 to 127"}},
		"a 64-bit number out of range":       {"xdp_variables", "a_u64", `"18446744073709551616"`, []string{"out of range"}},
		"a fraction":                         {"xdp_variables", "a_u32", `1.5`, []string{"1.5 is not __u32", "whole number"}},
		"an exponent":                        {"xdp_variables", "a_u32", `1e3`, []string{"whole number"}},
		"a word for a number":                {"xdp_variables", "a_u32", `"ten"`, []string{`"ten" is not __u32`}},
		"a signed hex string":                {"xdp_variables", "a_u32", `"0x-1"`, []string{"whole number"}},
		"an underscore in a number":          {"xdp_variables", "a_u32", `"1_000"`, []string{"whole number"}},
		"an empty string for a number":       {"xdp_variables", "a_u32", `""`, []string{"whole number"}},
		"a bool for a number":                {"xdp_variables", "a_u32", `true`, []string{"true is not __u32"}},
		"null":                               {"xdp_variables", "a_u32", `null`, []string{"null is not __u32"}},
		"a number for a bool":                {"xdp_variables", "a_bool", `1`, []string{"1 is not a bool", "true or false"}},
		"an enum's name that does not exist": {"xdp_variables", "a_mode", `"NO"`, []string{`"NO" is no value of enum mode`, "OBSERVE, ENFORCE, OFF"}},
		"an enum's number between others":    {"xdp_variables", "a_mode", `2`, []string{"2 is no value of enum mode"}},
		"text too long":                      {"xdp_variables", "a_name", `"1234567890123456"`, []string{"16 bytes", "char[16] holds 15"}},
		"text with a zero byte":              {"xdp_variables", "a_name", `"a\u0000b"`, []string{"zero byte"}},
		"a number for text":                  {"xdp_variables", "a_name", `5`, []string{"5 is not char[16]", "a string"}},
		"a list too long":                    {"xdp_variables", "ports", `[1,2,3,4,5]`, []string{"5 elements", "__u16[4]"}},
		"text for a list of numbers":         {"xdp_variables", "ports", `"80"`, []string{"a list"}},
		"a bad element":                      {"xdp_variables", "grid", `[[1,2,3],[4,-5]]`, []string{"[1][1]: -5 is out of range"}},
		"a field the struct lacks":           {"xdp_variables", "a_config", `{"form":{}}`, []string{`no field "form"`, "from, to, name, mode, on"}},
		"a bad field deep inside":            {"xdp_variables", "a_config", `{"to":[{},{"x":40000}]}`, []string{"to[1].x: 40000 is out of range"}},
		"a list for a struct":                {"xdp_variables", "a_config", `[]`, []string{"an object with its fields"}},
		"a bit field out of range": {"xdp_variables", "a_bits", `{"low":16}`, []string{
			"low: 16 is out of range", "a bit field of 4 bits of __u32 holds 0 to 15",
		}},
		"no JSON":       {"xdp_variables", "a_u8", `{`, []string{"not JSON"}},
		"two documents": {"xdp_variables", "a_u8", `1 2`, []string{"more than one"}},
		"nothing":       {"xdp_variables", "a_u8", ``, []string{"not JSON"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			err := values.Apply(object(t, c.object), map[string]apiextensionsv1.JSON{c.name: {Raw: []byte(c.json)}})
			if err == nil {
				t.Fatal("it was set")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

// TestAVariableWithoutBTFTakesItsBytes: objects of Rust have none unless their builders ask.
func TestAVariableWithoutBTFTakesItsBytes(t *testing.T) {
	for raw, want := range map[string]string{`"01 ff"`: "\x01\xff", `"01FF"`: "\x01\xff", `1`: "", `"01"`: "", `"0x01ff"`: "", `"1"`: ""} {
		spec := object(t, "xdp_variables")
		spec.Variables["a_u16"].Type = nil
		err := values.Apply(spec, map[string]apiextensionsv1.JSON{"a_u16": {Raw: []byte(raw)}})
		switch {
		case want == "" && (err == nil || !strings.Contains(err.Error(), "no BTF") || !strings.Contains(err.Error(), "write its 2 bytes") ||
			!strings.Contains(err.Error(), "-g")):
			t.Errorf("%s: %v", raw, err)
		case want != "" && (err != nil || string(spec.Variables["a_u16"].Value) != want):
			t.Errorf("%s: %q, %v", raw, spec.Variables["a_u16"].Value, err)
		}
	}
}

func TestEveryRefusalIsTold(t *testing.T) {
	err := values.Apply(object(t, "xdp_variables"), map[string]apiextensionsv1.JSON{
		"a_u8": {Raw: []byte(`-1`)}, "nope": {Raw: []byte(`1`)}, "a_u16": {Raw: []byte(`1`)},
	})
	if err == nil || strings.Count(err.Error(), "variables.") != 2 {
		t.Errorf("Apply = %v", err)
	}
}

func TestTypesWithoutObjects(t *testing.T) {
	le, be := binary.LittleEndian, binary.BigEndian
	char := &btf.Int{Name: "char", Size: 1, Encoding: btf.Signed}
	u128 := &btf.Int{Name: "unsigned __int128", Size: 16}
	signed := &btf.Enum{Name: "level", Size: 4, Signed: true, Values: []btf.EnumValue{{Name: "LOW", Value: ^uint64(0)}}}
	bits := &btf.Struct{Size: 2, Members: []btf.Member{
		{Name: "a", Type: &btf.Int{Size: 2}, BitfieldSize: 3},
		{Name: "b", Type: &btf.Int{Size: 2, Encoding: btf.Signed}, Offset: 3, BitfieldSize: 4},
		{Name: "c", Type: &btf.Int{Size: 2}, Offset: 7, BitfieldSize: 3},
	}}
	anonymous := &btf.Struct{Size: 4, Members: []btf.Member{{Type: &btf.Int{Size: 4}}}}
	for sentence, c := range map[string]struct {
		t     btf.Type
		order binary.ByteOrder
		json  string
		want  []byte
		err   string
	}{
		"big endian":                  {&btf.Int{Size: 4}, be, `1`, []byte{0, 0, 0, 1}, ""},
		"big endian negative":         {&btf.Int{Size: 2, Encoding: btf.Signed}, be, `-2`, []byte{0xff, 0xfe}, ""},
		"128 bits":                    {u128, le, `"0x0102030405060708090a0b0c0d0e0f10"`, []byte{16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, ""},
		"a double":                    {&btf.Float{Name: "double", Size: 8}, le, `1.5`, []byte{0, 0, 0, 0, 0, 0, 0xf8, 0x3f}, ""},
		"a float":                     {&btf.Float{Name: "float", Size: 4}, le, `-2`, []byte{0, 0, 0, 0xc0}, ""},
		"a float too large":           {&btf.Float{Name: "float", Size: 4}, le, `1e300`, nil, "does not fit"},
		"a double too large":          {&btf.Float{Name: "double", Size: 8}, le, `1e999`, nil, "does not fit"},
		"a double from text":          {&btf.Float{Name: "double", Size: 8}, le, `"1"`, nil, "a number"},
		"a long double":               {&btf.Float{Name: "long double", Size: 16}, le, `1`, nil, "cannot be set"},
		"a negative enum by name":     {signed, le, `"LOW"`, []byte{255, 255, 255, 255}, ""},
		"a negative enum by number":   {signed, le, `-1`, []byte{255, 255, 255, 255}, ""},
		"text in signed chars":        {&btf.Array{Type: char, Nelems: 3}, le, `"ab"`, []byte("ab\x00"), ""},
		"a list of char codes":        {&btf.Array{Type: char, Nelems: 2}, le, `[65, -1]`, []byte{65, 255}, ""},
		"a union":                     {&btf.Union{Name: "u", Size: 4}, le, `1`, nil, "1 is not union u"},
		"bit fields in big endian":    {bits, be, `{"a":5,"b":-2,"c":1}`, []byte{0b10111100, 0b01000000}, ""},
		"bit fields in little endian": {bits, le, `{"a":5,"b":-2,"c":1}`, []byte{0b11110101, 0b00000000}, ""},
		"a field beyond its struct":   {&btf.Struct{Size: 4, Members: []btf.Member{{Name: "m", Type: &btf.Int{Size: 4}, Offset: 8}}}, le, `{"m":1}`, nil, "outside"},
		"a bit field beyond": {
			&btf.Struct{Size: 1, Members: []btf.Member{{Name: "m", Type: &btf.Int{Size: 1}, Offset: 6, BitfieldSize: 3}}}, le, `{"m":1}`, nil, "outside",
		},
		"a bit field of a struct": {
			&btf.Struct{Size: 4, Members: []btf.Member{{Name: "m", Type: anonymous, BitfieldSize: 3}}}, le, `{"m":1}`, nil, "is no number",
		},
		"a struct between two bytes": {
			&btf.Struct{Size: 8, Members: []btf.Member{{Name: "m", Type: anonymous, Offset: 3}}}, le, `{"m":{}}`, nil, "between two bytes",
		},
		"an integer of no bytes":      {&btf.Int{Name: "none"}, le, `0`, nil, "of 0 bits is none"},
		"an integer of many bytes":    {&btf.Int{Name: "many", Size: 1 << 20}, le, `0`, nil, "bits is none"},
		"unions nested in each other": {nested(30), le, `{"x":1}`, nil, `no field "x"; it has none`},
		"a pointer":                   {&btf.Pointer{Target: char}, le, `1`, nil, "it is a pointer"},
		"no name for an unnamed part": {anonymous, le, `{"":1}`, nil, "it has none"},
		"too large a value":           {&btf.Array{Type: u128, Nelems: 1 << 21}, le, `[]`, nil, "use a map"},
		"a type without size":         {&btf.Fwd{Name: "f"}, le, `1`, nil, "has no size"},
		"a typedef of a const":        {&btf.Typedef{Name: "t", Type: &btf.Const{Type: &btf.Int{Size: 1}}}, le, `7`, []byte{7}, ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			got, err := values.Encode(c.t, c.order, []byte(c.json))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("Encode = %v, %v; want an error that says %q", got, err, c.err)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
}

// nested is a union without a name, of two of its like within each other: few types, and
// more fields than there is memory.
func nested(depth int) btf.Type {
	if depth == 0 {
		return &btf.Union{Size: 4}
	}
	inner := nested(depth - 1)
	return &btf.Union{Size: 4, Members: []btf.Member{{Type: inner}, {Type: inner}}}
}

func FuzzEncode(f *testing.F) {
	for _, seed := range []string{`1`, `"0x1"`, `{"from":{"x":1}}`, `[[1]]`, `"OFF"`, `null`, `1e9`, `[{"flags":{"level":-1}},{"port":1,"address":{"v4":1}}]`} {
		f.Add(seed)
	}
	specs := []*ebpf.CollectionSpec{object(f, "xdp_variables"), object(f, "xdp_nested")}
	f.Fuzz(func(t *testing.T, json string) {
		for _, spec := range specs {
			for name, v := range spec.Variables {
				got, err := values.Encode(v.Type.Type, spec.ByteOrder, []byte(json))
				if err == nil && len(got) != int(v.Size()) {
					t.Errorf("%s: %d bytes for a variable of %d", name, len(got), v.Size())
				}
			}
		}
	})
}

// FuzzContents gives every map of an object one entry twice: it fits, or it is said what
// does not, and of no map both.
func FuzzContents(f *testing.F) {
	for _, seed := range [][2]string{
		{`0`, `1`}, {`{"proto":"TCP"}`, `{"rate":1}`}, {`{"prefixlen":33}`, `1`}, {`"01ff"`, `"000000"`}, {`1`, `"set_b"`}, {`1`, `"xdp_second"`},
	} {
		f.Add(seed[0], seed[1])
	}
	spec := object(f, "xdp_contents")
	f.Fuzz(func(t *testing.T, key, value string) {
		entry := v1alpha1.MapEntry{Key: apiextensionsv1.JSON{Raw: []byte(key)}, Value: apiextensionsv1.JSON{Raw: []byte(value)}}
		for name, ms := range spec.Maps {
			one := &ebpf.CollectionSpec{Maps: maps.Clone(spec.Maps), Programs: spec.Programs, ByteOrder: spec.ByteOrder, Types: spec.Types}
			one.Maps[name] = ms.Copy()
			misfits := values.Contents(one, map[string]v1alpha1.Map{name: {Contents: []v1alpha1.MapEntry{entry}}}, []v1alpha1.Program{{Name: "xdp_contents"}})
			contents := one.Maps[name].Contents
			if len(misfits) > 0 || strings.HasPrefix(name, ".") {
				continue
			}
			given, ok := contents[len(contents)-1].Key.([]byte)
			if !ok || len(given) != int(ms.KeySize) || len(contents) > int(ms.MaxEntries) {
				t.Errorf("%s: %d entries, the last is %v", name, len(contents), contents[len(contents)-1])
			}
		}
	})
}
