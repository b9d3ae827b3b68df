package registry

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/disk"
	"github.com/skep-dev/skep/recent"
)

// maxDescribed is how many bytes are remembered of images that were read, maxDescription
// of one: it takes many images for one to be forgotten. minDescription is what one takes
// without labels.
const maxDescribed, maxDescription, minDescription = 8 * mib, 8 << 10, 512

// described is what an image that was read once came to, but for its object.
type described struct {
	image Image
	// blobs lead from the image's digest to its object, which is the last.
	blobs []v1.Hash
}

// bytes is how much of the memory d takes, about. What takes more than one may counts as
// all there is, so that it is not remembered.
func (d described) bytes() int {
	size := minDescription
	for name, value := range d.image.Labels {
		size += len(name) + len(value)
	}
	if size > maxDescription {
		return maxDescribed
	}
	return size
}

// newDescriptions remembers images by their digests, for one platform. An object of another
// digest is another one, so that a description holds for as long as it is known.
func newDescriptions() *recent.Cache[described] {
	return recent.New(recent.Options[described]{Entries: maxDescribed / minDescription, Bytes: maxDescribed, Size: described.bytes})
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
	known, ok := c.described.Get(r.Digest)
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
