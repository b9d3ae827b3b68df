package image

import (
	"context"
	"errors"

	v1 "github.com/google/go-containerregistry/pkg/v1"
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
func (s *Shared) Remember(ctx context.Context, image Resolved, most int) (Remembered, bool) {
	known, open := s.own.cache.linked(image)
	if !known {
		return Remembered{}, false
	}
	all := &recorder{source: &cachedSource{cache: s.own.cache, manifestBytes: s.own.options.ManifestBytes, reading: fromCache}, most: most}
	// Nothing is on its way here, and what is too large is not read at all.
	own := *s.own
	own.room = &room{objects: s.own.room.objects}
	pulled, err := own.read(ctx, all, image)
	if err != nil {
		return Remembered{}, false
	}
	pulled.Release()
	return Remembered{Registry: image.Registry, Repository: image.Repository, Digest: image.Digest, Open: open, Blobs: all.blobs}, true
}

// recall fills the cache with an image that is remembered elsewhere; false where
// it is not.
func (s *Shared) recall(ctx context.Context, image Resolved) bool {
	if s.options.Recall == nil || s.own.cache == nil {
		return false
	}
	r, ok := s.options.Recall(ctx, image)
	if !ok || r.Registry != image.Registry || r.Repository != image.Repository || r.Digest != image.Digest {
		return false
	}
	for _, blob := range r.Blobs {
		if s.own.cache.put(sum(blob), blob) != nil {
			return false
		}
	}
	pulled, err := s.own.pull(ctx, image, fromCache)
	if err != nil {
		return false
	}
	pulled.Release()
	return s.own.cache.setLink(image, r.Open) == nil
}

// recorder keeps what is read from a source, of no more than most bytes.
type recorder struct {
	source
	most  int
	blobs [][]byte
}

func (r *recorder) manifest(ctx context.Context, digest v1.Hash) ([]byte, error) {
	data, err := r.source.manifest(ctx, digest)
	return r.keep(data, err)
}

func (r *recorder) blob(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	if d.Size > int64(r.most) {
		return nil, errTooMuch
	}
	data, err := r.source.blob(ctx, d)
	return r.keep(data, err)
}

// errTooMuch says that there is more than was asked for.
var errTooMuch = errors.New("it has too many bytes to be handed on")

func (r *recorder) keep(data []byte, err error) ([]byte, error) {
	if r.most -= len(data); err == nil && r.most < 0 {
		err = errTooMuch
	}
	r.blobs = append(r.blobs, data)
	return data, err
}
