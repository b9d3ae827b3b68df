package values

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/cilium/ebpf/btf"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/bytecode/plain"
)

// maxTypeDepth bounds how deep types that are decoded are nested in each other.
const maxTypeDepth = 16

// exact is the greatest integer below which a JSON number loses no bit.
const exact = 1 << 53

// Decode turns the bytes of an object's variables, by name, into the values that its BTF says. Encode
// makes the same bytes of each again; rejected says of the others why they have no value. A variable
// that the object does not have is in neither. The error is for an object that cannot be read.
func Decode(object []byte, raw map[string][]byte) (known map[string]apiextensionsv1.JSON, rejected map[string]error, err error) {
	o, err := objectfile.Read(object)
	if err != nil {
		return nil, nil, fmt.Errorf("read object: %w", err)
	}
	known, rejected = map[string]apiextensionsv1.JSON{}, map[string]error{}
	for name, b := range raw {
		v := o.Spec.Variables[name]
		switch {
		case v == nil:
			continue
		case v.Type == nil && len(b) != int(v.Size()):
			rejected[name] = fmt.Errorf("it takes %d bytes, and %d are given", v.Size(), len(b))
			continue
		case v.Type == nil:
			known[name] = apiextensionsv1.JSON{Raw: fmt.Appendf(nil, "%q", fmt.Sprintf("% x", b))}
			continue
		}
		value, err := valueOf(v.Type.Type, o.Spec.ByteOrder, b)
		if err != nil {
			rejected[name] = fmt.Errorf("%w; set spec.variables by hand", err)
			continue
		}
		known[name] = apiextensionsv1.JSON{Raw: value}
	}
	return known, rejected, nil
}

// valueOf returns the JSON of which values.Encode makes b.
func valueOf(t btf.Type, order binary.ByteOrder, b []byte) ([]byte, error) {
	size, err := plain.Of(btf.Sizeof(t))
	if err != nil {
		return nil, fmt.Errorf("its type has no size: %w", err)
	}
	if size != len(b) || size == 0 {
		return nil, fmt.Errorf("its type takes %d bytes, and %d are given", size, len(b))
	}
	plain, err := decode(t, order, b, maxTypeDepth)
	if err != nil {
		return nil, err
	}
	out, err := json.Marshal(plain)
	if err != nil {
		return nil, fmt.Errorf("write value: %w", err)
	}
	if again, err := Encode(t, order, out); err != nil || !bytes.Equal(again, b) {
		return nil, errors.New("no value of its type makes these bytes, such as where padding is set")
	}
	return out, nil
}

// decode returns the plain value of bytes, which are as many as the type takes.
func decode(t btf.Type, order binary.ByteOrder, b []byte, depth int) (any, error) {
	if depth == 0 {
		return nil, fmt.Errorf("its type is nested more than %d deep", maxTypeDepth)
	}
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Int:
		return decodeNumber(b, order, t.Encoding), nil
	case *btf.Enum:
		return decodeNumber(b, order, map[bool]btf.IntEncoding{true: btf.Signed, false: btf.Unsigned}[t.Signed]), nil
	case *btf.Array:
		return decodeArray(t, order, b, depth)
	case *btf.Struct:
		return decodeStruct(t, order, b, depth)
	default:
		return nil, fmt.Errorf("values of its type (%T) are not read from bytes", t)
	}
}

// decodeArray reads an array; one of char is text.
func decodeArray(t *btf.Array, order binary.ByteOrder, b []byte, depth int) (any, error) {
	if i, is := btf.UnderlyingType(t.Type).(*btf.Int); is && i.Encoding == btf.Char {
		return string(bytes.TrimRight(b, "\x00")), nil
	}
	if t.Nelems == 0 || len(b) == 0 {
		return []any{}, nil
	}
	size := len(b) / int(t.Nelems)
	list := make([]any, 0, t.Nelems)
	for element := range slices.Chunk(b, size) {
		value, err := decode(t.Type, order, element, depth-1)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	return list, nil
}

// decodeStruct reads a struct.
func decodeStruct(t *btf.Struct, order binary.ByteOrder, b []byte, depth int) (any, error) {
	fields, end := map[string]any{}, 0
	for _, m := range t.Members {
		size, err := btf.Sizeof(m.Type)
		from := int(m.Offset.Bytes())
		if err != nil || m.BitfieldSize > 0 || m.Name == "" || from+size > len(b) || from < end {
			return nil, fmt.Errorf("its member %q is a bit field, has no name, no size or bytes of another member", m.Name)
		}
		if size == 0 {
			continue
		}
		end = from + size
		if fields[m.Name], err = decode(m.Type, order, b[from:from+size], depth-1); err != nil {
			return nil, err
		}
	}
	return fields, nil
}

// decodeNumber reads an integer of any size. One that a JSON number does not hold is a decimal string.
func decodeNumber(b []byte, order binary.ByteOrder, encoding btf.IntEncoding) any {
	digits := slices.Clone(b)
	if order == binary.LittleEndian {
		slices.Reverse(digits)
	}
	n := new(big.Int).SetBytes(digits)
	if encoding == btf.Bool {
		return n.Sign() != 0
	}
	if encoding == btf.Signed && len(digits) > 0 && digits[0] >= 0x80 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(digits))))
	}
	if n.CmpAbs(big.NewInt(exact)) <= 0 {
		return n.Int64()
	}
	return n.String()
}
