package skepmap

import (
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
)

// native is the order of bytes of this machine.
var native = binary.NativeEndian

// side is what a Go value stands for: the key or the value of a map.
type side string

const (
	theKey   side = "key"
	theValue side = "value"
)

// bytesOf are the bytes of a key or value as the kernel has them, size of them.
func bytesOf(v any, size int, of side) ([]byte, error) {
	var raw []byte
	var err error
	switch v := v.(type) {
	case nil:
		return nil, fmt.Errorf("the %s is nil", of)
	case []byte:
		raw = v
	case encoding.BinaryMarshaler:
		raw, err = v.MarshalBinary()
	default:
		if raw, err = binary.Append(nil, native, v); err != nil {
			return nil, noFixedSize(v, of)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("encode the %s: %w", of, err)
	}
	return raw, checkSize(v, len(raw), size, of)
}

// fill sets what v points to from the bytes of a key or value.
func fill(v any, raw []byte, of side) error {
	switch v := v.(type) {
	case *[]byte:
		*v = append((*v)[:0], raw...)
		return nil
	case encoding.BinaryUnmarshaler:
		return v.UnmarshalBinary(raw)
	}
	if reflect.ValueOf(v).Kind() != reflect.Pointer {
		return fmt.Errorf("the %s is a %T; give a pointer to one", of, v)
	}
	size := binary.Size(v)
	if size < 0 {
		return noFixedSize(v, of)
	}
	if err := checkSize(v, size, len(raw), of); err != nil {
		return err
	}
	_, err := binary.Decode(raw, native, v)
	return err
}

// bytesOfAll is bytesOf of the value of a per-CPU map: v is a slice with one for each CPU.
func bytesOfAll(v any, size, cpus int) ([]byte, error) {
	slice := reflect.ValueOf(v)
	if slice.Kind() != reflect.Slice || slice.Type().Elem().Kind() == reflect.Uint8 && size != 1 {
		return nil, fmt.Errorf("the map has a value for each CPU, and the value is a %T; give a slice of %d", v, cpus)
	}
	if slice.Len() != cpus {
		return nil, fmt.Errorf("the map has a value for each of %d CPUs, and the slice %d", cpus, slice.Len())
	}
	var all []byte
	for i := range cpus {
		raw, err := bytesOf(slice.Index(i).Interface(), size, theValue)
		if err != nil {
			return nil, err
		}
		all = append(all, raw...)
	}
	return all, nil
}

// fillAll is fill for the value of a per-CPU map: v points to a slice, which gets an element for
// each CPU.
func fillAll(v any, raw []byte, size int) error {
	pointer := reflect.ValueOf(v)
	if pointer.Kind() != reflect.Pointer || pointer.Elem().Kind() != reflect.Slice || pointer.Type().Elem().Elem().Kind() == reflect.Uint8 && size != 1 {
		return fmt.Errorf("the map has a value for each CPU, and the value is a %T; give a pointer to a slice, such as *[]uint64", v)
	}
	if size == 0 || len(raw)%size != 0 {
		return fmt.Errorf("%d bytes are no number of values of %d bytes", len(raw), size)
	}
	slice := reflect.MakeSlice(pointer.Type().Elem(), len(raw)/size, len(raw)/size)
	for i := range slice.Len() {
		if err := fill(slice.Index(i).Addr().Interface(), raw[i*size:][:size], theValue); err != nil {
			return err
		}
	}
	pointer.Elem().Set(slice)
	return nil
}

// noFixedSize is the error for a Go type that package encoding/binary cannot encode.
func noFixedSize(v any, of side) error {
	return fmt.Errorf("%T has no fixed size and cannot be the %s: use types such as uint32 for int, and arrays for slices and strings", v, of)
}

func checkSize(v any, have, want int, of side) error {
	if have == want {
		return nil
	}
	return &SizeError{Type: fmt.Sprintf("%T", v), Of: string(of), Have: have, Want: want}
}

// SizeError is the error for a Go type of another size than the map's keys or values.
type SizeError struct {
	// Type is the Go type, and Of what it was for: key or value.
	Type, Of string
	// Have is how many bytes the type has without padding, and Want how many the map has.
	Have, Want int
}

// Error names both sizes, and the reason that they usually differ for.
func (e *SizeError) Error() string {
	return fmt.Sprintf("%s has %d bytes, and the map's %s %d: write the padding of the C type as fields, such as _ [4]byte", e.Type, e.Have, e.Of, e.Want)
}

// Errors of maps.
var (
	// ErrWithdrawn is that of a map that the folder does not have: it was not granted, or not any more.
	ErrWithdrawn = errors.New("the map is not granted to this reader, or not any more")
	// ErrReplaced is that of a ring buffer whose map was replaced: consume it anew.
	ErrReplaced = errors.New("the ring buffer was replaced by a new version of the program")
)
