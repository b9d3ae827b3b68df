package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/atomicfile"
)

const (
	annotationRefName = "org.opencontainers.image.ref.name"
	layoutVersion     = `{"imageLayoutVersion":"1.0.0"}`
	layoutMode        = 0o755
)

// attachedTag is how cosign and the referrers fallback name what belongs to a
// digest.
var attachedTag = regexp.MustCompile(`^sha256-[0-9a-f]{64}(\.[a-z]+)?$`)

// diskLayout is an OCI layout: index.json and blobs/sha256 in a folder. It
// follows no symlink out of the folder and hashes what it reads.
type diskLayout struct {
	dir           string
	manifestBytes int64
	layerBytes    int64
	entries       int
}

func (c *Client) layout(dir string) *diskLayout {
	return &diskLayout{
		dir: dir, manifestBytes: c.options.ManifestBytes, layerBytes: c.options.LayerBytes, entries: c.options.IndexEntries,
	}
}

// Layout is the folder of an image that was resolved from one; an error for an
// image of a registry.
func (c *Client) Layout(r Resolved) (layout.Path, error) {
	if r.Registry != "" {
		return "", malformed("open layout of %s: it is in a registry", r.Reference)
	}
	p, err := layout.FromPath(r.Repository)
	if err != nil {
		return "", notFound("open layout %s: %w", r.Repository, err)
	}
	return p, nil
}

func (l *diskLayout) read(name string, limit int64) ([]byte, error) {
	root, err := os.OpenRoot(l.dir)
	if err != nil {
		return nil, diskError(err)
	}
	defer func() { _ = root.Close() }()
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, diskError(err)
	}
	defer func() { _ = file.Close() }()
	data, err := readFile(file, limit)
	if err != nil {
		return nil, diskError(err)
	}
	return data, nil
}

func diskError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &kindError{kind: ErrNotFound, err: err}
	}
	return &kindError{kind: ErrUnavailable, err: err}
}

func blobName(digest v1.Hash) string { return filepath.Join("blobs", digest.Algorithm, digest.Hex) }

func (l *diskLayout) index() (*v1.IndexManifest, error) {
	data, err := l.read("index.json", l.manifestBytes)
	if err != nil {
		return nil, fmt.Errorf("open layout %s: %w", l.dir, err)
	}
	index := new(v1.IndexManifest)
	if err = checkValues(sum(data), data); err == nil {
		err = json.Unmarshal(data, index)
	}
	if err != nil {
		return nil, malformed("parse index.json of layout %s: %w", l.dir, err)
	}
	if len(index.Manifests) > l.entries {
		return nil, malformed("read index.json of layout %s: its %d entries are more than the limit of %d", l.dir, len(index.Manifests), l.entries)
	}
	return index, nil
}

// resolve finds the digest of a tag, or of the only image where there is none.
func (l *diskLayout) resolve(tag string) (v1.Hash, error) {
	index, err := l.index()
	if err != nil {
		return v1.Hash{}, err
	}
	var found []v1.Descriptor
	var tags []string
	for _, d := range index.Manifests {
		name := d.Annotations[annotationRefName]
		if tag == "" && !l.isAttached(d) || tag != "" && name == tag {
			found = append(found, d)
		}
		if name != "" && !attachedTag.MatchString(name) {
			tags = append(tags, name)
		}
	}
	slices.Sort(tags)
	// A digest that has two tags is one image.
	slices.SortFunc(found, func(a, b v1.Descriptor) int { return strings.Compare(a.Digest.Hex, b.Digest.Hex) })
	found = slices.CompactFunc(found, func(a, b v1.Descriptor) bool { return a.Digest == b.Digest })
	switch {
	case len(found) == 1:
		return parseDigest(found[0].Digest.String())
	case len(found) == 0 && tag == "":
		return v1.Hash{}, notFound("resolve layout %s: it holds no image", l.dir)
	case len(found) == 0:
		return v1.Hash{}, notFound("resolve layout %s: it has no tag %q, only: %s", l.dir, tag, strings.Join(tags, ", "))
	}
	if tag != "" {
		return v1.Hash{}, malformed("resolve layout %s: its tag %q names %d images: name one as oci:DIR@sha256:…", l.dir, tag, len(found))
	}
	return v1.Hash{}, malformed("resolve layout %s: it holds %d images: name one as oci:DIR:TAG of: %s, or as oci:DIR@sha256:…", l.dir, len(found), strings.Join(tags, ", "))
}

// isAttached tells signatures and other referrers from images.
func (l *diskLayout) isAttached(d v1.Descriptor) bool {
	if attachedTag.MatchString(d.Annotations[annotationRefName]) {
		return true
	}
	subject, err := l.subject(d)
	return err == nil && subject != nil
}

