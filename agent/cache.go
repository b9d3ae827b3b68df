package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/intent"
)

// cache is the agent's own directory: sealed intents by uid and objects by
// digest. Everything in it is checked when it is read: intents by their seal,
// objects by their hash. So whoever can write here can take away and bring back
// what was once sealed for this node, and no more.
type cache struct {
	dir string
	// together is set while intents are kept that flush has on disk all at once.
	together bool
}

// Where what is kept lies below the state directory, beside ranFile and remnantsFile.
const (
	intentsFolder = "intents"
	objectsFolder = "objects"
	mountFile     = "mount"
)

// RemoveState removes all that an Agent keeps below its state directory.
func RemoveState(dir string) error {
	names := []string{intentsFolder, objectsFolder, mountFile, ranFile, remnantsFile}
	leftovers, err := atomicfile.Temporary(dir)
	for _, path := range leftovers {
		names = append(names, filepath.Base(path))
	}
	for _, name := range names {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
	}
	return err
}

// The two intents that are kept of one application.
const (
	// newest is the last one accepted, a tombstone too.
	newest = "newest"
	// deployed is the last one that ran in whole; what node mode falls back to when
	// the newest does not load.
	deployed = "deployed"
)

func openCache(dir string) (*cache, error) {
	c := &cache{dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	if err := kernel.CloseToOthers(dir); err != nil {
		return nil, fmt.Errorf("open state directory %s: %w", dir, err)
	}
	for _, d := range []string{c.sub(intentsFolder), c.sub(objectsFolder)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("make state directory: %w", err)
		}
	}
	// What a killed agent was writing. Nothing is written yet.
	var leftovers []string
	for _, in := range []string{dir, c.sub(objectsFolder)} {
		found, err := atomicfile.Temporary(in)
		if err != nil {
			return nil, fmt.Errorf("list leftovers: %w", err)
		}
		leftovers = append(leftovers, found...)
	}
	for _, path := range leftovers {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove leftover: %w", err)
		}
	}
	return c, nil
}

func (c *cache) sub(name string) string { return filepath.Join(c.dir, name) }

// name is the file of one intent. A uid is any string.
func (c *cache) name(uid, kind string) string {
	return filepath.Join(c.sub(intentsFolder), url.QueryEscape(uid)+"."+kind)
}

// putIntent keeps an envelope as the one of its kind; what was there before
// stays until the new one is whole on disk.
func (c *cache) putIntent(uid, kind string, e intent.Envelope) error {
	write := atomicfile.Write
	if c.together {
		write = atomicfile.WriteUnsynced
	}
	if err := write(c.name(uid, kind), e); err != nil {
		return fmt.Errorf("keep intent: %w", err)
	}
	return nil
}

// flush has all intents that were kept survive a crash of the machine.
func (c *cache) flush() error {
	folder, err := os.Open(c.sub(intentsFolder))
	if err != nil {
		return fmt.Errorf("keep intents: %w", err)
	}
	if err := errors.Join(unix.Syncfs(int(folder.Fd())), folder.Close()); err != nil {
		return fmt.Errorf("keep intents: %w", err)
	}
	return nil
}

// putWithdrawal keeps an intent by which something is to run no more, and where there is
// no room for it makes some: what it overtakes must not come back at the next
// start, even where the intent itself is not on disk.
func (c *cache) putWithdrawal(uid string, e intent.Envelope) error {
	err := c.putIntent(uid, newest, e)
	if err == nil {
		return nil
	}
	if dropErr := errors.Join(c.dropIntent(uid, deployed), c.dropIntent(uid, newest)); dropErr != nil {
		return errors.Join(err, dropErr)
	}
	return c.putIntent(uid, newest, e)
}

func (c *cache) dropIntent(uid, kind string) error {
	if err := os.Remove(c.name(uid, kind)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("drop kept intent: %w", err)
	}
	return nil
}

// kept is one envelope of the cache.
type kept struct {
	kind     string
	path     string
	envelope intent.Envelope
}

// intents reads every kept envelope.
func (c *cache) intents() ([]kept, error) {
	entries, err := os.ReadDir(c.sub(intentsFolder))
	if err != nil {
		return nil, fmt.Errorf("list kept intents: %w", err)
	}
	var all []kept
	for _, e := range entries {
		ext := strings.TrimPrefix(filepath.Ext(e.Name()), ".")
		path := filepath.Join(c.sub(intentsFolder), e.Name())
		if ext != newest && ext != deployed {
			// What a killed agent was writing.
			if err := os.Remove(path); err != nil {
				return nil, fmt.Errorf("remove leftover: %w", err)
			}
			continue
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read kept intent: %w", err)
		}
		all = append(all, kept{kind: ext, path: path, envelope: body})
	}
	return all, nil
}

// has reports whether an object is kept. Whether it is whole is found out when it is
// read.
func (c *cache) has(digest string) bool {
	info, err := os.Stat(c.objectPath(digest))
	return err == nil && info.Mode().IsRegular()
}

// object reads a kept object. One that is not there, or that a crash tore and that is
// dropped therefore, has to be fetched again: it fails with errFetching.
func (c *cache) object(digest string) ([]byte, error) {
	path := c.objectPath(digest)
	body, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errFetching
	}
	if err != nil {
		return nil, fmt.Errorf("read kept object: %w", err)
	}
	if checkDigest(digest, body) == nil {
		return body, nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("drop torn object: %w", err)
	}
	return nil, errFetching
}

// putObject keeps an object. It is not synced: one that a crash tore does not
// hash to its name, and is fetched again.
func (c *cache) putObject(digest string, body []byte) error {
	if err := atomicfile.WriteUnsynced(c.objectPath(digest), body); err != nil {
		return fmt.Errorf("keep object: %w", err)
	}
	return nil
}

// prune removes the objects that no intent names. What a fetch beside it is
// writing stays.
func (c *cache) prune(used map[string]bool) error {
	entries, err := os.ReadDir(c.sub(objectsFolder))
	if err != nil {
		return fmt.Errorf("list kept objects: %w", err)
	}
	for _, e := range entries {
		if !used["sha256:"+e.Name()] && !atomicfile.IsTemporary(e.Name()) {
			if err := os.Remove(filepath.Join(c.sub(objectsFolder), e.Name())); err != nil {
				return fmt.Errorf("drop kept object: %w", err)
			}
		}
	}
	return nil
}

func (c *cache) objectPath(digest string) string {
	return filepath.Join(c.sub(objectsFolder), filepath.Base(strings.TrimPrefix(digest, "sha256:")))
}

// checkDigest reports whether the bytes are those of the digest.
func checkDigest(digest string, body []byte) error {
	sum := sha256.Sum256(body)
	if have := "sha256:" + hex.EncodeToString(sum[:]); have != digest {
		return fmt.Errorf("check object: it hashes to %s and the intent names %s; what serves it was changed", have, digest)
	}
	return nil
}
