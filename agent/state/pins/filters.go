package pins

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/bytecode/plain"
)

// qdiscs are notes of the interfaces whose clsact qdisc Skep made, in a directory: symbolic
// links, named by the device.
type qdiscs struct{ dir string }

// Noted returns the interfaces.
func (q qdiscs) Noted() ([]plan.Device, error) {
	names, err := list(q.dir, inQdiscs)
	var all []plan.Device
	for _, name := range names {
		// What is in the list is a device.
		d, _ := plan.ParseDevice(name)
		all = append(all, d)
	}
	return all, err
}

// Note adds an interface.
func (q qdiscs) Note(d plan.Device) error {
	err := os.MkdirAll(q.dir, 0o700)
	if err == nil {
		err = os.Symlink("made", q.path(d))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("note qdisc: %w", err)
	}
	return nil
}

// Forget takes an interface away.
func (q qdiscs) Forget(d plan.Device) error {
	return errors.Join(remove(q.path(d), inQdiscs), rmdir(q.dir))
}

func (q qdiscs) path(d plan.Device) string { return filepath.Join(q.dir, d.String()) }

// clearFilters deletes the filters that run a program that is pinned here, as far as that goes. Where some may be left, it
// returns the paths that tell whose they are, and must stay: the pins of programs that a filter may run, and the notes of
// qdiscs.
func (s *Store) clearFilters() (kept map[string]bool, err error) {
	own, kept := map[ebpf.ProgramID]bool{}, map[string]bool{filepath.Join(s.root, qdiscsDir): true}
	var errs []error
	err = survey(s.root, inRoot, func(path string, within place, isOwn bool) {
		if within != nil || !isOwn {
			return
		}
		program, err := plain.Of(ebpf.LoadPinnedProgram(path, nil))
		for _, passing := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EPERM} {
			if errors.Is(err, passing) {
				kept[path] = true
				errs = append(errs, fmt.Errorf("read pin %s: %w", path, err))
			}
		}
		if err != nil {
			// A link, a map or a text.
			return
		}
		if id, err := ProgramID(program); err == nil {
			own[id] = true
		}
		if program.Type() == ebpf.SchedCLS {
			kept[path] = true
		}
		_ = program.Close()
	})
	errs = append(errs, err)
	s.Filters.Forget()
	s.Filters.Unhurried = true
	defer func() { s.Filters.Unhurried = false }()
	s.Filters.Owner = func(id ebpf.ProgramID) (clsact.Owner, bool) { return clsact.Owner{}, own[id] }
	noted, err := s.Filters.NotedNamespaces()
	errs = append(errs, err)
	for _, id := range append(noted, 0) {
		if len(own) == 0 {
			errs = append(errs, s.Filters.SweepQdiscs(id))
			continue
		}
		errs = append(errs, s.Filters.Sweep(id, func(clsact.Side, clsact.Owner) bool { return false }))
	}
	if err := errors.Join(errs...); err != nil {
		return kept, fmt.Errorf("clear filters; the pins of programs that they may run are left, so that another attempt finds them: %w", err)
	}
	return nil, nil
}
