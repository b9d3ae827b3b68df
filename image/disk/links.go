package disk

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/image"
)

// A link says in the cache that a repository held every byte of an image: an
// empty file DIR/links/REPOSITORY-DIGEST, by hashes. One that says openly is of
// an image that Skep's own credentials may read: every tenant may read it then.
const openly = "open"

// linkAge is how long a link is kept that nobody uses.
const linkAge = 24 * time.Hour

// linkPath is the path of an image's link; empty where there can be none.
func (c *Cache) linkPath(r image.Resolved) string {
	digest, err := image.ParseDigest(r.Digest)
	if c == nil || err != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(r.Registry + "/" + r.Repository))
	return filepath.Join(c.links, hex.EncodeToString(sum[:16])+"-"+digest.Hex)
}

// Linked reports whether the repository was seen to hold the image, and whether it
// is open.
func (c *Cache) Linked(r image.Resolved) (known, open bool) {
	path := c.linkPath(r)
	if path == "" {
		return false, false
	}
	data, err := readRegular(path, int64(len(openly)))
	if err != nil {
		return false, false
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now)
	return true, string(data) == openly
}

// Link notes that the repository holds the image. With open, every tenant may read it from
// the cache: only package access calls it.
func (c *Cache) Link(r image.Resolved, open bool) error {
	path := c.linkPath(r)
	if path == "" {
		return nil
	}
	content := ""
	if open {
		content = openly
	}
	unlock, err := lockDir(c.dir, syscall.LOCK_SH)
	if err == nil {
		defer unlock()
		err = atomicfile.Write(path, []byte(content))
	}
	if err != nil {
		return image.OfKind(image.ErrCache, fmt.Errorf("link %s to its repository: %w", r.Digest, err))
	}
	return nil
}

// sweepLinks drops the links of images that the cache does not have any more,
// and those that nobody used for long.
func (c *Cache) sweepLinks(minAge time.Duration) error {
	entries, err := os.ReadDir(c.links)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		age := time.Since(info.ModTime())
		_, hex, _ := strings.Cut(entry.Name(), "-")
		_, err = os.Lstat(c.path(v1.Hash{Hex: hex}))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if age < minAge || err == nil && age < linkAge && !atomicfile.IsTemporary(entry.Name()) {
			continue
		}
		if err := os.Remove(filepath.Join(c.links, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
