package registry

import (
	"context"
	"errors"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/disk"
)

// Blobs returns from the cache what leads from an image to its object, as stored: index,
// manifest, config and layer. An image that has more than most bytes is an error.
func (c *Client) Blobs(ctx context.Context, r image.Resolved, most int) ([][]byte, error) {
	if c.cache == nil {
		return nil, image.NotFound("read %s from the cache: this client has none", r.Reference)
	}
	all := &recorder{Source: &disk.CachedSource{Cache: c.cache, ManifestBytes: c.options.ManifestBytes, Reading: disk.FromCache}, most: most}
	// Nothing is on its way here, and what is too large is not read at all.
	own := *c
	own.budget = &budget{objects: c.budget.objects}
	img, err := own.read(ctx, all, r)
	if err != nil {
		return nil, err
	}
	img.Release()
	return all.blobs, nil
}

// recorder keeps what is read from a source, of no more than most bytes.
type recorder struct {
	image.Source
	most  int
	blobs [][]byte
}

// Manifest implements image.Source.
func (r *recorder) Manifest(ctx context.Context, digest v1.Hash) ([]byte, error) {
	data, err := r.Source.Manifest(ctx, digest)
	return r.keep(data, err)
}

// Blob implements image.Source.
func (r *recorder) Blob(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	if d.Size > int64(r.most) {
		return nil, errTooMuch
	}
	data, err := r.Source.Blob(ctx, d)
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
