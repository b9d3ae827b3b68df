// Package folder makes and keeps the folders that readers of maps open: pins of the maps that they were granted, and plain files
// that describe these. It must not decide who may read what, and changes no map.
//
// What is there is read from the folder itself, so a process that was killed at any point leaves nothing that the next Keep does
// not put right: a pin has its mode and its group before a name in the folder points to it, the number behind its name is the
// generation in which it was made, and the listing is written last.
package folder

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/skepmap"
)

// The modes of pins: root owns them, and a group may open them.
const (
	readMode  fs.FileMode = 0o440
	writeMode fs.FileMode = 0o660
)

// newLink is the name of a symlink before it is moved into its place. atomicfile removes it.
const newLink = ".new-link"

// Folder is where readers find the maps of one application.
type Folder struct {
	// Dir has the plain files, and a symlink for each pin. Pins is a folder of its own on a BPF file system, below which the
	// pins are. Both belong to the process's user alone, who makes them with Keep.
	Dir, Pins string
	// Mode is that of plain files.
	Mode fs.FileMode
}

// Application is what readers get.
type Application struct {
	Identity v1alpha1.Identity
	// Digest is that of the bytecode that runs.
	Digest string
	Maps   []Map
	// Types returns the types of a map by its name. It is asked of maps alone that the folder does not describe yet; where it
	// fails, nothing new is published. Nil knows of none.
	Types func(name string) (Types, error)
}

// Map is a map that was granted.
type Map struct {
	Name string
	// Map stays the caller's.
	Map *ebpf.Map
	// Grants are those of groups. The pin of the first has the map's name alone.
	Grants []Grant
}

// Grant is what members of a group may do.
type Grant struct {
	// Group is as the definition has it, and GID its number on this host.
	Group  string
	GID    uint32
	Access v1alpha1.MapAccess
}

func (g Grant) mode() fs.FileMode {
	if g.Access == v1alpha1.MapRead {
		return readMode
	}
	return writeMode
}

// entry is a pin that is to be there.
type entry struct {
	Grant
	name string
	of   *Map
	id   ebpf.MapID
}

// Keep makes the folder what readers are to have. What they are not to have any more goes first, whatever fails after it.
func (f Folder) Keep(app Application) error {
	there, err := f.look()
	if err != nil {
		return err
	}
	want, unnamed := entries(app.Maps)
	gone, err := there.drop(func(name string, p pin) bool {
		e, wanted := want[name]
		return wanted && p.gid == e.GID && p.mode == e.mode()
	})
	if err := errors.Join(err, there.dropUnnamed(), f.makeFolders()); err != nil {
		return err
	}
	next := there.newest() + 1
	infos, err := there.describe(app, want, next)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if there.pins[name].id == want[name].id {
			continue
		}
		if err := there.pin(want[name], next); err != nil {
			return err
		}
		gone = true
	}
	return errors.Join(there.list(app.Identity, app.Digest, infos, gone), unnamed)
}

// Narrow removes the pins that may not stay, and lists what is left. wide is asked for a pin that can be written. The group of a pin
// that the listing does not name is empty.
func (f Folder) Narrow(may func(name, group string, wide bool) bool) error {
	there, err := f.look()
	if err != nil {
		return err
	}
	gone, err := there.drop(func(name string, p pin) bool {
		of, group, further := strings.Cut(name, "@")
		if !further {
			group = there.listing.Maps[of].Group
		}
		return may(of, group, p.mode != readMode)
	})
	if err != nil || !gone {
		return err
	}
	infos := map[string]skepmap.MapInfo{}
	for name, info := range there.listing.Maps {
		if _, pinned := there.pins[name]; pinned {
			infos[name] = info
		}
	}
	return there.write(infos, there.listing, true)
}

// Remove removes the folder with all pins. What is not Keep's stays, and the folder with it.
func (f Folder) Remove() error {
	if err := removeAll(f.Pins); err != nil {
		return fmt.Errorf("remove the pins of maps that were granted: %w", err)
	}
	listed, err := os.ReadDir(f.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a readers' folder: %w", err)
	}
	var errs []error
	for _, one := range listed {
		if !one.IsDir() {
			errs = append(errs, os.Remove(filepath.Join(f.Dir, one.Name())))
		}
	}
	// A folder of other applications is in it, where its name is that of a namespace, too.
	if err := os.Remove(f.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove a readers' folder: %w", err)
	}
	return nil
}

