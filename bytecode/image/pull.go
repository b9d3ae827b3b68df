package image

import (
	"context"
	"errors"
	"io/fs"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Resolve tells which digest a reference stands for now. A reference with a
// digest needs no network, a tag takes one HEAD, a layout its index.json.
func (c *Client) Resolve(ctx context.Context, reference string) (Resolved, error) {
	r, err := c.parse(reference)
	if err != nil || r.Digest != "" {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	var hash v1.Hash
	if r.Registry == "" {
		hash, err = c.layout(r.Repository).resolve(r.Tag)
	} else {
		var s *registrySource
		if s, err = c.registry(r); err == nil {
			hash, err = s.head(ctx, s.repo.Tag(r.Tag))
		}
	}
	if err != nil {
		return Resolved{}, err
	}
	r.Digest = hash.String()
	return r, nil
}

// reads asks the registry of a resolved image whether it may be read: one HEAD.
func (c *Client) reads(ctx context.Context, r Resolved) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	digest, err := parseDigest(r.Digest)
	if err != nil {
		return err
	}
	s, err := c.registry(r)
	if err == nil {
		_, err = s.head(ctx, s.repo.Digest(digest.String()))
	}
	return err
}

func (c *Client) registry(r Resolved) (*registrySource, error) {
	repo, err := r.repository()
	if err != nil {
		return nil, err
	}
	return &registrySource{puller: c.puller, repo: repo}, nil
}

// attached is the source of a resolved image and of what is attached to it,
// around the cache.
func (c *Client) attached(r Resolved) (attachments, error) {
	if r.Registry == "" {
		return c.layout(r.Repository), nil
	}
	return c.registry(r)
}

// source is the like around, through or out of the cache.
func (c *Client) source(r Resolved, how reading) (source, error) {
	direct, err := c.attached(r)
	if err != nil || c.cache == nil {
		return direct, err
	}
	return &cachedSource{cache: c.cache, next: direct, manifestBytes: c.options.ManifestBytes, reading: how}, nil
}

// Pull fetches the object of a resolved image, by digest only and verified at
// every step. An image in the cache needs no network at all.
func (c *Client) Pull(ctx context.Context, r Resolved) (*Image, error) {
	return c.pull(ctx, r, throughCache)
}

func (c *Client) pull(ctx context.Context, r Resolved, how reading) (*Image, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	src, err := c.source(r, how)
	if err != nil {
		return nil, err
	}
	digest, err := parseDigest(r.Digest)
	if err != nil {
		return nil, err
	}
	digest, m, err := c.descend(ctx, src, digest)
	if err != nil {
		return nil, err
	}
	image := &Image{Resolved: r, ManifestDigest: digest.String()}
	if err := c.fill(ctx, src, image, digest, m); err != nil {
		return nil, err
	}
	object := sum(image.Object)
	image.ObjectDigest = object.String()
	if c.cache != nil {
		if err := c.cache.put(object, image.Object); err != nil {
			return nil, err
		}
	}
	return image, nil
}

// descend finds the manifest of the platform, through at most one index.
func (c *Client) descend(ctx context.Context, src source, digest v1.Hash) (v1.Hash, *v1.Manifest, error) {
	doc, err := fetchDocument(ctx, src, digest)
	if err != nil || doc.image != nil {
		return digest, doc.image, err
	}
	d, err := choose(digest, doc.index, c.options.Platform, c.options.IndexEntries)
	if err == nil {
		err = checkSize("manifest", d, c.options.ManifestBytes)
	}
	if err != nil {
		return v1.Hash{}, nil, err
	}
	inner, err := fetchDocument(ctx, src, d.Digest)
	if err == nil && inner.image == nil {
		err = malformed("read index %s: its entry %s is an index again: only one level is followed", digest, d.Digest)
	}
	return d.Digest, inner.image, err
}

func fetchDocument(ctx context.Context, src source, digest v1.Hash) (document, error) {
	data, err := src.manifest(ctx, digest)
	if err != nil {
		return document{}, err
	}
	return parseDocument(digest, data)
}

// fill reads the layer and, of an image, the config.
func (c *Client) fill(ctx context.Context, src source, image *Image, digest v1.Hash, m *v1.Manifest) error {
	layer, err := onlyLayer(digest, m, c.options.LayerBytes)
	if err != nil {
		return err
	}
	artifact := !m.Config.MediaType.IsConfig()
	image.Labels = m.Annotations
	if !artifact {
		if err := checkSize("config", m.Config, c.options.ManifestBytes); err != nil {
			return err
		}
		config, err := src.blob(ctx, m.Config)
		if err != nil {
			return err
		}
		if image.Labels, err = labelsOf(m.Config, config); err != nil {
			return err
		}
	}
	data, err := src.blob(ctx, layer)
	if err != nil {
		return err
	}
	image.Size = layer.Size
	image.Object, err = objectOf(layer, data, artifact, c.options.ObjectBytes)
	return err
}

// Object returns an object that an earlier Pull left in the cache, by its own
// digest and hashed again; ErrNotFound where there is none.
func (c *Client) Object(_ context.Context, objectDigest string) ([]byte, error) {
	digest, err := parseDigest(objectDigest)
	if err != nil {
		return nil, err
	}
	if c.cache == nil {
		return nil, notFound("read object %s: there is no cache: set a cache folder", digest)
	}
	data, err := c.cache.get(digest, c.options.ObjectBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notFound("read object %s: it is not in the cache: pull its image first", digest)
	}
	return data, err
}

// Keep puts an object that came another way into the cache; an error where it
// has another digest than it should.
func (c *Client) Keep(objectDigest string, object []byte) error {
	digest, err := parseDigest(objectDigest)
	switch {
	case err != nil:
		return err
	case sum(object) != digest:
		return malformed("keep object %s: its digest is %s", digest, sum(object))
	case c.cache == nil:
		return nil
	}
	return c.cache.put(digest, object)
}
