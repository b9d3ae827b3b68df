package disk

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
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/image"
)

const (
	annotationRefName = "org.opencontainers.image.ref.name"
	layoutVersion     = `{"imageLayoutVersion":"1.0.0"}`
	layoutMode        = 0o755
)

// attachedTag is how cosign and the referrers fallback name what belongs to a
// digest.
var attachedTag = regexp.MustCompile(`^sha256-[0-9a-f]{64}(\.[a-z]+)?$`)

// Layout is an OCI layout: index.json and blobs/sha256 in a folder. It
// follows no symlink out of the folder and hashes what it reads.
type Layout struct {
	Dir           string
	ManifestBytes int64
	LayerBytes    int64
	Entries       int
}

func (l *Layout) read(name string, limit int64) ([]byte, error) {
	root, err := os.OpenRoot(l.Dir)
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
		return image.OfKind(image.ErrNotFound, err)
	}
	return image.OfKind(image.ErrUnavailable, err)
}

func blobName(digest v1.Hash) string { return filepath.Join("blobs", digest.Algorithm, digest.Hex) }

func (l *Layout) index() (*v1.IndexManifest, error) {
	data, err := l.read("index.json", l.ManifestBytes)
	if err != nil {
		return nil, fmt.Errorf("open layout %s: %w", l.Dir, err)
	}
	index := new(v1.IndexManifest)
	if err = image.CheckValues(image.Sum(data), data); err == nil {
		err = json.Unmarshal(data, index)
	}
	if err != nil {
		return nil, image.Malformed("parse index.json of layout %s: %w", l.Dir, err)
	}
	if len(index.Manifests) > l.Entries {
		return nil, image.Malformed("read index.json of layout %s: its %d entries are more than the limit of %d", l.Dir, len(index.Manifests), l.Entries)
	}
	return index, nil
}

// Resolve finds the digest of a tag, or of the only image where there is none.
func (l *Layout) Resolve(tag string) (v1.Hash, error) {
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
		return image.ParseDigest(found[0].Digest.String())
	case len(found) == 0 && tag == "":
		return v1.Hash{}, image.NotFound("resolve layout %s: it holds no image", l.Dir)
	case len(found) == 0:
		return v1.Hash{}, image.NotFound("resolve layout %s: it has no tag %q, only: %s", l.Dir, tag, strings.Join(tags, ", "))
	}
	if tag != "" {
		return v1.Hash{}, image.Malformed("resolve layout %s: its tag %q names %d images: name one as oci:DIR@sha256:…", l.Dir, tag, len(found))
	}
	return v1.Hash{}, image.Malformed("resolve layout %s: it holds %d images: name one as oci:DIR:TAG of: %s, or as oci:DIR@sha256:…",
		l.Dir, len(found), strings.Join(tags, ", "))
}

// isAttached tells signatures and other referrers from images.
func (l *Layout) isAttached(d v1.Descriptor) bool {
	if attachedTag.MatchString(d.Annotations[annotationRefName]) {
		return true
	}
	subject, err := l.subject(d)
	return err == nil && subject != nil
}

func (l *Layout) subject(d v1.Descriptor) (*v1.Descriptor, error) {
	data, err := l.Manifest(context.Background(), d.Digest)
	if err != nil {
		return nil, err
	}
	var m struct {
		Subject *v1.Descriptor `json:"subject"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, image.Malformed("parse manifest %s: %w", d.Digest, err)
	}
	return m.Subject, nil
}

// Manifest implements image.Source.
func (l *Layout) Manifest(_ context.Context, digest v1.Hash) ([]byte, error) {
	data, err := l.read(blobName(digest), l.ManifestBytes)
	if err != nil {
		return nil, fmt.Errorf("read manifest %s of layout %s: %w", digest, l.Dir, err)
	}
	if got := image.Sum(data); got != digest {
		return nil, image.Unavailable("read manifest %s of layout %s: its digest is %s: the layout is damaged", digest, l.Dir, got)
	}
	if err := image.CheckValues(digest, data); err != nil {
		return nil, image.Malformed("read manifest %s of layout %s: %w", digest, l.Dir, err)
	}
	return data, nil
}

// Blob implements image.Source.
func (l *Layout) Blob(_ context.Context, d v1.Descriptor) ([]byte, error) {
	data, err := l.read(blobName(d.Digest), l.LayerBytes)
	if err != nil {
		return nil, fmt.Errorf("read blob %s of layout %s: %w", d.Digest, l.Dir, err)
	}
	if int64(len(data)) != d.Size && image.Sum(data) == d.Digest {
		wrong := &image.SizeError{Got: fmt.Sprint(len(data)), Want: d.Size, Verified: true}
		return nil, image.Unavailable("read blob %s of layout %s: %w", d.Digest, l.Dir, wrong)
	}
	if data, err = image.ReadVerified(bytes.NewReader(data), d); err != nil {
		return nil, image.Unavailable("read blob %s of layout %s: %w: the layout is damaged", d.Digest, l.Dir, err)
	}
	return data, nil
}

// Tagged returns the manifest that a tag names now.
func (l *Layout) Tagged(ctx context.Context, tag string) ([]byte, error) {
	digest, err := l.Resolve(tag)
	if err != nil {
		return nil, err
	}
	return l.Manifest(ctx, digest)
}

// Referrers returns the listed manifests whose subject is the digest, all of them.
func (l *Layout) Referrers(_ context.Context, digest v1.Hash) (found []v1.Descriptor, more bool, err error) {
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

// PutBlob writes a blob whole or not at all.
func (l *Layout) PutBlob(_ context.Context, d v1.Descriptor, data []byte) error {
	path := filepath.Join(l.Dir, blobName(d.Digest))
	if old, err := readRegular(path, int64(len(data))); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), layoutMode); err != nil {
		return fmt.Errorf("make layout: %w", err)
	}
	if err := atomicfile.Write(path, data); err != nil {
		return fmt.Errorf("write blob %s of layout %s: %w", d.Digest, l.Dir, err)
	}
	return nil
}

// PutChild writes a manifest and does not list it: a layout lists whole images.
func (l *Layout) PutChild(ctx context.Context, d v1.Descriptor, data []byte) error {
	return l.PutBlob(ctx, d, data)
}

// PutManifest writes a manifest and lists it: under the tag if there is one,
// which another manifest then loses.
func (l *Layout) PutManifest(ctx context.Context, d v1.Descriptor, data []byte, tag string) error {
	if err := l.PutBlob(ctx, d, data); err != nil {
		return err
	}
	release, err := lockDir(l.Dir, syscall.LOCK_EX)
	if err != nil {
		return fmt.Errorf("lock layout %s: %w", l.Dir, err)
	}
	defer release()
	index, err := l.index()
	if errors.Is(err, image.ErrNotFound) {
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
		if err := atomicfile.Write(filepath.Join(l.Dir, name), content); err != nil {
			return fmt.Errorf("write %s of layout %s: %w", name, l.Dir, err)
		}
	}
	return nil
}
