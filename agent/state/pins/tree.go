package pins

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/reconcile/plan"
)

// place knows the names that Skep gives in one sort of directory. It tells
// whether a name is one of them, and what lies within where it is a directory's.
// Whatever bears another name is somebody else's.
type place func(name string) (within place, own bool)

func inRoot(name string) (place, bool) {
	if name == chainsDir {
		return inChains, true
	}
	if name == qdiscsDir {
		return inQdiscs, true
	}
	return inApplication, isEscaped(name)
}

func inApplication(name string) (place, bool) {
	if name == linksDir {
		return inLinks, true
	}
	return inRevision, isHash(name) || isDebris(name)
}

func inRevision(name string) (place, bool) {
	if name, ok := strings.CutPrefix(name, progPrefix); ok {
		name, number, isCopy := strings.Cut(name, copySuffix)
		return nil, isEscaped(name) && (!isCopy || isNumber(number) || copySuffix+number == skippedSuffix)
	}
	name, ok := strings.CutPrefix(name, mapPrefix)
	return nil, ok && isEscaped(strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, layoutSuffix), contentsSuffix), takenSuffix))
}

func inLinks(name string) (place, bool) {
	return nil, isHash(strings.TrimSuffix(name, textSuffix)) || isDebris(name)
}

func inQdiscs(name string) (place, bool) { return nil, isDevice(name) }

func inChains(name string) (place, bool) { return inChain, isDevice(name) }

func inChain(name string) (place, bool) {
	if name == chainLink || strings.TrimPrefix(name, newPrefix) == chainLink+textSuffix {
		return nil, true
	}
	return inVersion, isHash(name) || isDebris(name)
}

func inVersion(name string) (place, bool) {
	return nil, name == chainProgram || name == chainRuns || strings.HasPrefix(name, memberPrefix)
}

// isEscaped tells a name that escape gave.
func isEscaped(name string) bool { return name != "" && escape(unescape(name)) == name }

// isDebris tells what is half made or half removed.
func isDebris(name string) bool {
	return strings.HasPrefix(name, newPrefix) || strings.HasPrefix(name, oldPrefix)
}

// isHash tells a name that plan, package intent or versionID gave.
func isHash(name string) bool {
	return len(name) == 32 && strings.Trim(name, "0123456789abcdef") == ""
}

// isDevice tells a name that plan.Device gave.
func isDevice(name string) bool {
	_, ok := plan.ParseDevice(name)
	return ok
}

func isNumber(name string) bool {
	n, err := strconv.Atoi(name)
	return err == nil && n > 0 && strconv.Itoa(n) == name
}

// Stray is something among the pins that is not Skep's, or that cannot be read.
// It is left alone, but where a pin of Skep's own takes its place.
type Stray struct {
	// UID is the application it lies under, or empty.
	UID string
	// Path is where it lies.
	Path string
	// Err says why it cannot be read; nil means that it is not Skep's.
	Err error
	// inode is the one that was found there.
	inode uint64
}

// String says where it lies and what is wrong with it, in one line.
func (s Stray) String() string {
	if s.Err == nil {
		return s.Path + ": not Skep's"
	}
	return s.Path + ": " + s.Err.Error()
}

// There reports whether it is still where it was found.
func (s Stray) There() bool { return s.inode != 0 && inodeOf(s.Path) == s.inode }

func inodeOf(path string) uint64 {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// unreadable makes a stray of a pin that could not be opened, or returns the
// error where it is not the pin's: what is wrong with every pin stops the agent,
// and what is wrong with one does not.
func unreadable(uid, path string, err error) (Stray, error) {
	for _, all := range []error{unix.EPERM, unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, all) {
			return Stray{}, fmt.Errorf("open pin %s: %w", path, err)
		}
	}
	return Stray{UID: uid, Path: path, Err: err, inode: inodeOf(path)}, nil
}

// Owns reports whether a path below a store's directory bears a name that Skep
// gives. What has another is somebody else's.
func Owns(root, path string) bool {
	rel, below := strings.CutPrefix(path, strings.TrimSuffix(root, "/")+"/")
	if !below {
		return false
	}
	in, own := place(inRoot), true
	for name := range strings.SplitSeq(rel, "/") {
		if in == nil || !own {
			return false
		}
		in, own = in(name)
	}
	return own
}

