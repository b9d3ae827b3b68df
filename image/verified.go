package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Source is where an image's parts come from. What it returns has the digest
// that was asked for.
type Source interface {
	// Manifest returns a manifest or index of at most Options.ManifestBytes.
	Manifest(ctx context.Context, digest v1.Hash) ([]byte, error)
	// Blob returns a config or layer of exactly the descriptor's size.
	Blob(ctx context.Context, d v1.Descriptor) ([]byte, error)
}

// Sum is the sha256 of data.
func Sum(data []byte) v1.Hash {
	h := sha256.Sum256(data)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h[:])}
}

// SizeError is what has another size than its descriptor says.
type SizeError struct {
	Got  string
	Want int64
	// Verified is true where it has the descriptor's digest.
	Verified bool
}

// Error implements error.
func (e *SizeError) Error() string {
	return fmt.Sprintf("it has %s bytes, and its descriptor says %d", e.Got, e.Want)
}

// Is reports whether it is ErrSize: the blob has the digest, and so its size is known.
func (e *SizeError) Is(target error) bool { return e.Verified && target == ErrSize }

// ReadVerified reads exactly the descriptor's bytes and compares their digest.
func ReadVerified(r io.Reader, d v1.Descriptor) ([]byte, error) {
	// The buffer grows with what really comes, not with what is claimed.
	data, err := io.ReadAll(io.LimitReader(r, d.Size+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != d.Size {
		return nil, &SizeError{Got: lengthText(int64(len(data)), d.Size), Want: d.Size, Verified: Sum(data) == d.Digest}
	}
	if got := Sum(data); got != d.Digest {
		return nil, fmt.Errorf("its digest is %s, not the one asked for", got)
	}
	return data, nil
}

func lengthText(got, want int64) string {
	if got > want {
		return fmt.Sprintf("more than %d", want)
	}
	return fmt.Sprint(got)
}
