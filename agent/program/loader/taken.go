package loader

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/layout"
	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/intent"
)

// Lent is an open map that an application is given in place of one of its own.
type Lent struct {
	// Owner is the sealed intent whose load made the map, and Name the map's in its object.
	Owner intent.Opened
	Name  string
	Map   *ebpf.Map
	// ID is the kernel's id of the map.
	ID ebpf.MapID
	// IsKept tells that the application has the map already and goes on with it: it was
	// checked when the application got it, and Owner is none.
	IsKept bool
}

// share returns one that is held open apart.
func (l Lent) share() (Lent, error) {
	m, err := plain.Of(l.Map.Clone())
	if err != nil {
		return Lent{}, fmt.Errorf("share map %s: %w", l.Name, err)
	}
	l.Map = m
	return l, nil
}

// ShareLent returns maps by name that are held open apart, for a load that runs beside the
// agent's loop.
func ShareLent(all map[string]Lent) (map[string]Lent, error) {
	shared := map[string]Lent{}
	for name, one := range all {
		c, err := one.share()
		if err != nil {
			return nil, errors.Join(err, CloseLent(shared))
		}
		shared[name] = c
	}
	return shared, nil
}

// CloseLent closes maps that ShareLent opened.
func CloseLent(all map[string]Lent) error {
	var errs []error
	for _, one := range all {
		errs = append(errs, one.Map.Close())
	}
	return errors.Join(errs...)
}

// ShapeError says how a map of another application differs from the one that the object
// declares in its place.
type ShapeError struct {
	// Application takes Map in place of OwnersMap, which is Owner's.
	Application, Owner v1alpha1.Identity
	Map, OwnersMap     string
	// OwnerUID and OwnerRevision are what the map was made by.
	OwnerUID, OwnerRevision string
	// Differences are what is said of Map, and what of OwnersMap.
	Differences []string
}

// Error names both maps and what differs.
func (e *ShapeError) Error() string {
	return fmt.Sprintf("maps.%s.from: map %s of application %s is not like map %s of %s: %s; build both objects with the same declaration of the map",
		e.Map, e.Map, e.Application.Name, e.OwnersMap, e.Owner.Name, strings.Join(e.Differences, ", "))
}

// Take puts a map of another application in the place of one that the object declares. object
// is the owner's: what a map has to be is read from what was sealed, and not from what was
// noted beside its pin. It fails with a *ShapeError where the two differ.
func (p *Prepared) Take(name string, l Lent, object []byte) error {
	ms := p.Spec.Maps[name]
	if ms == nil {
		return fmt.Errorf("maps.%s.from: the object has no such map; it has %s", name, names(p.Spec.Maps))
	}
	if !l.IsKept {
		if err := p.compare(name, ms, l, object); err != nil {
			return err
		}
	}
	if p.taken == nil {
		p.taken = map[string]*ebpf.Map{}
	}
	p.taken[name] = l.Map
	return nil
}

// compare holds a map of another application to the declarations of both objects.
func (p *Prepared) compare(name string, ms *ebpf.MapSpec, l Lent, object []byte) error {
	owner := l.Owner.Payload()
	prepared, err := Prepare(l.Owner, object)
	if err != nil {
		return fmt.Errorf("maps.%s.from: %w", name, err)
	}
	theirs := prepared.Spec.Maps[l.Name]
	if theirs == nil {
		return fmt.Errorf("maps.%s.from: the object of %s has no map %q; it has %s", name, owner.Application, l.Name, names(prepared.Spec.Maps))
	}
	if err := plain.Error(theirs.Compatible(l.Map)); err != nil {
		return fmt.Errorf("maps.%s.from: what is pinned as map %s of %s is another map: %s; delete that application and apply it anew",
			name, l.Name, owner.Application, strings.TrimSuffix(err.Error(), textIncompatible()))
	}
	declared := theirs.MaxEntries
	if owner.Maps[l.Name].MaxEntries != nil {
		read, err := objectfile.Read(object)
		if err != nil {
			return fmt.Errorf("read object of %s: %w", owner.Application, err)
		}
		was := read.Spec.Maps[l.Name]
		roundRing(was)
		declared = was.MaxEntries
	}
	if found := differences(ms, theirs, declared); len(found) > 0 {
		return &ShapeError{Application: p.Application, Owner: owner.Application, Map: name, OwnersMap: l.Name,
			OwnerUID: owner.UID, OwnerRevision: l.Owner.Revision(), Differences: found}
	}
	return nil
}

// differences lists where two declarations of a map differ: what the first says, and what the
// second. A size that the first leaves open is as the second has it, and a number of entries
// that the second's definition replaced, declared, is replaced for both.
func differences(ms, theirs *ebpf.MapSpec, declared uint32) []string {
	var all []string
	for _, c := range []struct {
		what        string
		mine, other any
		isOpen      bool
	}{
		{"type", ms.Type, theirs.Type, false},
		{"key size", ms.KeySize, theirs.KeySize, false},
		{"value size", ms.ValueSize, theirs.ValueSize, ms.ValueSize == 0},
		{"number of entries", ms.MaxEntries, theirs.MaxEntries, ms.MaxEntries == 0 || ms.MaxEntries == declared},
		{"flags", ms.Flags, theirs.Flags, false},
		{"map_extra", ms.MapExtra, theirs.MapExtra, false},
	} {
		if c.mine != c.other && !c.isOpen {
			all = append(all, fmt.Sprintf("%s %v here and %v there", c.what, c.mine, c.other))
		}
	}
	if len(all) > 0 {
		// The layout differs with a size anyway.
		return all
	}
	hasher := layout.New()
	mine, err := hasher.Map(ms)
	if err != nil {
		return []string{"layout of key or value: " + err.Error()}
	}
	if !hasher.Same(mine, theirs) {
		return []string{"key or value have another layout there"}
	}
	return nil
}

// fillOpen gives a declaration the sizes of the map that takes its place.
func fillOpen(ms *ebpf.MapSpec, m *ebpf.Map) {
	ms.MaxEntries = m.MaxEntries()
	if ms.ValueSize == 0 {
		ms.ValueSize = m.ValueSize()
	}
}

// MarkTaken notes which maps of the revision are other applications', as its intent says.
func (r *Revision) MarkTaken(id v1alpha1.Identity, maps map[string]v1alpha1.Map) {
	for name, m := range maps {
		if m.From == nil {
			continue
		}
		owner := v1alpha1.Identity{Kind: id.Kind, Namespace: id.Namespace, Name: m.From.Application}
		note := r.Notes[name]
		note.From = owner.String() + " " + m.From.Map
		r.Notes[name] = note
	}
}

// MapID returns the kernel's id of a map; 0 where the revision does not have it.
func (r *Revision) MapID(name string) ebpf.MapID { return r.mapIDs[name] }

// TakenKey names the maps that are other applications' as they are in the kernel; empty where
// there are none.
func (r *Revision) TakenKey() string {
	if r == nil {
		return ""
	}
	var all []string
	for name, note := range r.Notes {
		if note.From != "" {
			all = append(all, fmt.Sprintf("%s=%d", name, r.mapIDs[name]))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}
