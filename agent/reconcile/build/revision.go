// Package build does the work of loads beside the agent's loop: it reads and prepares objects,
// links chains, measures, and runs the verifier. It pins and attaches nothing, and knows
// nothing of the loop: all that a function needs is passed to it.
package build

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/placement"
)

// prepare makes an object what its intent says.
type prepare func(o intent.Opened, object []byte) (*loader.Prepared, error)

// again prepares more programs of a revision that was loaded.
func again(types *btf.Cache) prepare {
	return func(o intent.Opened, object []byte) (*loader.Prepared, error) {
		return loader.PrepareAgain(o, object, types)
	}
}

// read reads and parses the object of an intent.
func read(o intent.Opened, files *objects.Cache, prepare prepare) ([]byte, *loader.Prepared, error) {
	object, err := files.Read(o.Payload().ObjectDigest)
	if err != nil {
		return nil, nil, err
	}
	prepared, err := prepare(o, object)
	if err == nil {
		err = pins.CheckNames(prepared)
	}
	return object, prepared, err
}

// LoadedRevision is a revision in the kernel that is not pinned yet.
type LoadedRevision struct {
	*loader.Revision
	// Reports say what became of each map.
	Reports []loader.MapReport
	// Profile is what its programs take of a chain; nil where that is not known.
	Profile *chain.Profile
}

// From has the maps that a revision does not make: those of the one that runs, Old, which may
// be nil, and those that other applications share, by the name of the map whose place they have.
type From struct {
	Old  *loader.Revision
	Lent map[string]loader.Lent
}

// Share returns the same maps, held open apart, for a load that runs beside the loop.
func (f From) Share() (From, error) {
	old, err := f.Old.Share()
	if err != nil {
		return From{}, err
	}
	lent, err := loader.ShareLent(f.Lent)
	if err != nil {
		return From{}, errors.Join(err, old.Close())
	}
	return From{old, lent}, nil
}

// Close closes the maps.
func (f From) Close() error { return errors.Join(f.Old.Close(), loader.CloseLent(f.Lent)) }

// Key names the maps as they are in the kernel.
func (f From) Key() string {
	parts := []string{f.Old.Key()}
	for _, name := range slices.Sorted(maps.Keys(f.Lent)) {
		parts = append(parts, fmt.Sprintf("%s=%d", name, f.Lent[name].ID))
	}
	return strings.Join(parts, " ")
}

// take reads the object of the application that has a map, and gives the map to another.
func take(p *loader.Prepared, name string, lent loader.Lent, files *objects.Cache) error {
	if lent.IsKept {
		return p.Take(name, lent, nil)
	}
	object, err := files.Read(lent.Owner.Payload().ObjectDigest)
	if err != nil {
		return err
	}
	return p.Take(name, lent, object)
}

// Revision reads an object, prepares it and loads it. It runs beside the loop:
// until its turn comes, a load holds no more of its object than the digest.
func Revision(o intent.Opened, files *objects.Cache, profile *v1alpha1.KernelProfile, from From, lacks loader.Lacks,
	turn Turn) (*LoadedRevision, error) {
	object, prepared, err := read(o, files, func(o intent.Opened, object []byte) (*loader.Prepared, error) {
		return loader.PrepareToLoad(o, object, turn.Types)
	})
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(from.Lent)) {
		if err := take(prepared, name, from.Lent[name], files); err != nil {
			return nil, err
		}
	}
	facts := inspect(object)
	if err := objectFits(o, facts, profile); err != nil {
		return nil, err
	}
	making, err := prepared.MapCost(from.Old)
	if err := errors.Join(err, turn.admit(prepared.LoadCost()), turn.admitMaps(making)); err != nil {
		return nil, err
	}
	prepared.Bound = turn.bound
	r, reports, err := loader.Load(prepared, from.Old, lacks, turn.Types)
	if err != nil {
		return nil, err
	}
	return &LoadedRevision{Revision: r, Reports: reports, Profile: measureLoaded(o.Payload(), prepared.Spec, facts)}, nil
}

// inspect returns what is known of an object, or nil where it cannot be inspected.
func inspect(object []byte) *bytecode.Facts {
	facts, err := bytecode.Inspect(bytes.NewReader(object), bytecode.Options{})
	if err != nil {
		return nil
	}
	return &facts
}

// objectFits reports what of the object's needs the node's kernel lacks, as an
// *UnfitError. An object that cannot be inspected is left to the kernel.
func objectFits(o intent.Opened, facts *bytecode.Facts, profile *v1alpha1.KernelProfile) error {
	if profile == nil || facts == nil {
		return nil
	}
	if lacks := placement.Of(o.Payload(), facts).Missing(*profile); lacks != "" {
		return &UnfitError{lacks}
	}
	return nil
}

// UnfitError says what of an application's needs this node's profile lacks. It
// is an ebpf.ErrNotSupported, as the kernel's own rejection would be, and nothing
// is tried again: the profile stays as it is while the agent runs.
type UnfitError struct{ Lacks string }

// Error implements error.
func (e *UnfitError) Error() string { return e.Lacks }

// Unwrap makes it an ebpf.ErrNotSupported.
func (e *UnfitError) Unwrap() error { return ebpf.ErrNotSupported }

// Copy loads one more program of an instance, with the maps of the revision.
func Copy(o intent.Opened, files *objects.Cache, from *loader.Revision, instance string, turn Turn) (*ebpf.Program, error) {
	_, prepared, err := read(o, files, again(turn.Types))
	if err != nil {
		return nil, err
	}
	if err := turn.admit(prepared.LoadCostOf(instance)); err != nil {
		return nil, err
	}
	return loader.LoadCopy(prepared, from, instance, turn.Types)
}