func (l *diskLayout) subject(d v1.Descriptor) (*v1.Descriptor, error) {
	data, err := l.manifest(context.Background(), d.Digest)
	if err != nil {
		return nil, err
	}
	var m struct {
		Subject *v1.Descriptor `json:"subject"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, malformed("parse manifest %s: %w", d.Digest, err)
	}
	return m.Subject, nil
}

func (l *diskLayout) manifest(_ context.Context, digest v1.Hash) ([]byte, error) {
	data, err := l.read(blobName(digest), l.manifestBytes)
	if err != nil {
		return nil, fmt.Errorf("read manifest %s of layout %s: %w", digest, l.dir, err)
	}
	if got := sum(data); got != digest {
		return nil, unavailable("read manifest %s of layout %s: its digest is %s: the layout is damaged", digest, l.dir, got)
	}
	if err := checkValues(digest, data); err != nil {
		return nil, malformed("read manifest %s of layout %s: %w", digest, l.dir, err)
	}
	return data, nil
}

func (l *diskLayout) blob(_ context.Context, d v1.Descriptor) ([]byte, error) {
	data, err := l.read(blobName(d.Digest), l.layerBytes)
	if err != nil {
		return nil, fmt.Errorf("read blob %s of layout %s: %w", d.Digest, l.dir, err)
	}
	if int64(len(data)) != d.Size && sum(data) == d.Digest {
		wrong := &sizeError{got: fmt.Sprint(len(data)), want: d.Size, verified: true}
		return nil, unavailable("read blob %s of layout %s: %w", d.Digest, l.dir, wrong)
	}
	if data, err = readVerified(bytes.NewReader(data), d); err != nil {
		return nil, unavailable("read blob %s of layout %s: %w: the layout is damaged", d.Digest, l.dir, err)
	}
	return data, nil
}

func (l *diskLayout) tagged(ctx context.Context, tag string) ([]byte, error) {
	digest, err := l.resolve(tag)
	if err != nil {
		return nil, err
	}
	return l.manifest(ctx, digest)
}

func (l *diskLayout) referrers(_ context.Context, digest v1.Hash) (found []v1.Descriptor, more bool, err error) {
	index, err := l.index()
	if err != nil {
		return nil, false, err
	}
	for _, d := range index.Manifests {
		if d.Digest == digest {
			continue
		}
		if subject, err := l.subject(d); err == nil && subject != nil && subject.Digest == digest {
			found = append(found, d)
		}
	}
	return found, false, nil
}

// putBlob writes a blob whole or not at all.
func (l *diskLayout) putBlob(_ context.Context, d v1.Descriptor, data []byte) error {
	path := filepath.Join(l.dir, blobName(d.Digest))
	if old, err := readRegular(path, int64(len(data))); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), layoutMode); err != nil {
		return fmt.Errorf("make layout: %w", err)
	}
	if err := atomicfile.Write(path, data); err != nil {
		return fmt.Errorf("write blob %s of layout %s: %w", d.Digest, l.dir, err)
	}
	return nil
}

// putChild writes a manifest and does not list it: a layout lists whole images.
func (l *diskLayout) putChild(ctx context.Context, d v1.Descriptor, data []byte) error {
	return l.putBlob(ctx, d, data)
}

// putManifest writes a manifest and lists it: under the tag if there is one,
// which another manifest then loses.
func (l *diskLayout) putManifest(ctx context.Context, d v1.Descriptor, data []byte, tag string) error {
	if err := l.putBlob(ctx, d, data); err != nil {
		return err
	}
	release, err := lockDir(l.dir, syscall.LOCK_EX)
	if err != nil {
		return fmt.Errorf("lock layout %s: %w", l.dir, err)
	}
	defer release()
	index, err := l.index()
	if errors.Is(err, ErrNotFound) {
		index, err = &v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}, nil
	}
	if err != nil {
		return err
	}
	index.Manifests = slices.DeleteFunc(index.Manifests, func(old v1.Descriptor) bool {
		name := old.Annotations[annotationRefName]
		return name == tag && (tag != "" || old.Digest == d.Digest)
	})
	if tag != "" {
		d.Annotations = map[string]string{annotationRefName: tag}
	}
	index.Manifests = append(index.Manifests, d)
	raw, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return fmt.Errorf("encode index.json: %w", err)
	}
	for name, content := range map[string][]byte{"oci-layout": []byte(layoutVersion), "index.json": raw} {
		if err := atomicfile.Write(filepath.Join(l.dir, name), content); err != nil {
			return fmt.Errorf("write %s of layout %s: %w", name, l.dir, err)
		}
	}
	return nil
}
