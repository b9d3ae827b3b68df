package access

import (
	"context"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/disk"
)

// Remembered is an image as one Shared hands it to another, which has another
// cache: all that leads from its digest to its object, and who may read it. The
// blobs prove themselves. That the repository holds them, and that it is open,
// has to be believed.
type Remembered struct {
	Registry   string `json:"registry"`
	Repository string `json:"repository"`
	Digest     string `json:"digest"`
	// Open tells that the Client's own credentials may read it.
	Open bool `json:"open,omitempty"`
	// Blobs are index, manifest, config and layer as stored.
	Blobs [][]byte `json:"blobs"`
}

// Remember hands on an image that was pulled; false where the cache does not
// have all of it, or has more than most bytes.
func (s *Shared) Remember(ctx context.Context, img image.Resolved, most int) (Remembered, bool) {
	known, open := s.own.Cache().Linked(img)
	if !known {
		return Remembered{}, false
	}
	blobs, err := s.own.Blobs(ctx, img, most)
	if err != nil {
		return Remembered{}, false
	}
	return Remembered{Registry: img.Registry, Repository: img.Repository, Digest: img.Digest, Open: open, Blobs: blobs}, true
}

// recall fills the cache with an image that is remembered elsewhere; false where
// it is not.
func (s *Shared) recall(ctx context.Context, img image.Resolved) bool {
	if s.options.Recall == nil || s.own.Cache() == nil {
		return false
	}
	r, ok := s.options.Recall(ctx, img)
	if !ok || r.Registry != img.Registry || r.Repository != img.Repository || r.Digest != img.Digest {
		return false
	}
	for _, blob := range r.Blobs {
		if s.own.Cache().Put(image.Sum(blob), blob) != nil {
			return false
		}
	}
	pulled, err := s.own.PullVia(ctx, img, disk.FromCache)
	if err != nil {
		return false
	}
	pulled.Release()
	return s.own.Cache().Link(img, r.Open) == nil
}
