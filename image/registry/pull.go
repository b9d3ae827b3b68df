package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/disk"
)

// Resolve tells which digest a reference stands for now. A reference with a
// digest needs no network, a tag takes one HEAD, a layout its index.json.
func (c *Client) Resolve(ctx context.Context, reference string) (image.Resolved, error) {
	r, err := c.Parse(reference)
	if err != nil || r.Digest != "" {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	var hash v1.Hash
	if r.Registry == "" {
		hash, err = c.layout(r.Repository).Resolve(r.Tag)
	} else {
		var s *registrySource
		if s, err = c.registry(r); err == nil {
			hash, err = s.head(ctx, s.repo.Tag(r.Tag))
		}
	}
	if err != nil {
		return image.Resolved{}, err
	}
	r.Digest = hash.String()
	return r, nil
}

// Readable asks the registry of a resolved image whether it may be read: one HEAD.
func (c *Client) Readable(ctx context.Context, r image.Resolved) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	digest, err := image.ParseDigest(r.Digest)
	if err != nil {
		return err
	}
	s, err := c.registry(r)
	if err == nil {
		_, err = s.head(ctx, s.repo.Digest(digest.String()))
	}
	return err
}

func (c *Client) registry(r image.Resolved) (*registrySource, error) {
	if err := c.permit(r); err != nil {
		return nil, err
	}
	repo, err := r.RepositoryName()
	if err != nil {
		return nil, err
	}
	puller, err := c.pullers.of(repo)
	return &registrySource{puller: puller, repo: repo, secrets: c.secrets, report: c.report()}, err
}

// report is Options.Unreachable. It returns the cause that was reported, which repeats no secret.
func (c *Client) report() func(registry string, cause error) error {
	if c.options.Unreachable == nil {
		return nil
	}
	return func(registry string, cause error) error {
		c.secrets.Hide(&cause, registry)
		c.options.Unreachable(registry, cause)
		return cause
	}
}

// permit rejects an image of a registry that may not be named.
func (c *Client) permit(r image.Resolved) error {
	if c.allowed.Repository(r.Registry, r.Repository) {
		return nil
	}
	if c.options.Unreachable == nil {
		return fmt.Errorf("parse reference %q: %w", r.Reference, c.allowed.Reject(r.Registry, r.Repository))
	}
	return image.OfKind(image.ErrNotAllowed, fmt.Errorf("parse reference %q: "+unreachableText, r.Reference, r.Registry))
}

// attached is the source of a resolved image and of what is attached to it,
// around the cache.
func (c *Client) attached(r image.Resolved) (attachments, error) {
	if r.Registry == "" {
		return c.layout(r.Repository), nil
	}
	return c.registry(r)
}

// source is the like around, through or out of the cache.
func (c *Client) source(r image.Resolved, how disk.Reading) (image.Source, error) {
	direct, err := c.attached(r)
	switch {
	case err != nil:
		return nil, err
	case c.cache == nil && how == disk.FromCache:
		return nil, image.NotFound("read %s from the cache: this client has none", r.Reference)
	case c.cache == nil:
		return direct, nil
	}
	return &disk.CachedSource{Cache: c.cache, Next: direct, ManifestBytes: c.options.ManifestBytes, Reading: how}, nil
}

// Pull fetches the object of a resolved image, by digest only and verified at
// every step. An image in the cache needs no network at all. The caller releases
// it.
func (c *Client) Pull(ctx context.Context, r image.Resolved) (*Image, error) {
	return c.PullVia(ctx, r, disk.ThroughCache)
}

// PullVia is Pull with a way to use the cache.
func (c *Client) PullVia(ctx context.Context, r image.Resolved, how disk.Reading) (*Image, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	src, err := c.source(r, how)
	if err != nil {
		return nil, err
	}
	img, err := c.read(ctx, src, r)
	if err != nil {
		return nil, err
	}
	if c.cache != nil {
		if err := c.keep(img); err != nil {
			img.Release()
			return nil, err
		}
	}
	return img, nil
}

