package pins

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/bytecode/plain"
)

// What stands after the name of a program's pin: before the number of a further program of the
// same instance, and for the symlink that says why it is not loaded.
const (
	copySuffix    = "+"
	skippedSuffix = "+skipped"
)

// What is appended to a map's pin for the symlinks of its note.
const (
	layoutSuffix   = "+layout"
	contentsSuffix = "+contents"
	takenSuffix    = "+from"
)

// CheckNames rejects an object with names that are too long for pins.
func CheckNames(p *loader.Prepared) error {
	var errs []error
	for name := range p.Spec.Programs {
		errs = append(errs, CheckName("program", name))
	}
	for name := range p.Spec.Maps {
		errs = append(errs, CheckName("map", name))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("prepare pins of %s: %w", p.Application, err)
	}
	return nil
}

// PinRevision pins what Load made: everything aside, which is then renamed into
// place, so that the pins appear all at once under the revision's name.
func (s *Store) PinRevision(r *loader.Revision) error {
	aside := filepath.Join(s.appDir(r.UID), newPrefix+r.Name)
	if err := clearDir(aside, inRevision); err != nil {
		return err
	}
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	fill := func(dir string) error { _, err := pin(r, dir); return err }
	if err := fill(aside); err != nil {
		return err
	}
	// What is there under the name already lacked something, or has other applications' maps
	// that are not theirs any more. A kill leaves either of the two.
	if swapped, err := swap(s.RevisionDir(r.UID, r.Name), aside, inRevision); swapped || err != nil {
		return err
	}
	if err := s.DropRevision(r.UID, r.Name); err != nil {
		return err
	}
	if err := takePlace(aside, s.RevisionDir(r.UID, r.Name), inRevision, fill); err != nil {
		return fmt.Errorf("pin revision %s: %w", r.Name, err)
	}
	return nil
}

// pin pins into the directory what is not there, and tells how many pins it
// made. It pins clones: the library would move the pin of a shared map.
func pin(r *loader.Revision, dir string) (int, error) {
	made := 0
	ifMissing := func(path string, pin func(path string) error) error {
		if !missing(path) {
			return nil
		}
		made++
		return pin(path)
	}
	err := pinPrograms(r, dir, ifMissing)
	if err == nil {
		err = pinMaps(r, dir, ifMissing)
	}
	return made, err
}

// pinning makes a pin where there is none.
type pinning func(path string, pin func(path string) error) error

// pinPrograms pins programs, and why others are skipped.
func pinPrograms(r *loader.Revision, dir string, ifMissing pinning) error {
	for name := range r.Programs {
		for i, program := range r.Copies(name) {
			path := filepath.Join(dir, progPrefix+escape(name))
			if i > 0 {
				path += copySuffix + strconv.Itoa(i)
			}
			if err := ifMissing(path, func(path string) error { return pinProgram(program, path) }); err != nil {
				return fmt.Errorf("pin program %s: %w", name, err)
			}
		}
	}
	for name, why := range r.Skipped {
		path := filepath.Join(dir, progPrefix+escape(name)+skippedSuffix)
		if err := ifMissing(path, func(path string) error { return os.Symlink(why, path) }); err != nil {
			return fmt.Errorf("note why program %s is skipped: %w", name, err)
		}
	}
	return nil
}

