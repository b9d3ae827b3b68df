// Package pins keeps what runs of Skep in a BPF file system: it pins revisions, links and chains,
// finds them again, and takes them away.
//
// The pins are the state. There is no journal beside them: what lies below the store's
// directory tells which revision of which application is there, and a link's program id tells
// which one is live. The package decides nothing (that is package plan), loads nothing (package
// loader) and attaches nothing (package attach).
//
// Size: revisions, links and chains lie in one tree, which is made, read and cleared by the same few functions.
package pins

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/reconcile/plan"
)

// ErrHeld: another agent holds the directory. Two agents on one directory would
// undo each other's work.
var ErrHeld = errors.New("another agent holds it")

// ErrNotBPFFS: the directory is not on a BPF file system, so nothing can be
// pinned there.
var ErrNotBPFFS = errors.New("not on a bpf file system")

// ErrExposed: others than the process's own user can change what lies in the
// directory, or put another in its place. What is pinned there decides what runs.
var ErrExposed = errors.New("others can change it")

// mountCommand mounts a bpf file system that only root can change, where the folder of pins is.
func mountCommand(root string) string {
	return "mkdir -p " + filepath.Dir(root) + " && mount -t bpf -o mode=0700 bpf " + filepath.Dir(root)
}

// Names that no escaped name can have, since escape turns + into %2b.
const (
	linksDir   = "+links"
	chainsDir  = "+xdp"
	qdiscsDir  = "+clsact"
	newPrefix  = "+new-"
	oldPrefix  = "+old-"
	progPrefix = "p-"
	mapPrefix  = "m-"
)

// Store is one directory of a BPF file system, held by one agent.
type Store struct {
	// Filters are those of the node.
	Filters *clsact.Table

	root string
	lock *os.File
}

// OpenStore makes the directory where it is missing and locks it until Close.
// It fails with ErrNotBPFFS, ErrExposed or ErrHeld.
func OpenStore(root string) (*Store, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		if info, missing := os.Stat(filepath.Dir(root)); missing != nil || !info.IsDir() {
			return nil, fmt.Errorf("make pin directory %s: %w; name a directory on a bpf file system", root, err)
		}
		return nil, fmt.Errorf("make pin directory %s: %w; mount a bpf file system there: `%s`", root, err, mountCommand(root))
	}
	if on, err := onBPFFS(root); err != nil {
		return nil, err
	} else if !on {
		return nil, fmt.Errorf("open pin directory %s: %w; mount one, `%s`, or name another directory", root, ErrNotBPFFS, mountCommand(root))
	}
	lock, err := openOwn(root)
	if errors.Is(err, ErrExposed) && !errors.Is(err, unix.EROFS) && checkParent(filepath.Dir(root)) == nil {
		err = fmt.Errorf("%w. Where others than root can make folders beside it, run `chmod 0700 %s`", err, filepath.Dir(root))
	}
	if err != nil {
		return nil, fmt.Errorf("open pin directory %s: %w", root, err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock pin directory %s: %w; stop it (`fuser -v %s` names the process), or name another directory", root, ErrHeld, root)
		}
		return nil, fmt.Errorf("lock pin directory %s: %w", root, err)
	}
	s := &Store{root: root, lock: lock, Filters: clsact.New(qdiscs{filepath.Join(root, qdiscsDir)})}
	if err := s.sweepDebris(); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return s, nil
}

// Close lets the directory go. What is pinned stays.
func (s *Store) Close() error { return s.lock.Close() }

// Root is the directory, as given.
func (s *Store) Root() string { return s.root }

// Device names the file system that holds the pins: another mount is another.
func (s *Store) Device() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.lock.Fd()), &st); err != nil {
		return 0, fmt.Errorf("read device of %s: %w", s.root, err)
	}
	return st.Dev, nil
}

// sweepDebris removes what a killed agent left half made or half removed.
func (s *Store) sweepDebris() error {
	uids, err := s.Applications()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		if err := errors.Join(removeDebris(s.appDir(uid), inApplication), removeDebris(s.linksDir(uid), inLinks)); err != nil {
			return err
		}
	}
	devices, err := s.ChainDevices()
	if err != nil {
		return err
	}
	for _, d := range devices {
		if err := removeDebris(s.chainDir(d), inChain); err != nil {
			return err
		}
	}
	return nil
}

// removeDebris removes the entries of dir that carry the prefix of the half
// made or the half removed.
func removeDebris(dir string, in place) error {
	names, err := list(dir, in)
	if err != nil {
		return err
	}
	for _, n := range names {
		if !isDebris(n) {
			continue
		}
		if err := remove(filepath.Join(dir, n), in); err != nil {
			return fmt.Errorf("sweep leftovers: %w", err)
		}
	}
	return nil
}

// Applications lists the uids that have a directory for pins.
func (s *Store) Applications() ([]string, error) {
	names, err := list(s.root, inRoot)
	if err != nil {
		return nil, err
	}
	var uids []string
	for _, n := range names {
		if n != chainsDir && n != qdiscsDir {
			uids = append(uids, unescape(n))
		}
	}
	return uids, nil
}

