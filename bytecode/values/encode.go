package values

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/bytecode/plain"
)

// maxBytes bounds a value: what a data section map can hold is far below it.
const maxBytes = 16 << 20

// Encode turns one JSON value into the bytes of a variable of the type, in the
// given byte order. Numbers may also be decimal or 0x strings, char arrays are
// strings, enums names, structs objects whose absent fields are zero, unions objects
// with one of their members, and arrays lists whose absent elements are zero.
func Encode(t btf.Type, order binary.ByteOrder, raw []byte) ([]byte, error) {
	size, err := plain.Of(btf.Sizeof(t))
	if err != nil {
		return nil, fmt.Errorf("its type %s has no size: %w", describe(t), err)
	}
	if size > maxBytes {
		return nil, fmt.Errorf("its type %s takes %d bytes, and at most %d can be set; use a map", describe(t), size, maxBytes)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err != nil {
		return nil, fmt.Errorf("its value is not JSON: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("its value is more than one JSON document; give one")
	}
	e := encoder{order: order, out: make([]byte, size), fields: map[btf.Type]map[string]member{}}
	if err := e.put(0, "", t, value); err != nil {
		return nil, err
	}
	return e.out, nil
}

type encoder struct {
	order binary.ByteOrder
	out   []byte
	// fields of structs and unions that were looked at.
	fields map[btf.Type]map[string]member
}

// put writes the value at the offset. The path leads from the variable to it,
// for messages.
func (e *encoder) put(at uint32, path string, t btf.Type, value any) error {
	switch u := btf.UnderlyingType(t).(type) {
	case *btf.Int:
		return e.putNumber(uint64(at)*8, u.Size*8, path, t, value)
	case *btf.Enum:
		return e.putNumber(uint64(at)*8, u.Size*8, path, t, value)
	case *btf.Array:
		return e.putArray(at, path, u, value)
	case *btf.Struct:
		return e.putFields(at, path, t, u.Members, value)
	case *btf.Union:
		return e.putFields(at, path, t, u.Members, value)
	case *btf.Float:
		return e.putFloat(at, path, u, value)
	case *btf.Pointer:
		return fail(path, "it is a pointer, which only the program can set; use a plain value")
	}
	return fail(path, "its type %s cannot be set; use a number, bool, enum, array or struct", describe(t))
}

// putNumber writes an integer, a bool or an enum of so many bits.
func (e *encoder) putNumber(at uint64, bits uint32, path string, t btf.Type, value any) error {
	n, signed, err := number(path, t, value)
	if err != nil {
		return err
	}
	what := describe(t)
	if size, err := btf.Sizeof(t); err == nil && uint64(bits) != uint64(size)*8 {
		what = fmt.Sprintf("a bit field of %d bits of %s", bits, what)
	}
	if bits == 0 || bits > 128 {
		return fail(path, "its type %s of %d bits is none; compile the object anew", what, bits)
	}
	low, high := bounds(bits, signed)
	if n.Cmp(low) < 0 || n.Cmp(high) > 0 {
		return fail(path, "%s is out of range; %s holds %s to %s", n, what, low, high)
	}
	e.putBits(at, bits, n)
	return nil
}

// number is the integer that stands for a value of a type.
func number(path string, t btf.Type, value any) (n *big.Int, signed bool, err error) {
	switch u := btf.UnderlyingType(t).(type) {
	case *btf.Int:
		n, err = intValue(path, t, u, value)
		return n, u.Encoding == btf.Signed, err
	case *btf.Enum:
		n, err = enumValue(path, u, value)
		return n, u.Signed, err
	}
	return nil, false, fail(path, "its type %s is no number; compile the object anew", describe(t))
}

func intValue(path string, t btf.Type, u *btf.Int, value any) (*big.Int, error) {
	if u.Encoding == btf.Bool {
		is, ok := value.(bool)
		switch {
		case !ok:
			return nil, mismatch(path, "a bool", "true or false", value)
		case is:
			return big.NewInt(1), nil
		}
		return new(big.Int), nil
	}
	n, err := integer(value)
	if err == nil {
		return n, nil
	}
	if c, ok := value.(string); ok && u.Encoding == btf.Char && len(c) == 1 {
		return big.NewInt(int64(c[0])), nil
	}
	return nil, mismatch(path, describe(t), "a whole number; above 2^53 as a decimal or 0x string", value)
}

func enumValue(path string, t *btf.Enum, value any) (*big.Int, error) {
	name, isName := value.(string)
	n, err := integer(value)
	var names []string
	for _, v := range t.Values {
		has := new(big.Int).SetUint64(v.Value)
		if t.Signed {
			has.SetInt64(int64(v.Value))
		}
		if isName && v.Name == name || err == nil && has.Cmp(n) == 0 {
			return has, nil
		}
		names = append(names, v.Name)
	}
	return nil, fail(path, "%s is no value of %s; write one of %s", show(value), describe(t), strings.Join(names, ", "))
}

func (e *encoder) putArray(at uint32, path string, t *btf.Array, value any) error {
	size, err := plain.Of(btf.Sizeof(t.Type))
	if err != nil {
		return fail(path, "its elements have no size: %v", err)
	}
	if text, ok := value.(string); ok && isChar(t.Type) {
		// The last byte stays zero: C code reads up to it.
		if len(text) >= int(t.Nelems) {
			return fail(path, "the text has %d bytes, and char[%d] holds %d and a closing zero; shorten it", len(text), t.Nelems, max(0, int(t.Nelems)-1))
		}
		if strings.IndexByte(text, 0) >= 0 {
			return fail(path, "the text has a zero byte, at which C code would stop reading; take it out")
		}
		copy(e.out[at:], text)
		return nil
	}
	list, ok := value.([]any)
	if !ok {
		want := "a list"
		if isChar(t.Type) {
			want = "a string"
		}
		return mismatch(path, describe(t), want, value)
	}
	if len(list) > int(t.Nelems) {
		return fail(path, "the list has %d elements, and %s holds %d; shorten it", len(list), describe(t), t.Nelems)
	}
	for i, one := range list {
		if err := e.put(at+uint32(i*size), fmt.Sprintf("%s[%d]", path, i), t.Type, one); err != nil {
			return err
		}
	}
	return nil
}

// member is a field of a struct or union, and how many bits it lies behind the beginning.
type member struct {
	btf.Member
	at uint64
}

const (
	// maxNesting bounds how deep structs without a name nest whose fields are looked up.
	maxNesting = 32
	// maxMembers bounds the fields that are looked up: types form a graph, and a few
	// kilobytes of nested unions have more fields than there is memory.
	maxMembers = 4096
)

// members lists the fields that C knows by name: those of structs and unions without a
// name are fields of what they are in.
func members(all []btf.Member) []member {
	var found []member
	looked := 0
	var add func(all []btf.Member, at uint64, depth int)
	add = func(all []btf.Member, at uint64, depth int) {
		for _, m := range all {
			at := at + uint64(m.Offset)
			if looked++; looked > maxMembers || depth == maxNesting {
				return
			}
			if m.Name != "" {
				found = append(found, member{m, at})
				continue
			}
			switch u := btf.UnderlyingType(m.Type).(type) {
			case *btf.Struct:
				add(u.Members, at, depth+1)
			case *btf.Union:
				add(u.Members, at, depth+1)
			}
		}
	}
	add(all, 0, 0)
	return found
}

// fieldsOf are the members by their names. A type is looked at once, whatever the number
// of values.
func (e *encoder) fieldsOf(t btf.Type, all []btf.Member) map[string]member {
	if e.fields[t] == nil {
		fields := map[string]member{}
		for _, m := range members(all) {
			fields[m.Name] = m
		}
		e.fields[t] = fields
	}
	return e.fields[t]
}

// bits is how many bits a field has.
func (m member) bits() uint64 {
	if m.BitfieldSize != 0 {
		return uint64(m.BitfieldSize)
	}
	size, err := btf.Sizeof(m.Type)
	if err != nil || size < 0 {
		return 0
	}
	return uint64(size) * 8
}

// putFields writes fields of a struct or a union. Of fields that share bytes, as those of
// a union do, one is given.
func (e *encoder) putFields(at uint32, path string, t btf.Type, all []btf.Member, value any) error {
	object, ok := value.(map[string]any)
	if !ok {
		return mismatch(path, describe(t), "an object with its fields", value)
	}
	known := e.fieldsOf(t, all)
	var written []member
	for _, k := range sorted(object) {
		m, ok := known[k]
		if !ok {
			return fail(path, "%s has no field %q; it has %s", describe(t), k, fieldNames(all))
		}
		if err := e.putField(uint64(at)*8+m.at, path+"."+k, m, object[k]); err != nil {
			return err
		}
		written = append(written, m)
	}
	slices.SortStableFunc(written, func(a, b member) int { return cmp.Compare(a.at, b.at) })
	for i, m := range written {
		if i > 0 && m.at < written[i-1].at+written[i-1].bits() {
			return fail(path, "%s and %s share their bytes; give one of them", written[i-1].Name, m.Name)
		}
	}
	return nil
}

// putField writes one field, at so many bits.
func (e *encoder) putField(at uint64, path string, m member, value any) error {
	// BTF is the object's to say, and need not be true.
	switch {
	case at+m.bits() > uint64(len(e.out))*8:
		return fail(path, "its BTF places it outside of what it is a part of; compile the object anew")
	case m.BitfieldSize != 0:
		return e.putNumber(at, uint32(m.BitfieldSize), path, m.Type, value)
	case at%8 != 0:
		return fail(path, "its BTF places it between two bytes; compile the object anew")
	}
	return e.put(uint32(at/8), path, m.Type, value)
}

func (e *encoder) putFloat(at uint32, path string, t *btf.Float, value any) error {
	n, ok := value.(json.Number)
	if !ok {
		return mismatch(path, describe(t), "a number", value)
	}
	f, err := n.Float64()
	if err != nil {
		return fail(path, "%s does not fit into %s", n, describe(t))
	}
	switch t.Size {
	case 4:
		if math.Abs(f) > math.MaxFloat32 {
			return fail(path, "%s does not fit into %s", n, describe(t))
		}
		e.order.PutUint32(e.out[at:], math.Float32bits(float32(f)))
	case 8:
		e.order.PutUint64(e.out[at:], math.Float64bits(f))
	default:
		return fail(path, "its type %s cannot be set; use a whole number", describe(t))
	}
	return nil
}

// putBits writes the low bits of n in two's complement. Bits of a byte are counted as
// compilers lay out bit fields: from the lowest, or in big endian from the highest.
func (e *encoder) putBits(at uint64, bits uint32, n *big.Int) {
	n = new(big.Int).Mod(n, new(big.Int).Lsh(big.NewInt(1), uint(bits)))
	for i := range uint64(bits) {
		// The i-th bit of n, from its lowest, is so many bits behind the beginning.
		place, shift := at+i, (at+i)%8
		if e.order != binary.LittleEndian {
			place = at + uint64(bits) - 1 - i
			shift = 7 - place%8
		}
		e.out[place/8] |= byte(n.Bit(int(i))) << shift
	}
}

func bounds(bits uint32, signed bool) (low, high *big.Int) {
	one := big.NewInt(1)
	if !signed {
		return new(big.Int), new(big.Int).Sub(new(big.Int).Lsh(one, uint(bits)), one)
	}
	half := new(big.Int).Lsh(one, uint(bits)-1)
	return new(big.Int).Neg(half), new(big.Int).Sub(half, one)
}

// integer reads a JSON number or a decimal or 0x string. A fraction or an
// exponent is rejected: it may not be the number that was meant.
func integer(value any) (*big.Int, error) {
	var text string
	base := 10
	switch v := value.(type) {
	case json.Number:
		text = v.String()
	case string:
		text = v
		if rest, ok := strings.CutPrefix(strings.ToLower(v), "0x"); ok {
			text, base = rest, 16
		}
	default:
		return nil, errors.New("not a number")
	}
	digits := strings.TrimPrefix(text, "-")
	if base == 16 {
		digits = text
	}
	if digits == "" || len(digits) > 64 || strings.ContainsAny(digits, "+-_ .") {
		return nil, errors.New("not a whole number")
	}
	n, ok := new(big.Int).SetString(text, base)
	if !ok {
		return nil, errors.New("not a whole number")
	}
	return n, nil
}
