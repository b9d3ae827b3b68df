package image

import (
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// ValueLimit bounds the values in a document that a registry sends: some five
// hundred descriptors with all their fields. Of a megabyte of JSON every other
// byte can be one, and a descriptor takes 136 bytes of the memory, whatever
// stands in its place.
const ValueLimit = 8192

// ReferrerLimit bounds those in a list of referrers, which grows with each scan of
// an image: some eighteen hundred of them.
const ReferrerLimit = 16384

// ValueCounter counts the values in JSON as it comes, without reading it: each begins
// a list or an object, or follows a comma.
type ValueCounter struct {
	Count         int
	text, escaped bool
}

// Write counts on, and keeps nothing. It never fails.
func (v *ValueCounter) Write(data []byte) (int, error) {
	for _, b := range data {
		switch {
		case v.escaped:
			v.escaped = false
		case v.text:
			v.escaped, v.text = b == '\\', b != '"'
		case b == '"':
			v.text = true
		case b == ',' || b == '[' || b == '{':
			v.Count++
		}
	}
	return len(data), nil
}

// Values counts the lists, objects and further values in JSON, however wrong it
// is, before anything is made of them.
func Values(data []byte) int {
	var v ValueCounter
	_, _ = v.Write(data)
	return v.Count
}

// TooManyValuesError is a document that holds more values than are read.
type TooManyValuesError struct {
	Digest       v1.Hash
	Count, Limit int
}

// Error implements error.
func (e *TooManyValuesError) Error() string {
	return fmt.Sprintf("it holds %d values, more than the limit of %d", e.Count, e.Limit)
}

// CheckValues rejects a document that holds too many, before it is decoded.
func CheckValues(digest v1.Hash, data []byte) error {
	if n := Values(data); n > ValueLimit {
		return &TooManyValuesError{Digest: digest, Count: n, Limit: ValueLimit}
	}
	return nil
}
