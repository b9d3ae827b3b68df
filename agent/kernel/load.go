package kernel

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// Revision is one revision of an application in the kernel, held open.
type Revision struct {
	UID, Name string
	// Programs by the name of their instance, Maps by that in the object.
	Programs map[string]*ebpf.Program
	Maps     map[string]*ebpf.Map
	ids      map[ebpf.ProgramID]string
}

// Close lets the revision go. What is pinned or attached stays.
func (r *Revision) Close() error {
	var errs []error
	for _, p := range r.Programs {
		errs = append(errs, p.Close())
	}
	for _, m := range r.Maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Instance finds the name of the program with the kernel's id.
func (r *Revision) Instance(id ebpf.ProgramID) (string, bool) {
	name, ok := r.ids[id]
	return name, ok
}

// ID returns the kernel's id of an instance, or 0.
func (r *Revision) ID(instance string) ebpf.ProgramID {
	for id, n := range r.ids {
		if n == instance {
			return id
		}
	}
	return 0
}

func (r *Revision) index() error {
	r.ids = map[ebpf.ProgramID]string{}
	for name, p := range r.Programs {
		info, err := p.Info()
		if err != nil {
			return fmt.Errorf("read info of program %s: %w", name, err)
		}
		if id, ok := info.ID(); ok {
			r.ids[id] = name
		}
	}
	return nil
}

// LoadError is the kernel's refusal of a program or map.
type LoadError struct {
	// Application, as its identity is written.
	Application string
	// Log is everything the verifier said, or empty where it was not asked.
	Log string
	err error
}

// Error implements error: one line with the verifier's last words.
func (e *LoadError) Error() string { return fmt.Sprintf("load %s: %v", e.Application, e.err) }

// Unwrap returns the library's error.
func (e *LoadError) Unwrap() error { return e.err }

// LogOf returns the full verifier log in an error's chain, or nothing.
func LogOf(err error) string {
	var ve *ebpf.VerifierError
	if !errors.As(err, &ve) {
		return ""
	}
	return strings.Join(ve.Log, "\n")
}

// Load puts a prepared object into the kernel and pins it. Maps whose contents
// can stay are shared with old, the revision that runs now, or nil; the reports
// tell what became of each. The pins appear all at once under the revision's
// name. It attaches nothing. Errors about the object are *LoadError.
func (s *Store) Load(p *Prepared, old *Revision, cache *btf.Cache) (*Revision, []MapReport, error) {
	replacements, reports := p.carry(old)
	coll, err := ebpf.NewCollectionWithOptions(loadable(p.Spec, replacements), ebpf.CollectionOptions{MapReplacements: replacements, Cache: cache})
	if err != nil {
		return nil, nil, &LoadError{Application: p.Application.String(), Log: LogOf(err), err: err}
	}
	r := &Revision{UID: p.UID, Name: p.Revision, Programs: coll.Programs, Maps: coll.Maps}
	if err := errors.Join(r.index(), bindOwner(slices.Collect(maps.Values(r.Programs)), ownerOf(p)), s.pinRevision(r, p)); err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	return r, reports, nil
}

// loadable is the spec as the library is to load it. The variables are in the
// maps' contents already; listing them would have each data section mapped
// into memory. A replaced map must not be written by loading.
func loadable(spec *ebpf.CollectionSpec, replaced map[string]*ebpf.Map) *ebpf.CollectionSpec {
	c := *spec
	c.Variables = nil
	c.Maps = make(map[string]*ebpf.MapSpec, len(spec.Maps))
	for name, ms := range spec.Maps {
		if _, ok := replaced[name]; ok {
			ms = ms.Copy()
			ms.Contents = nil
		}
		c.Maps[name] = ms
	}
	return &c
}

// pinRevision pins everything aside and then renames it into place.
func (s *Store) pinRevision(r *Revision, p *Prepared) error {
	aside := filepath.Join(s.appDir(r.UID), newPrefix+escape(r.Name))
	if err := os.RemoveAll(aside); err != nil {
		return fmt.Errorf("remove leftover pin: %w", err)
	}
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	for name, prog := range r.Programs {
		if err := prog.Pin(filepath.Join(aside, progPrefix+escape(name))); err != nil {
			return fmt.Errorf("pin program %s: %w", name, err)
		}
	}
	for name, m := range r.Maps {
		path := filepath.Join(aside, mapPrefix+escape(name))
		// A clone: a shared map keeps its old pin, which Pin would move.
		if err := pinCopy(m, path); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
		if err := os.Symlink(layout(p.Spec.Maps[name]), path+layoutSuffix); err != nil {
			return fmt.Errorf("note layout of map %s: %w", name, err)
		}
	}
	// What is there under the name already lacked something.
	if err := s.DropRevision(r.UID, r.Name); err != nil {
		return err
	}
	if err := os.Rename(aside, s.revisionDir(r.UID, r.Name)); err != nil {
		return fmt.Errorf("pin revision %s: %w", r.Name, err)
	}
	return nil
}

// pinCopy pins without making the library believe that m has moved there.
func pinCopy(m *ebpf.Map, path string) error {
	c, err := m.Clone()
	if err != nil {
		return err
	}
	return errors.Join(c.Pin(path), c.Close())
}

// OpenRevision opens what a revision has pinned, whole or not; see Whole.
func (s *Store) OpenRevision(uid, revision string) (*Revision, error) {
	dir := s.revisionDir(uid, revision)
	found, err := list(dir)
	if err != nil {
		return nil, err
	}
	r := &Revision{UID: uid, Name: revision, Programs: map[string]*ebpf.Program{}, Maps: map[string]*ebpf.Map{}}
	for _, n := range found {
		path := filepath.Join(dir, n)
		switch {
		case strings.HasSuffix(n, layoutSuffix):
		case strings.HasPrefix(n, progPrefix):
			prog, err := ebpf.LoadPinnedProgram(path, nil)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("open pinned program: %w", err), r.Close())
			}
			r.Programs[unescape(strings.TrimPrefix(n, progPrefix))] = prog
		case strings.HasPrefix(n, mapPrefix):
			m, err := ebpf.LoadPinnedMap(path, nil)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("open pinned map: %w", err), r.Close())
			}
			r.Maps[unescape(strings.TrimPrefix(n, mapPrefix))] = m
		}
	}
	if err := r.index(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Whole tells whether the revision has everything the prepared object needs.
func (r *Revision) Whole(p *Prepared) bool {
	for name := range p.Spec.Programs {
		if r.Programs[name] == nil {
			return false
		}
	}
	for name := range p.Spec.Maps {
		if r.Maps[name] == nil {
			return false
		}
	}
	return true
}

// Repin makes again the pins of a revision that someone removed, from what is
// held open, and tells how many.
func (s *Store) Repin(r *Revision) (int, error) {
	dir := s.revisionDir(r.UID, r.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, fmt.Errorf("make pin directory: %w", err)
	}
	var errs []error
	made := 0
	for name, prog := range r.Programs {
		if path := filepath.Join(dir, progPrefix+escape(name)); missing(path) {
			c, err := prog.Clone()
			if err == nil {
				err = errors.Join(c.Pin(path), c.Close())
			}
			errs = append(errs, err)
			made++
		}
	}
	for name, m := range r.Maps {
		if path := filepath.Join(dir, mapPrefix+escape(name)); missing(path) {
			errs = append(errs, pinCopy(m, path))
			made++
		}
	}
	return made, errors.Join(errs...)
}

// missing tells whether nothing is at the path.
func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

// Identify returns the kernel's id and tag of a function's first instance, or
// zeros.
func (r *Revision) Identify(program string) (uint32, string) {
	for _, name := range slices.Sorted(maps.Keys(r.Programs)) {
		if fn, _, _ := strings.Cut(name, "@"); fn != program {
			continue
		}
		if info, err := r.Programs[name].Info(); err == nil {
			id, _ := info.ID()
			return uint32(id), info.Tag
		}
	}
	return 0, ""
}
