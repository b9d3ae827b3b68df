package registry

import (
	"context"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/disk"
)

// maxDescribed is how many bytes are remembered of images that were read, and
// maxDescription of one: it takes many images for one to be forgotten.
const maxDescribed, maxDescription = 8 * mib, 8 << 10

// described is what an image that was read once came to, but for its object.
type described struct {
	image Image
	// blobs lead from the image's digest to its object, which is the last.
	blobs []v1.Hash
}

// bytes is how much of the memory d takes, about.
func (d described) bytes() int {
	size := 512
	for name, value := range d.image.Labels {
		size += len(name) + len(value)
	}
	return size
}

// descriptions remembers images by their digests, for one platform. An object of
// another digest is another one, so that a description holds for as long as it is known.
type descriptions struct {
	mu    sync.Mutex
	all   map[string]described
	bytes int
}

func (d *descriptions) of(digest string) (described, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	one, ok := d.all[digest]
	return one, ok
}

func (d *descriptions) note(digest string, one described) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.all[digest]; known || one.bytes() > maxDescription {
		return
	}
	if d.all == nil || d.bytes+one.bytes() > maxDescribed {
		d.all, d.bytes = map[string]described{}, 0
	}
	d.all[digest] = one
	d.bytes += one.bytes()
}

// Describe is Pull for whoever knows what is in the object: an image that was pulled
// before, and that the cache has still, is returned without its object. The caller
// releases it.
func (c *Client) Describe(ctx context.Context, r image.Resolved) (*Image, error) {
	return c.DescribeVia(ctx, r, disk.ThroughCache)
}

// DescribeVia is pull where it must not be: where the registry is to show what it has, or
// where a blob is gone that Pull would read.
func (c *Client) DescribeVia(ctx context.Context, r image.Resolved, how disk.Reading) (*Image, error) {
	known, ok := c.described.of(r.Digest)
	if !ok || how == disk.PastCache || c.cache == nil || !c.cache.Uses(known.blobs) {
		return c.PullVia(ctx, r, how)
	}
	if err := c.permit(r); r.Registry != "" && err != nil {
		return nil, err
	}
	img := known.image
	img.Resolved, img.release = r, func() {}
	return &img, nil
}
