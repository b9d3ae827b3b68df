package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/clsact"
)

// qdiscs are notes of the interfaces whose clsact qdisc Skep made, in a directory: symbolic
// links, named by the index of the interface.
type qdiscs struct{ dir string }

// Noted returns the indexes of the interfaces.
func (q qdiscs) Noted() ([]int, error) {
	names, err := list(q.dir, inQdiscs)
	var all []int
	for _, name := range names {
		// What is in the list is a number.
		ifindex, _ := strconv.Atoi(name)
		all = append(all, ifindex)
	}
	return all, err
}

// Note adds an interface.
func (q qdiscs) Note(ifindex int) error {
	err := os.MkdirAll(q.dir, 0o700)
	if err == nil {
		err = os.Symlink("made", q.path(ifindex))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("note qdisc: %w", err)
	}
	return nil
}

// Forget takes an interface away.
func (q qdiscs) Forget(ifindex int) error {
	return errors.Join(remove(q.path(ifindex), inQdiscs), rmdir(q.dir))
}

func (q qdiscs) path(ifindex int) string { return filepath.Join(q.dir, strconv.Itoa(ifindex)) }

// clearFilters deletes the filters that run a program that is pinned here.
func (s *Store) clearFilters() error {
	own := map[ebpf.ProgramID]bool{}
	err := survey(s.root, inRoot, func(path string, within place, isOwn bool) {
		if within != nil || !isOwn {
			return
		}
		program, err := ebpf.LoadPinnedProgram(path, nil)
		if err != nil {
			// A link, a map or a text.
			return
		}
		if id, err := ProgramID(program); err == nil {
			own[id] = true
		}
		_ = program.Close()
	})
	if err != nil {
		return err
	}
	s.Filters.Owner = func(id ebpf.ProgramID) (clsact.Owner, bool) { return clsact.Owner{}, own[id] }
	sweep := s.Filters.SweepQdiscs
	if len(own) > 0 {
		sweep = func() error {
			return s.Filters.Sweep(func(clsact.Side, clsact.Owner) bool { return false })
		}
	}
	if err := sweep(); err != nil {
		return fmt.Errorf("clear filters: %w", err)
	}
	return nil
}