// entries are the pins that maps are to have, by the names under which readers find them. Maps that are not to be named there are left
// out, with an error.
func entries(all []Map) (map[string]entry, error) {
	want := map[string]entry{}
	var errs []error
	for i := range all {
		m := &all[i]
		if err := skepmap.CheckName(m.Name); err != nil {
			errs = append(errs, err)
			continue
		}
		id, err := mapID(m.Map)
		if err != nil {
			errs = append(errs, fmt.Errorf("map %s: %w", m.Name, err))
			continue
		}
		for n, g := range m.Grants {
			name := m.Name
			if n > 0 {
				name = skepmap.GroupPin(m.Name, g.Group)
			}
			want[name] = entry{Grant: g, name: name, of: m, id: id}
		}
	}
	return want, errors.Join(errs...)
}

func mapID(m *ebpf.Map) (ebpf.MapID, error) {
	info, err := plain.Of(m.Info())
	if err != nil {
		return 0, fmt.Errorf("read info of map: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, errors.New("read info of map: the kernel tells no id")
	}
	return id, nil
}

// state is what is in a folder.
type state struct {
	Folder
	listing skepmap.Listing
	// pins by the names under which readers find them.
	pins map[string]pin
	// links are the symlinks that point to no pin, and leftovers the pins to which none points.
	dangling, leftovers []string
	// highest is the generation of the newest pin.
	highest uint64
}

// pin is one pin, with its path. One that could not be opened has the id 0, which no map has.
type pin struct {
	path       string
	generation uint64
	id         ebpf.MapID
	gid        uint32
	mode       fs.FileMode
}

// readListing reads the listing of a folder. One that is not there or not whole is an empty one: all is then described anew.
func readListing(dir string) skepmap.Listing {
	l, err := skepmap.ReadListing(dir)
	if err != nil {
		return skepmap.Listing{}
	}
	return l
}

// look reads the folder, which may not be there.
func (f Folder) look() (*state, error) {
	s := &state{Folder: f, listing: readListing(f.Dir), pins: map[string]pin{}}
	pinned, err := os.ReadDir(f.Pins)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look at the pins of maps that were granted: %w", err)
	}
	found := map[string]pin{}
	for _, one := range pinned {
		p := readPin(filepath.Join(f.Pins, one.Name()))
		found[one.Name()] = p
		s.highest = max(s.highest, p.generation)
	}
	listed, err := os.ReadDir(f.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look at a readers' folder: %w", err)
	}
	for _, one := range listed {
		if one.Type() != fs.ModeSymlink {
			continue
		}
		target, err := os.Readlink(filepath.Join(f.Dir, one.Name()))
		p, isPinned := found[filepath.Base(target)]
		if err != nil || !isPinned || filepath.Join(f.Dir, target) != p.path || one.Name() == newLink {
			s.dangling = append(s.dangling, filepath.Join(f.Dir, one.Name()))
			continue
		}
		s.pins[one.Name()] = p
		delete(found, filepath.Base(target))
	}
	for _, p := range found {
		s.leftovers = append(s.leftovers, p.path)
	}
	return s, nil
}

// readPin reads what a pin is.
func readPin(path string) pin {
	p := pin{path: path}
	_, generation, _ := strings.Cut(filepath.Base(path), "+")
	p.generation, _ = strconv.ParseUint(generation, 10, 64)
	info, err := os.Lstat(path)
	if err != nil {
		return p
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		p.gid = st.Gid
	}
	p.mode = info.Mode()
	// The owner may read each pin, and needs no right to override a mode.
	m, err := plain.Of(ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true}))
	if err != nil {
		return p
	}
	p.id, _ = mapID(m)
	_ = m.Close()
	return p
}

// newest is the newest generation that readers can have seen.
func (s *state) newest() uint64 { return max(s.listing.Generation, s.highest) }

// drop removes the pins that are not kept, and reports whether there were any.
func (s *state) drop(keep func(name string, p pin) bool) (gone bool, err error) {
	for _, name := range slices.Sorted(maps.Keys(s.pins)) {
		if keep(name, s.pins[name]) {
			continue
		}
		gone = true
		err = errors.Join(err, remove(s.pins[name].path), remove(filepath.Join(s.Dir, name)))
		delete(s.pins, name)
	}
	if err != nil {
		return gone, fmt.Errorf("take back a map that was granted: %w", err)
	}
	return gone, nil
}

