package values

import (
	"bytes"
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
)

// maxBytes bounds a value: what a data section map can hold is far below it.
const maxBytes = 16 << 20

// Encode turns one JSON value into the bytes of a variable of the type, in the
// given byte order. Numbers may also be decimal or 0x strings, char arrays are
// strings, enums names, structs objects whose absent fields are zero, and
// arrays lists whose absent elements are zero.
func Encode(t btf.Type, order binary.ByteOrder, raw []byte) ([]byte, error) {
	size, err := btf.Sizeof(t)
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
	e := encoder{order: order, out: make([]byte, size)}
	if err := e.put(0, "", t, value); err != nil {
		return nil, err
	}
	return e.out, nil
}

type encoder struct {
	order binary.ByteOrder
	out   []byte
}

// put writes the value at the offset. The path leads from the variable to it,
// for messages.
func (e *encoder) put(at uint32, path string, t btf.Type, value any) error {
	switch u := btf.UnderlyingType(t).(type) {
	case *btf.Int:
		return e.putInt(at, path, describe(t), u, value)
	case *btf.Enum:
		return e.putEnum(at, path, u, value)
	case *btf.Array:
		return e.putArray(at, path, u, value)
	case *btf.Struct:
		return e.putStruct(at, path, u, value)
	case *btf.Float:
		return e.putFloat(at, path, u, value)
	case *btf.Union:
		return fail(path, "it is a union, whose bytes have no one meaning; use a struct")
	case *btf.Pointer:
		return fail(path, "it is a pointer, which only the program can set; use a plain value")
	}
	return fail(path, "its type %s cannot be set; use a number, bool, enum, array or struct", describe(t))
}

func (e *encoder) putInt(at uint32, path, what string, t *btf.Int, value any) error {
	if t.Encoding == btf.Bool {
		b, ok := value.(bool)
		if !ok {
			return mismatch(path, "a bool", "true or false", value)
		}
		if b {
			e.putBits(at, t.Size, big.NewInt(1))
		}
		return nil
	}
	n, err := integer(value)
	if err != nil {
		if c, ok := value.(string); ok && t.Encoding == btf.Char && len(c) == 1 {
			e.putBits(at, t.Size, big.NewInt(int64(c[0])))
			return nil
		}
		return mismatch(path, what, "a whole number; above 2^53 as a decimal or 0x string", value)
	}
	return e.putRange(at, path, t.Size, t.Encoding == btf.Signed, what, n)
}

func (e *encoder) putEnum(at uint32, path string, t *btf.Enum, value any) error {
	if name, ok := value.(string); ok {
		for _, v := range t.Values {
			if v.Name == name {
				e.putBits(at, t.Size, new(big.Int).SetUint64(v.Value))
				return nil
			}
		}
	}
	n, err := integer(value)
	if err == nil {
		for _, v := range t.Values {
			if n.IsUint64() && v.Value == n.Uint64() || t.Signed && n.IsInt64() && int64(v.Value) == n.Int64() {
				e.putBits(at, t.Size, n)
				return nil
			}
		}
	}
	var names []string
	for _, v := range t.Values {
		names = append(names, v.Name)
	}
	return fail(path, "%s is no value of %s; write one of %s", show(value), describe(t), strings.Join(names, ", "))
}

func (e *encoder) putArray(at uint32, path string, t *btf.Array, value any) error {
	size, err := btf.Sizeof(t.Type)
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

func (e *encoder) putStruct(at uint32, path string, t *btf.Struct, value any) error {
	object, ok := value.(map[string]any)
	if !ok {
		return mismatch(path, describe(t), "an object with its fields", value)
	}
	keys := make([]string, 0, len(object))
	for k := range object {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		i := slices.IndexFunc(t.Members, func(m btf.Member) bool { return m.Name == k })
		if i < 0 || k == "" {
			return fail(path, "%s has no field %q; it has %s", describe(t), k, fields(t))
		}
		m := t.Members[i]
		if m.BitfieldSize != 0 {
			return fail(path+"."+k, "it is a bit field, which shares its bytes with others; make it a whole integer")
		}
		if err := e.put(at+m.Offset.Bytes(), path+"."+k, m.Type, object[k]); err != nil {
			return err
		}
	}
	return nil
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

// putRange writes n where the type holds it.
func (e *encoder) putRange(at uint32, path string, size uint32, signed bool, what string, n *big.Int) error {
	low, high := bounds(size, signed)
	if n.Cmp(low) < 0 || n.Cmp(high) > 0 {
		return fail(path, "%s is out of range; %s holds %s to %s", n, what, low, high)
	}
	e.putBits(at, size, n)
	return nil
}

// putBits writes the low bits of n in two's complement.
func (e *encoder) putBits(at, size uint32, n *big.Int) {
	n = new(big.Int).Mod(n, new(big.Int).Lsh(big.NewInt(1), uint(size)*8))
	cut := e.out[at : at+size]
	n.FillBytes(cut)
	if e.order == binary.LittleEndian {
		slices.Reverse(cut)
	}
}

func bounds(size uint32, signed bool) (low, high *big.Int) {
	one := big.NewInt(1)
	bits := uint(size) * 8
	if !signed {
		return new(big.Int), new(big.Int).Sub(new(big.Int).Lsh(one, bits), one)
	}
	half := new(big.Int).Lsh(one, bits-1)
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
