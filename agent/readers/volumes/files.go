package volumes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/folder"
	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/agent/readers/serve"
	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/skepmap"
)

// stateFile has the kernel's numbers of the maps that a volume's listing describes. Only root reads it.
const stateFile = ".maps"

// fileMode is that of plain files. The folder is the group's alone.
const fileMode fs.FileMode = 0o444

// content is what a volume has.
type content struct {
	application skepmap.Application
	digest      string
	maps        []entry
	// hasPins is whether there is a pin for each map.
	hasPins bool
}

// entry is a map of a volume.
type entry struct {
	access
	of   *serve.Map
	info skepmap.MapInfo
	btf  []byte
}

// content is what a claim has of an application. A map that cannot be described is an error, and left out.
func (c Claim) content(app *application, has []access) (content, error) {
	all := content{application: skepmap.Application{Kind: c.Application.Kind, Namespace: c.Application.Namespace, Name: c.Application.Name}}
	if app == nil || app.loaded == nil {
		return all, nil
	}
	var failed error
	all.digest = app.loaded.runs.ObjectDigest
	for _, a := range has {
		e := entry{access: a, of: app.loaded.maps[a.name]}
		err := skepmap.CheckName(a.name)
		if err == nil {
			err = e.describe(app.loaded.facts.Load().of(a.name))
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("describe map %s: %w", a.name, err))
			continue
		}
		all.maps = append(all.maps, e)
	}
	return all, failed
}

// describe describes a map as it is in the kernel, with types where they fit: a definition can change the size of those.
func (e *entry) describe(f folder.Fact) error {
	kernel, err := plain.Of(e.of.Info())
	if err != nil {
		return err
	}
	e.info = skepmap.MapInfo{Type: kernel.Type.String(), KeySize: kernel.KeySize, ValueSize: kernel.ValueSize, MaxEntries: kernel.MaxEntries, Flags: kernel.Flags,
		Access: e.to}
	if f.Fit(kernel) {
		e.btf = f.BTF
		e.info.BTF, e.info.KeyTypeID, e.info.ValueTypeID = skepmap.BTFFile(e.name), uint32(f.KeyID), uint32(f.ValueID)
	}
	return nil
}

// escape makes names of pins: a BPF file system takes no dots in them.
var escape = strings.NewReplacer(".", "%2e")

// pins are those of a volume.
func (c content) pins() (all []mounter.Pin) {
	for _, e := range c.maps {
		all = append(all, mounter.Pin{Name: escape.Replace(e.name), Write: e.isWritable(), Map: e.of.FD()})
	}
	return all
}

// target is where the symlink of a map leads to.
func (e entry) target() string {
	if e.isWritable() {
		return filepath.Join(mounter.Writable, escape.Replace(e.name))
	}
	return filepath.Join(mounter.ReadOnly, escape.Replace(e.name))
}

// write writes the plain files of a volume, and last its listing, whose generation is raised where a pin came, went or was replaced
// since it was written. The state comes after it: a process that is killed between raises it once more.
func (c content) write(dir string) (skepmap.Listing, error) {
	old, ids, err := read(dir)
	if err != nil {
		return skepmap.Listing{}, err
	}
	now := skepmap.Listing{Application: c.application, Digest: c.digest, Generation: old.Generation, Maps: map[string]skepmap.MapInfo{}}
	next, changed := old.Generation+1, old.Generation == 0 || len(old.Maps) != len(c.maps)
	nowIDs := map[string]ebpf.MapID{}
	for _, e := range c.maps {
		was, is := old.Maps[e.name]
		e.info.Generation = was.Generation
		if !is || ids[e.name] != e.of.ID || was.Access != e.to {
			e.info.Generation, changed = next, true
		}
		now.Maps[e.name], nowIDs[e.name] = e.info, e.of.ID
		if err := e.files(dir, c.hasPins); err != nil {
			return now, fmt.Errorf("publish map %s: %w", e.name, err)
		}
	}
	if changed {
		now.Generation = next
	}
	raw, err := now.Encode()
	if err == nil {
		err = put(filepath.Join(dir, skepmap.ListingFile), raw, fileMode)
	}
	if err == nil {
		raw, err = json.Marshal(nowIDs)
	}
	if err == nil {
		err = put(filepath.Join(dir, stateFile), raw, 0o600)
	}
	if err == nil {
		err = c.tidy(dir)
	}
	if err != nil {
		return now, fmt.Errorf("list the maps of a volume: %w", err)
	}
	return now, nil
}

// read reads what a volume was. What is not whole is described anew.
func read(dir string) (l skepmap.Listing, ids map[string]ebpf.MapID, err error) {
	raw, err := readFile(filepath.Join(dir, skepmap.ListingFile))
	if err == nil {
		l, err = skepmap.ParseListing(raw)
	}
	if errors.Is(err, unix.EAGAIN) {
		// Generations would begin anew, and a reader take another map for its own.
		return l, nil, fmt.Errorf("read what a volume has: %w", err)
	}
	if err != nil {
		return skepmap.Listing{}, nil, nil //nolint:nilerr // what is not whole is described anew
	}
	if raw, err := readFile(filepath.Join(dir, stateFile)); err == nil {
		_ = json.Unmarshal(raw, &ids)
	}
	return l, ids, nil
}

// readFile reads a file of a volume, and waits for no process of its pod: root there owns the file, and so may have a lease of it.
func readFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, mostBytes))
}

// mostBytes is more than any file of a volume has.
const mostBytes = 1 << 20

// files writes the types of a map, and the link to its pin where it has one.
func (e entry) files(dir string, hasPin bool) error {
	if e.btf != nil {
		if err := put(filepath.Join(dir, e.info.BTF), e.btf, fileMode); err != nil {
			return err
		}
	}
	if !hasPin {
		return nil
	}
	path := filepath.Join(dir, e.name)
	if to, err := os.Readlink(path); err == nil && to == e.target() {
		return nil
	}
	aside := filepath.Join(dir, ".new-link")
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(e.target(), aside); err != nil {
		return err
	}
	return os.Rename(aside, path)
}

// tidy removes files of maps that the volume does not have, and what a killed process left.
func (c content) tidy(dir string) error {
	kept := []string{skepmap.ListingFile, skepmap.SocketFile, stateFile}
	for _, e := range c.maps {
		if c.hasPins {
			kept = append(kept, e.name)
		}
		if e.btf != nil {
			kept = append(kept, e.info.BTF)
		}
	}
	all, err := os.ReadDir(dir)
	for _, one := range all {
		if !one.IsDir() && !slices.Contains(kept, one.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, one.Name())))
		}
	}
	return err
}

// put writes a file, where it is another one.
func put(path string, body []byte, mode fs.FileMode) error {
	if have, err := readFile(path); err == nil && bytes.Equal(have, body) {
		return nil
	}
	return atomicfile.WriteShared(path, body, mode)
}

// isFolder reports whether there is a folder: a volume that was mounted without pins has none for them, and gets none.
func isFolder(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// pathOf is a path to the folder of a volume.
func pathOf(dir *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) }