// pinMaps pins maps, each with its note before it.
func pinMaps(r *loader.Revision, dir string, ifMissing pinning) error {
	for name, m := range r.Maps {
		path := filepath.Join(dir, mapPrefix+escape(name))
		note := r.Notes[name]
		for suffix, text := range texts(&note) {
			if *text == "" {
				continue
			}
			if err := ifMissing(path+suffix, func(path string) error { return os.Symlink(*text, path) }); err != nil {
				return fmt.Errorf("note %s of map %s: %w", suffix[1:], name, err)
			}
		}
		if err := ifMissing(path, func(path string) error { return pinMap(m, path) }); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	return nil
}

// texts are the parts of a note, by the suffixes of the symlinks that hold them.
func texts(n *loader.Note) map[string]*string {
	return map[string]*string{layoutSuffix: &n.Layout, contentsSuffix: &n.Contents, takenSuffix: &n.From}
}

func pinMap(m *ebpf.Map, path string) error {
	c, err := plain.Of(m.Clone())
	if err != nil {
		return err
	}
	return errors.Join(plain.Error(c.Pin(path)), c.Close())
}

func pinProgram(p *ebpf.Program, path string) error {
	c, err := plain.Of(p.Clone())
	if err != nil {
		return err
	}
	return errors.Join(plain.Error(c.Pin(path)), c.Close())
}

// OpenRevision opens what a revision has pinned, whole or not; see Whole. Pins
// that cannot be read are left out and returned as strays.
func (s *Store) OpenRevision(uid, revision string) (*loader.Revision, []Stray, error) {
	dir := s.RevisionDir(uid, revision)
	found, err := list(dir, inRevision)
	if err != nil {
		return nil, nil, err
	}
	r := loader.New(uid, revision)
	slices.Sort(found)
	var strays []Stray
	for _, n := range found {
		path := filepath.Join(dir, n)
		err := open(r, path)
		if err == nil {
			continue
		}
		stray, err := unreadable(uid, path, err)
		if err != nil {
			return nil, nil, errors.Join(err, r.Close())
		}
		strays = append(strays, stray)
	}
	if err := r.Index(); err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	return r, strays, nil
}

// open opens one pin.
func open(r *loader.Revision, path string) error {
	pin := filepath.Base(path)
	if name, ok := strings.CutPrefix(pin, progPrefix); ok {
		if name, isSkipped := strings.CutSuffix(name, skippedSuffix); isSkipped {
			why, err := os.Readlink(path)
			if err != nil {
				return fmt.Errorf("read why a program is skipped: %w", err)
			}
			r.Skipped[unescape(name)] = why
			return nil
		}
		p, err := plain.Of(ebpf.LoadPinnedProgram(path, nil))
		if err != nil {
			return fmt.Errorf("open pinned program: %w", err)
		}
		if name, _, isCopy := strings.Cut(name, copySuffix); isCopy {
			r.Further[unescape(name)] = append(r.Further[unescape(name)], p)
		} else {
			r.Programs[unescape(name)] = p
		}
		return nil
	}
	name := strings.TrimPrefix(pin, mapPrefix)
	var note loader.Note
	for suffix := range texts(&note) {
		of, isNote := strings.CutSuffix(name, suffix)
		if !isNote {
			continue
		}
		text, err := os.Readlink(path)
		if err != nil {
			return fmt.Errorf("read %s of map: %w", suffix[1:], err)
		}
		note = r.Notes[unescape(of)]
		*texts(&note)[suffix] = text
		r.Notes[unescape(of)] = note
		return nil
	}
	m, err := plain.Of(ebpf.LoadPinnedMap(path, nil))
	if err != nil {
		return fmt.Errorf("open pinned map: %w", err)
	}
	r.Maps[unescape(name)] = m
	return nil
}

// Repin makes again the pins of a revision that someone removed, from what is
// held open, and tells how many.
func (s *Store) Repin(r *loader.Revision) (int, error) {
	dir := s.RevisionDir(r.UID, r.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, fmt.Errorf("make pin directory: %w", err)
	}
	return pin(r, dir)
}

// AddCopy makes what LoadCopy loaded a part of the revision, and pins it.
func (s *Store) AddCopy(r *loader.Revision, instance string, program *ebpf.Program) error {
	r.Further[instance] = append(r.Further[instance], program)
	_, err := pin(r, s.RevisionDir(r.UID, r.Name))
	return errors.Join(err, r.Index())
}

// missing reports whether nothing is at the path.
func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}