// Revisions lists the revisions an application has pinned, whole or not.
func (s *Store) Revisions(uid string) ([]string, error) {
	names, err := list(s.appDir(uid), inApplication)
	if err != nil {
		return nil, err
	}
	var revisions []string
	for _, n := range names {
		if !isHash(n) {
			continue
		}
		// One without a pin of Skep's holds what somebody else left there.
		pins, err := list(s.RevisionDir(uid, n), inRevision)
		if err != nil {
			return nil, err
		}
		if len(pins) > 0 {
			revisions = append(revisions, n)
		}
	}
	return revisions, nil
}

// DropRevision removes a revision's pins. Links that run its programs keep
// them alive.
func (s *Store) DropRevision(uid, revision string) error {
	dir := s.RevisionDir(uid, revision)
	_, foreign, err := sift(dir, inRevision)
	if err != nil {
		return err
	}
	if len(foreign) > 0 {
		return clearDir(dir, inRevision)
	}
	// Renamed first: a directory that bears a revision's name is whole.
	old := filepath.Join(s.appDir(uid), oldPrefix+revision)
	if err := clearDir(old, inRevision); err != nil {
		return err
	}
	if err := os.Rename(dir, old); err != nil && !absent(err) {
		return fmt.Errorf("drop revision %s of %s: %w", revision, uid, err)
	}
	return clearDir(old, inRevision)
}

// Forget removes the pins of an application that has no links left.
func (s *Store) Forget(uid string) error {
	if err := clearDir(s.appDir(uid), inApplication); err != nil {
		return fmt.Errorf("forget %s: %w", uid, err)
	}
	return nil
}

// DropEmpty removes an application's directories where nothing is left in them: what
// a kill leaves of one whose last pin was removed.
func (s *Store) DropEmpty(uid string) error {
	return errors.Join(rmdir(s.linksDir(uid)), rmdir(s.appDir(uid)))
}

// Clear removes every pin of Skep's below the directory, and with them every
// link, as far as that goes; the error joins what could not be removed. Filters go first: without the pins, nothing tells whose
// they are, so where some are left, their pins are, too. The links of all follow at once, and at last
// their programs: it calls await before each directory of programs, with their number.
func (s *Store) Clear(await func(programs int)) error {
	kept, err := s.clearFilters()
	errs := []error{err}
	names, err := list(s.root, inRoot)
	errs = append(errs, err)
	for _, n := range names {
		errs = append(errs, s.clearLinks(n, kept))
	}
	for _, n := range names {
		errs = append(errs, clearPaced(filepath.Join(s.root, n), inRoot, kept, await))
	}
	return errors.Join(errs...)
}

// clearLinks removes the pins of links in a directory of the root.
func (s *Store) clearLinks(name string, kept map[string]bool) error {
	dir := filepath.Join(s.root, name)
	if name != chainsDir {
		dir = filepath.Join(dir, linksDir)
		links, err := list(dir, inLinks)
		errs := []error{err}
		for _, l := range links {
			if !kept[filepath.Join(dir, strings.TrimSuffix(l, textSuffix))] {
				errs = append(errs, remove(filepath.Join(dir, l), inLinks))
			}
		}
		return errors.Join(append(errs, rmdir(dir))...)
	}
	devices, err := list(dir, inChains)
	errs := []error{err}
	for _, d := range devices {
		errs = append(errs, remove(filepath.Join(dir, d, chainLink), inChain))
	}
	return errors.Join(errs...)
}

// clearPaced removes a directory, and calls await before each one below it that has programs. A directory with
// something that is kept stays as it is.
func clearPaced(dir string, in place, kept map[string]bool, await func(programs int)) error {
	within, _ := in(filepath.Base(dir))
	if within == nil {
		return remove(dir, in)
	}
	own, err := list(dir, within)
	if kept[dir] || slices.ContainsFunc(own, func(name string) bool { return kept[filepath.Join(dir, name)] }) {
		return err
	}
	errs, programs := []error{err}, 0
	for _, name := range own {
		if strings.HasPrefix(name, progPrefix) || name == chainProgram {
			programs++
		}
	}
	if programs > 0 {
		await(programs)
	}
	for _, name := range own {
		errs = append(errs, clearPaced(filepath.Join(dir, name), within, kept, await))
	}
	return errors.Join(append(errs, rmdir(dir))...)
}

func (s *Store) appDir(uid string) string { return filepath.Join(s.root, escape(uid)) }

func (s *Store) linksDir(uid string) string { return filepath.Join(s.appDir(uid), linksDir) }

// RevisionDir is the folder of a revision's pins: a map's is m-NAME in it, and a program's p-NAME.
func (s *Store) RevisionDir(uid, revision string) string {
	return filepath.Join(s.appDir(uid), revision)
}

func (s *Store) chainDir(d plan.Device) string {
	return filepath.Join(s.root, chainsDir, d.String())
}
