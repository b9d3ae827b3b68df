package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/transport"
)

// sink is where an image's parts go. Blobs come before the manifests that name
// them.
type sink interface {
	PutBlob(ctx context.Context, d v1.Descriptor, data []byte) error
	// PutChild stores a manifest that an index lists.
	PutChild(ctx context.Context, d v1.Descriptor, data []byte) error
	// PutManifest stores a manifest or index, under a tag if there is one.
	PutManifest(ctx context.Context, d v1.Descriptor, data []byte, tag string) error
}

func (c *Client) sink(r image.Resolved) (sink, error) {
	if r.Registry == "" {
		return c.layout(r.Repository), nil
	}
	repo, err := r.RepositoryName()
	if err != nil {
		return nil, err
	}
	return &registrySink{pusher: c.pusher, repo: repo, secrets: c.secrets}, nil
}

// Push writes a built image to a registry's repository:tag or to oci:DIR[:TAG]
// and tells what the reference stands for afterwards.
func (c *Client) Push(ctx context.Context, reference string, b *image.Built) (image.Resolved, error) {
	return c.write(ctx, reference, b, b.Root.Digest, func(context.Context, transfer) error { return nil })
}

// Copy copies an image with all its platforms, and the signatures and other
// referrers it has, from one registry or layout to another. Digests stay.
func (c *Client) Copy(ctx context.Context, from image.Resolved, to string) (image.Resolved, error) {
	digest, err := image.ParseDigest(from.Digest)
	if err != nil {
		return image.Resolved{}, err
	}
	src, err := c.attached(from)
	if err != nil {
		return image.Resolved{}, err
	}
	return c.write(ctx, to, src, digest, func(ctx context.Context, t transfer) error { return t.attached(ctx, src, digest) })
}

// write transfers one image, then whatever belongs to it, within the timeout.
func (c *Client) write(ctx context.Context, to string, src image.Source, digest v1.Hash, then func(context.Context, transfer) error) (image.Resolved, error) {
	r, err := c.Parse(to)
	if err != nil {
		return image.Resolved{}, err
	}
	if r.Digest != "" && r.Digest != digest.String() {
		return image.Resolved{}, image.Malformed("write %s: the image has digest %s: name a tag, or this digest", to, digest)
	}
	r.Digest = digest.String()
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	dst, err := c.sink(r)
	if err != nil {
		return image.Resolved{}, err
	}
	t := transfer{src, dst, &c.options}
	if err := t.image(ctx, digest, r.Tag, true); err != nil {
		return image.Resolved{}, err
	}
	return r, then(ctx, t)
}

// transfer copies images from one registry or layout to another.
type transfer struct {
	src image.Source
	dst sink
	// limits has those of manifests, layers and lists.
	limits *Options
}

// image copies a manifest with its blobs, or an index with its manifests.
func (t transfer) image(ctx context.Context, digest v1.Hash, tag string, mayIndex bool) error {
	data, err := t.src.Manifest(ctx, digest)
	if err != nil {
		return err
	}
	doc, err := image.ParseDocument(digest, data)
	if err != nil {
		return err
	}
	switch {
	case doc.Image != nil:
		err = t.blobs(ctx, doc.Image)
	case mayIndex:
		err = t.index(ctx, digest, doc.Index)
	default:
		err = image.Malformed("copy index %s: it lies within another index: only one level is followed", digest)
	}
	if err != nil {
		return err
	}
	d := v1.Descriptor{MediaType: doc.MediaType, Digest: digest, Size: int64(len(data))}
	if !mayIndex {
		return t.dst.PutChild(ctx, d, data)
	}
	return t.dst.PutManifest(ctx, d, data, tag)
}

func (t transfer) index(ctx context.Context, digest v1.Hash, index *v1.IndexManifest) error {
	if len(index.Manifests) > t.limits.IndexEntries {
		return image.Malformed("copy index %s: its %d entries are more than the limit of %d", digest, len(index.Manifests), t.limits.IndexEntries)
	}
	for _, d := range index.Manifests {
		if err := image.CheckSize("manifest", d, t.limits.ManifestBytes); err != nil {
			return err
		}
		if err := t.image(ctx, d.Digest, "", false); err != nil {
			return err
		}
	}
	return nil
}

func (t transfer) blobs(ctx context.Context, m *v1.Manifest) error {
	if len(m.Layers) > t.limits.IndexEntries {
		return image.Malformed("copy manifest: its %d layers are more than the limit of %d", len(m.Layers), t.limits.IndexEntries)
	}
	for _, d := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		if err := image.CheckSize("blob", d, t.limits.LayerBytes); err != nil {
			return err
		}
		data, err := t.src.Blob(ctx, d)
		if err != nil {
			return err
		}
		if err := t.dst.PutBlob(ctx, d, data); err != nil {
			return err
		}
	}
	return nil
}

// attachedSuffixes are cosign's tags for what belongs to a digest.
func attachedSuffixes() []string { return []string{".sig", ".att"} }

// attached copies the referrers of a digest and what cosign's tags name; src is the transfer's.
func (t transfer) attached(ctx context.Context, src attachments, digest v1.Hash) error {
	referrers, more, err := src.Referrers(ctx, digest)
	if err != nil && !errors.Is(err, image.ErrNotFound) {
		return err
	}
	if len(referrers) > t.limits.IndexEntries {
		return image.Malformed("copy referrers of %s: their number %d is more than the limit of %d", digest, len(referrers), t.limits.IndexEntries)
	}
	if more {
		return image.Malformed("copy referrers of %s: the list of them is longer than the limit of %d pages or %d bytes",
			digest, transport.PageLimit, transport.ListBytes)
	}
	for _, d := range referrers {
		if err := t.image(ctx, d.Digest, "", true); err != nil {
			return fmt.Errorf("copy referrer: %w", err)
		}
	}
	for _, suffix := range attachedSuffixes() {
		tag := strings.Replace(digest.String(), ":", "-", 1) + suffix
		data, err := src.Tagged(ctx, tag)
		if errors.Is(err, image.ErrNotFound) {
			continue
		}
		if err == nil {
			tagged := t
			tagged.src = &cachedManifest{Source: src, data: data}
			err = tagged.image(ctx, image.Sum(data), tag, true)
		}
		if err != nil {
			return fmt.Errorf("copy %s: %w", tag, err)
		}
	}
	return nil
}

// cachedManifest answers for one manifest that is at hand.
type cachedManifest struct {
	image.Source
	data []byte
}

// Manifest implements image.Source.
func (m *cachedManifest) Manifest(ctx context.Context, digest v1.Hash) ([]byte, error) {
	if image.Sum(m.data) == digest {
		return m.data, nil
	}
	return m.Source.Manifest(ctx, digest)
}