// dropUnnamed removes what a process left that was killed.
func (s *state) dropUnnamed() error {
	temporary, err := atomicfile.Temporary(s.Dir)
	for _, path := range slices.Concat(s.leftovers, s.dangling, temporary) {
		err = errors.Join(err, remove(path))
	}
	if err != nil {
		return fmt.Errorf("remove leftovers of a readers' folder: %w", err)
	}
	return nil
}

// makeFolders makes both folders, where they are not there.
func (f Folder) makeFolders() error {
	for _, dir := range []string{f.Dir, f.Pins} {
		if err := MakeOpen(dir); err != nil {
			return err
		}
	}
	return nil
}

// MakeOpen makes a folder, and those above it, that all may look into and the process's user alone can change. One that is another's, or
// that others can change, is an error: what lies there may be theirs.
func MakeOpen(dir string) error {
	err := makeAll(filepath.Clean(dir))
	if err == nil {
		err = pins.CheckUnchangeable(dir)
	}
	if err != nil {
		return fmt.Errorf("make a readers' folder: %w", err)
	}
	return nil
}

// makeAll makes folders that all may look into, whatever the process's umask is.
func makeAll(dir string) error {
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeAll(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// pin makes a pin, and has the name in the folder point to it. The kernel makes a pin that root alone may open. Its group is set before
// the group may open it.
func (s *state) pin(e entry, generation uint64) error {
	path := filepath.Join(s.Pins, strings.ReplaceAll(e.name, ".", "%2e")+"+"+strconv.FormatUint(generation, 10))
	clone, err := plain.Of(e.of.Map.Clone())
	if err != nil {
		return fmt.Errorf("pin map %s: %w", e.of.Name, err)
	}
	err = errors.Join(plain.Error(clone.Pin(path)), clone.Close())
	if err == nil {
		err = os.Lchown(path, -1, int(e.GID))
	}
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: this process may not give files to group %s; add it to the unit's SupplementaryGroups=, or give CAP_CHOWN", err, e.Group)
	}
	if err == nil {
		err = os.Chmod(path, e.mode())
	}
	if err == nil {
		err = s.point(e.name, path)
	}
	if err != nil {
		return fmt.Errorf("publish map %s for group %s: %w", e.of.Name, e.Group, err)
	}
	old := s.pins[e.name]
	s.pins[e.name] = pin{path: path, generation: generation, id: e.id, gid: e.GID, mode: e.mode()}
	if old.path == "" {
		return nil
	}
	return remove(old.path)
}

// point has a name in the folder point to a pin.
func (s *state) point(name, path string) error {
	target, err := filepath.Rel(s.Dir, path)
	if err != nil {
		return err
	}
	aside := filepath.Join(s.Dir, newLink)
	if err := errors.Join(remove(aside), os.Symlink(target, aside)); err != nil {
		return err
	}
	return os.Rename(aside, filepath.Join(s.Dir, name))
}

// list writes the listing of all pins.
func (s *state) list(app v1alpha1.Identity, digest string, infos map[string]skepmap.MapInfo, changed bool) error {
	head := skepmap.Listing{Application: skepmap.Application{Kind: app.Kind, Namespace: app.Namespace, Name: app.Name}, Digest: digest}
	for name := range s.listing.Maps {
		_, stays := infos[name]
		changed = changed || !stays
	}
	if err := s.dropTypes(infos); err != nil {
		return err
	}
	return s.write(infos, head, changed)
}

// write writes the listing, with a new generation where pins came or went, and nothing where it is there already.
func (s *state) write(infos map[string]skepmap.MapInfo, head skepmap.Listing, changed bool) error {
	head.Generation, head.Maps = cmp.Or(s.newest(), 1), infos
	if changed {
		head.Generation = s.newest() + 1
	}
	raw, err := head.Encode()
	if err == nil {
		err = s.put(skepmap.ListingFile, raw)
	}
	if err != nil {
		return fmt.Errorf("list the maps of a readers' folder: %w", err)
	}
	return nil
}

// put writes a plain file, where it is another one.
func (s *state) put(name string, content []byte) error {
	path := filepath.Join(s.Dir, name)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, content) {
		return nil
	}
	return atomicfile.WriteShared(path, content, s.Mode)
}

// remove removes a file, if it is there.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeAll removes a folder on a BPF file system, which has pins alone.
func removeAll(dir string) error {
	listed, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, one := range listed {
		err = errors.Join(err, remove(filepath.Join(dir, one.Name())))
	}
	return errors.Join(err, remove(dir))
}