// keep puts an object that was pulled into the cache, and remembers its image.
func (c *Client) keep(img *Image) error {
	object := image.Sum(img.Object)
	if err := c.cache.Put(object, img.Object); err != nil {
		return err
	}
	known := described{image: *img, blobs: append(slices.Clone(img.blobs), object)}
	known.image.Object, known.image.Resolved, known.image.release = nil, image.Resolved{}, nil
	c.described.Put(img.Digest, known)
	return nil
}

// read goes from the digest to the object.
func (c *Client) read(ctx context.Context, src image.Source, r image.Resolved) (_ *Image, err error) {
	defer c.secrets.Hide(&err, r.Registry+"/"+r.Repository)
	digest, err := image.ParseDigest(r.Digest)
	if err != nil {
		return nil, err
	}
	manifest, m, err := c.descend(ctx, src, digest)
	if err != nil {
		return nil, err
	}
	img := &Image{Resolved: r, ManifestDigest: manifest.String(), blobs: taken(digest, manifest, m)}
	if err := c.fill(ctx, src, img, manifest, m); err != nil {
		if c.secrets.Hide(&err); errors.Is(err, image.ErrMalformed) {
			c.noteMalformed(img.ManifestDigest, err)
		}
		return nil, err
	}
	img.ObjectDigest, img.ObjectSize = image.Sum(img.Object).String(), int64(len(img.Object))
	return img, nil
}

// taken are the blobs that read takes for an image.
func taken(digest, manifest v1.Hash, m *v1.Manifest) []v1.Hash {
	blobs := []v1.Hash{digest, manifest}
	if m.Config.MediaType.IsConfig() {
		blobs = append(blobs, m.Config.Digest)
	}
	for _, layer := range m.Layers {
		blobs = append(blobs, layer.Digest)
	}
	return blobs
}

// descend finds the manifest of the platform, through at most one index.
func (c *Client) descend(ctx context.Context, src image.Source, digest v1.Hash) (v1.Hash, *v1.Manifest, error) {
	doc, err := c.document(ctx, src, digest)
	if err != nil || doc.Image != nil {
		return digest, doc.Image, err
	}
	d, err := image.ChooseManifest(digest, doc.Index, c.options.Platform, c.options.IndexEntries)
	if err == nil {
		err = image.CheckSize("manifest", d, c.options.ManifestBytes)
	}
	if err != nil {
		return v1.Hash{}, nil, err
	}
	inner, err := c.document(ctx, src, d.Digest)
	if err == nil && inner.Image == nil {
		err = image.Malformed("read index %s: its entry %s is an index again: only one level is followed", digest, d.Digest)
	}
	return d.Digest, inner.Image, err
}

// document reads a manifest or an index, and remembers one that is neither.
func (c *Client) document(ctx context.Context, src image.Source, digest v1.Hash) (image.Document, error) {
	data, err := src.Manifest(ctx, digest)
	if err == nil {
		err = c.knownMalformed(digest.String())
	}
	if err != nil {
		return image.Document{}, err
	}
	doc, err := image.ParseDocument(digest, data)
	if err != nil {
		c.secrets.Hide(&err)
		c.noteMalformed(digest.String(), err)
	}
	return doc, err
}