// Strays lists what lies below the directory and is not Skep's, by its names
// alone. Of a directory, it names the directory.
func (s *Store) Strays() ([]Stray, error) {
	var strays []Stray
	err := survey(s.root, inRoot, func(path string, _ place, own bool) {
		if own {
			return
		}
		stray := Stray{Path: path, inode: inodeOf(path)}
		rel := strings.TrimPrefix(path, s.root+"/")
		if first, _, below := strings.Cut(rel, "/"); below && first != chainsDir {
			stray.UID = unescape(first)
		}
		strays = append(strays, stray)
	})
	return strays, err
}

// Directories lists every directory that holds pins of Skep's, for a watcher.
func (s *Store) Directories() ([]string, error) {
	return directories(s.root, inRoot)
}

// directories lists a directory and those below it. One without others, by its number of links, is not read: it may have
// thousands of pins.
func directories(dir string, in place) ([]string, error) {
	var is unix.Stat_t
	switch err := unix.Stat(dir, &is); {
	case absent(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list pins: %w", err)
	case is.Nlink == linksOfLeaf:
		return []string{dir}, nil
	}
	own, _, err := sift(dir, in)
	dirs, errs := []string{dir}, []error{err}
	for _, name := range own {
		if within, _ := in(name); within != nil {
			below, err := directories(filepath.Join(dir, name), within)
			dirs, errs = append(dirs, below...), append(errs, err)
		}
	}
	return dirs, errors.Join(errs...)
}

// linksOfLeaf is how many links a directory without others has: that in its parent, and its own dot.
const linksOfLeaf = 2

// survey visits everything below a directory, and what is not Skep's without
// what is below it. A directory that cannot be read is an error, and the others are visited all the same.
func survey(dir string, in place, visit func(path string, within place, own bool)) error {
	own, foreign, err := sift(dir, in)
	errs := []error{err}
	for _, name := range foreign {
		visit(filepath.Join(dir, name), nil, false)
	}
	for _, name := range own {
		path := filepath.Join(dir, name)
		within, _ := in(name)
		visit(path, within, true)
		if within != nil {
			errs = append(errs, survey(path, within, visit))
		}
	}
	return errors.Join(errs...)
}

// sift tells the names in a directory that are Skep's from those that are not.
// Where there is no directory there are none.
func sift(dir string, in place) (own, foreign []string, err error) {
	entries, err := os.ReadDir(dir)
	if absent(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list pins: %w", err)
	}
	for _, e := range entries {
		if within, ok := in(e.Name()); ok && e.IsDir() == (within != nil) {
			own = append(own, e.Name())
		} else {
			foreign = append(foreign, e.Name())
		}
	}
	return own, foreign, nil
}

// list returns the names in a directory that are Skep's.
func list(dir string, in place) ([]string, error) {
	own, _, err := sift(dir, in)
	return own, err
}

// absent tells that nothing is at a path, be it that a pin lies where a
// directory of the path would.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// clearDir removes what is Skep's in a directory, as far as that goes, and the directory itself where
// nothing is left in it.
func clearDir(dir string, in place) error {
	own, err := list(dir, in)
	errs := []error{err}
	for _, name := range own {
		errs = append(errs, remove(filepath.Join(dir, name), in))
	}
	return errors.Join(append(errs, rmdir(dir))...)
}

// rmdir removes a directory where nothing is left in it.
func rmdir(dir string) error {
	if err := unix.Rmdir(dir); err != nil && !absent(err) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("remove pin directory %s: %w", dir, err)
	}
	return nil
}

// remove removes one thing of Skep's in the sort of directory.
func remove(path string, in place) error {
	if within, _ := in(filepath.Base(path)); within != nil {
		return clearDir(path, within)
	}
	// A directory of somebody else's that bears a pin's name is not unlinked.
	if err := unix.Unlink(path); err != nil && !absent(err) && !errors.Is(err, unix.EISDIR) {
		return fmt.Errorf("remove pin %s: %w", path, err)
	}
	return nil
}

// swap puts a directory that was filled aside in the place of another one at once, and removes
// that. It reports false where there is none, or something in it is not Skep's.
func swap(path, aside string, in place) (bool, error) {
	own, foreign, err := sift(path, in)
	if err != nil || len(foreign) > 0 || len(own) == 0 {
		return false, err
	}
	// fs/libfs.c, simple_rename: since Linux 5.16.
	if err := unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE); err != nil {
		return false, fmt.Errorf("exchange pin directory %s: %w", path, err)
	}
	return true, clearDir(aside, in)
}

// takePlace gives a directory that was filled aside its name. Where something
// that is not Skep's holds the name, fill fills the place as it is.
func takePlace(aside, path string, in place, fill func(dir string) error) error {
	err := os.Rename(aside, path)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return errors.Join(fill(path), clearDir(aside, in))
	}
	return err
}
