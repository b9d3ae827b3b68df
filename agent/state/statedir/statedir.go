// Package statedir owns the folder by which a node comes back by itself after a restart:
// sealed intents, the folder of objects, and notes of what ran. It decides nothing: its
// callers check an intent by its seal when they read it. So a process that can write here can
// take away and bring back what was once sealed for this node, and no more.
package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/intent"
)

// What lies below the state directory.
const (
	// Ran is the file of what last ran at each place of the node.
	Ran = "ran.json"
	// Remnants is the file of the links that were taken away and may run still.
	Remnants = "remnants.json"

	intentsFolder = "intents"
	objectsFolder = "objects"
	mountFile     = "mount"
)

// Remove removes all that an agent keeps below its state directory.
func Remove(dir string) error {
	names := []string{intentsFolder, objectsFolder, mountFile, Ran, Remnants}
	leftovers, err := atomicfile.Temporary(dir)
	for _, path := range leftovers {
		names = append(names, filepath.Base(path))
	}
	for _, name := range names {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
	}
	return err
}

// Kind is one of the two intents that are kept of one application.
type Kind string

// The kinds of intents.
const (
	// Newest is the last one accepted, a tombstone too.
	Newest Kind = "newest"
	// Deployed is the last one that ran in whole; node mode falls back to it when
	// the newest does not load.
	Deployed Kind = "deployed"
)

// Dir is an open state directory. Its methods may be called from several goroutines.
type Dir struct {
	path string
	// writes guards deferred, and is read-locked while an intent is written. deferred reports
	// whether intents are written without being synced.
	writes   sync.RWMutex
	deferred bool
}

// Open makes the folder where it is not there, and removes what a killed agent was
// writing. It fails with pins.ErrExposed where the folder is another user's.
func Open(path string) (*Dir, error) {
	d := &Dir{path: path}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	if err := pins.CloseToOthers(path); err != nil {
		return nil, fmt.Errorf("open state directory %s: %w", path, err)
	}
	for _, folder := range []string{d.Path(intentsFolder), d.Objects()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return nil, fmt.Errorf("make state directory: %w", err)
		}
	}
	// Nothing is written yet.
	for _, in := range []string{path, d.Objects()} {
		leftovers, err := atomicfile.Temporary(in)
		if err != nil {
			return nil, fmt.Errorf("list leftovers: %w", err)
		}
		for _, leftover := range leftovers {
			if err := os.Remove(leftover); err != nil {
				return nil, fmt.Errorf("remove leftover: %w", err)
			}
		}
	}
	return d, nil
}

// Path returns where the file or folder of a name lies.
func (d *Dir) Path(name string) string { return filepath.Join(d.path, name) }

// Objects is the folder of objects.
func (d *Dir) Objects() string { return d.Path(objectsFolder) }

// intentPath is the file of one intent. A uid is any string.
func (d *Dir) intentPath(uid string, kind Kind) string {
	return filepath.Join(d.Path(intentsFolder), url.QueryEscape(uid)+"."+string(kind))
}

// PutIntent keeps an envelope as the one of its kind. The one before it stays until the
// new one is whole on disk.
func (d *Dir) PutIntent(uid string, kind Kind, e intent.Envelope) error {
	d.writes.RLock()
	defer d.writes.RUnlock()
	write := atomicfile.Write
	if d.deferred {
		write = atomicfile.WriteUnsynced
	}
	if err := write(d.intentPath(uid, kind), e); err != nil {
		return fmt.Errorf("keep intent: %w", err)
	}
	return nil
}

// PutEnding keeps, as the newest, an intent by which something is to run no more, and where
// there is no space for it makes some: the intents that it replaces must not come back at
// the next start, even where this one is not on disk.
func (d *Dir) PutEnding(uid string, e intent.Envelope) error {
	err := d.PutIntent(uid, Newest, e)
	if err == nil {
		return nil
	}
	if dropErr := errors.Join(d.DropIntent(uid, Deployed), d.DropIntent(uid, Newest)); dropErr != nil {
		return errors.Join(err, dropErr)
	}
	return d.PutIntent(uid, Newest, e)
}

// DeferSync has intents survive a crash of the machine only from the next Flush on.
func (d *Dir) DeferSync() {
	d.writes.Lock()
	defer d.writes.Unlock()
	d.deferred = true
}

// Flush has all intents that were kept survive a crash of the machine, and ends DeferSync.
func (d *Dir) Flush() error {
	// Writes in progress end first.
	d.writes.Lock()
	d.deferred = false
	d.writes.Unlock()
	folder, err := os.Open(d.Path(intentsFolder))
	if err != nil {
		return fmt.Errorf("keep intents: %w", err)
	}
	if err := errors.Join(unix.Syncfs(int(folder.Fd())), folder.Close()); err != nil {
		return fmt.Errorf("keep intents: %w", err)
	}
	return nil
}

// DropIntent removes an intent, if it is there.
func (d *Dir) DropIntent(uid string, kind Kind) error {
	if err := os.Remove(d.intentPath(uid, kind)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("drop kept intent: %w", err)
	}
	return nil
}

// Kept is one envelope on disk.
type Kept struct {
	Kind     Kind
	Path     string
	Envelope intent.Envelope
}

// IsNamedFor reports whether the file has the name of the application's intent.
func (k Kept) IsNamedFor(uid string) bool {
	return filepath.Base(k.Path) == url.QueryEscape(uid)+"."+string(k.Kind)
}

// Intents reads every kept envelope.
func (d *Dir) Intents() ([]Kept, error) {
	entries, err := os.ReadDir(d.Path(intentsFolder))
	if err != nil {
		return nil, fmt.Errorf("list kept intents: %w", err)
	}
	var all []Kept
	for _, e := range entries {
		kind := Kind(strings.TrimPrefix(filepath.Ext(e.Name()), "."))
		path := filepath.Join(d.Path(intentsFolder), e.Name())
		if kind != Newest && kind != Deployed {
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
		all = append(all, Kept{Kind: kind, Path: path, Envelope: body})
	}
	return all, nil
}

// NoteMount writes down which bpf file system holds the pins, and reports
// whether it was another one earlier in this boot: then what was pinned there
// runs on out of this agent's reach, and what it loads now runs beside it.
func (d *Dir) NoteMount(boot string, device uint64) (other bool, err error) {
	path := d.Path(mountFile)
	now := fmt.Sprintf("%s %d", strings.TrimSpace(boot), device)
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read which file system held the pins: %w", err)
	}
	if string(before) == now {
		return false, nil
	}
	if err := atomicfile.WriteUnsynced(path, []byte(now)); err != nil {
		return false, fmt.Errorf("note which file system holds the pins: %w", err)
	}
	was, _, _ := strings.Cut(string(before), " ")
	return was == strings.TrimSpace(boot), nil
}