// fill reads the layer and, of an image, the config.
func (c *Client) fill(ctx context.Context, src image.Source, img *Image, digest v1.Hash, m *v1.Manifest) error {
	layer, err := image.OnlyLayer(digest, m, c.options.LayerBytes)
	if err != nil {
		return err
	}
	artifact := !m.Config.MediaType.IsConfig()
	img.Labels = m.Annotations
	if !artifact {
		if err := image.CheckSize("config", m.Config, c.options.ManifestBytes); err != nil {
			return err
		}
		config, err := src.Blob(ctx, m.Config)
		if err != nil {
			return err
		}
		if img.Labels, err = image.LabelsOf(m.Config, config); err != nil {
			return err
		}
	}
	if err := image.CheckLabels(digest, img.Labels); err != nil {
		return err
	}
	data, release, err := c.layer(ctx, src, img.Registry, layer)
	if err != nil {
		return err
	}
	// An image that was filled has the room, and nothing else does: a panic of the
	// code that unpacks is recovered far from here.
	defer func() {
		if img.release == nil {
			release()
		}
	}()
	if img.Object, err = image.ObjectOf(layer, data, artifact, c.options.ObjectBytes); err != nil {
		return err
	}
	img.Size, img.release = layer.Size, release
	return nil
}

// layer reads a layer, and returns it with room for its object. One that is in
// the cache is read when there is room; one that is not, or is gone by then, comes
// first, so that no registry has another image wait for it.
func (c *Client) layer(ctx context.Context, src image.Source, registry string, d v1.Descriptor) (data []byte, release func(), err error) {
	if cached, ok := src.(*disk.CachedSource); ok && (cached.Reading == disk.FromCache || cached.Has(d)) {
		if data, release, err = c.cachedLayer(ctx, cached, d); !errors.Is(err, fs.ErrNotExist) {
			return data, release, err
		}
	}
	arrived, err := c.budget.forLayer(ctx, d.Size, c.tenant, registry)
	if err != nil {
		return nil, nil, err
	}
	defer arrived()
	if data, err = src.Blob(ctx, d); err != nil {
		return nil, nil, err
	}
	release, err = c.budget.forObject(ctx)
	return data, release, err
}

// cachedLayer is a layer of the cache with room for its object; without the layer, there
// is no room taken either.
func (c *Client) cachedLayer(ctx context.Context, cached *disk.CachedSource, d v1.Descriptor) (data []byte, release func(), err error) {
	room, err := c.budget.forObject(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if release == nil {
			room()
		}
	}()
	if data, err = cached.Kept(d); err != nil {
		return nil, nil, err
	}
	return data, room, nil
}

// Object returns an object that an earlier Pull left in the cache, by its own
// digest and hashed again; ErrNotFound where there is none.
func (c *Client) Object(_ context.Context, objectDigest string) ([]byte, error) {
	digest, err := image.ParseDigest(objectDigest)
	if err != nil {
		return nil, err
	}
	if c.cache == nil {
		return nil, image.NotFound("read object %s: there is no cache: set a cache folder", digest)
	}
	data, err := c.cache.Get(digest, c.options.ObjectBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, image.NotFound("read object %s: it is not in the cache: pull its image first", digest)
	}
	return data, err
}

// Keep puts an object that came another way into the cache; an error where it
// has another digest than it should.
func (c *Client) Keep(objectDigest string, object []byte) error {
	digest, err := image.ParseDigest(objectDigest)
	switch {
	case err != nil:
		return err
	case image.Sum(object) != digest:
		return image.Malformed("keep object %s: its digest is %s", digest, image.Sum(object))
	case c.cache == nil:
		return nil
	}
	return c.cache.Put(digest, object)
}

// layout is an OCI layout, read within the bounds.
func (c *Client) layout(dir string) *disk.Layout {
	return &disk.Layout{
		Dir: dir, ManifestBytes: c.options.ManifestBytes, LayerBytes: c.options.LayerBytes, Entries: c.options.IndexEntries,
	}
}

// Layout is the folder of an image that was resolved from one; an error for an
// image of a registry.
func (c *Client) Layout(r image.Resolved) (layout.Path, error) {
	if r.Registry != "" {
		return "", image.Malformed("open layout of %s: it is in a registry", r.Reference)
	}
	p, err := layout.FromPath(r.Repository)
	if err != nil {
		return "", image.NotFound("open layout %s: %w", r.Repository, err)
	}
	return p, nil
}
