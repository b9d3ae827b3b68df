package image

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// valueLimit bounds the values in a document that a registry sends: some five
// hundred descriptors with all their fields. Of a megabyte of JSON every other
// byte can be one, and a descriptor takes 136 bytes of the memory, whatever
// stands in its place.
const valueLimit = 8192

// referrerLimit bounds those in a list of referrers, which grows with each scan of
// an image: some eighteen hundred of them.
const referrerLimit = 16384

// values counts the values in JSON as it comes, without reading it: each begins
// a list or an object, or follows a comma.
type values struct {
	count         int
	text, escaped bool
}

// Write counts on, and keeps nothing. It never fails.
func (v *values) Write(data []byte) (int, error) {
	for _, b := range data {
		switch {
		case v.escaped:
			v.escaped = false
		case v.text:
			v.escaped, v.text = b == '\\', b != '"'
		case b == '"':
			v.text = true
		case b == ',' || b == '[' || b == '{':
			v.count++
		}
	}
	return len(data), nil
}

// Values counts the lists, objects and further values in JSON, however wrong it
// is, before anything is made of them.
func Values(data []byte) int {
	var v values
	_, _ = v.Write(data)
	return v.count
}

// overfullError is a document that holds more values than are read.
type overfullError struct {
	digest       v1.Hash
	count, limit int
}

func (e *overfullError) Error() string {
	return fmt.Sprintf("it holds %d values, more than the limit of %d", e.count, e.limit)
}

// checkValues refuses a document that holds too many, before it is decoded.
func checkValues(digest v1.Hash, data []byte) error {
	if n := Values(data); n > valueLimit {
		return &overfullError{digest: digest, count: n, limit: valueLimit}
	}
	return nil
}

// countedBody is an answer that ends with an error where it holds more values
// than anybody is to read.
type countedBody struct {
	io.ReadCloser
	values values
	limit  int
	hash   hash.Hash
}

func counted(body io.ReadCloser, limit int) *countedBody {
	return &countedBody{ReadCloser: body, limit: limit, hash: sha256.New()}
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	all := io.MultiWriter(&b.values, b.hash)
	_, _ = all.Write(p[:n])
	if b.values.count <= b.limit {
		return n, err
	}
	// The rest is of no use but for the digest, by which all of it is refused.
	if err == nil {
		_, err = io.Copy(all, b.ReadCloser)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	digest := v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", b.hash.Sum(nil))}
	return 0, &overfullError{digest: digest, count: b.values.count, limit: b.limit}
}
