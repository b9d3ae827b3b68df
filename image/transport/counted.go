package transport

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
)

// countedBody is an answer that ends with an error where it holds more values
// than anybody is to read.
type countedBody struct {
	io.ReadCloser
	values image.ValueCounter
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
	if b.values.Count <= b.limit {
		return n, err
	}
	// The rest is of no use but for the digest, by which all of it is rejected.
	if err == nil {
		_, err = io.Copy(all, b.ReadCloser)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	digest := v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", b.hash.Sum(nil))}
	return 0, &image.TooManyValuesError{Digest: digest, Count: b.values.Count, Limit: b.limit}
}
