package loader

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/guard"
	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/layout"
	"github.com/skep-dev/skep/bytecode/plain"
)

// MapReport tells what became of one map when a revision replaced another.
type MapReport struct {
	// Map is its name in the object; data sections begin with a dot.
	Map string `json:"map"`
	// Kept contents go on; others start anew. Of a data section that is not
	// Kept, Carried are the variables whose values went on.
	Kept    bool     `json:"kept"`
	Carried []string `json:"carried,omitempty"`
	// Reason says why contents started anew, or of what is Kept how it differs from the
	// definition.
	Reason string `json:"reason,omitempty"`
}

// carry chooses the maps of old that the new revision goes on with. A map that
// both have is shared, so that what is written while both run is not lost.
func (p *Prepared) carry(old *Revision, layouts *layout.Hasher) (map[string]*ebpf.Map, []MapReport) {
	shared := map[string]*ebpf.Map{}
	if old == nil {
		return shared, nil
	}
	var reports []MapReport
	for _, name := range slices.Sorted(maps.Keys(p.Spec.Maps)) {
		m := old.Maps[name]
		if m == nil || isConstant(name) || p.Maps[name].From != nil {
			continue
		}
		if guard.IsMap(name) {
			// Who is in a scope is set for every revision anew.
			if old.Name == p.Revision && p.differs(name, old, layouts) == "" {
				shared[name] = m
			}
			continue
		}
		report := MapReport{Map: name, Reason: p.differs(name, old, layouts)}
		if report.Kept = report.Reason == ""; report.Kept {
			shared[name] = m
			if p.contentsOf(name) != old.Notes[name].Contents {
				report.Reason = "the definition's contents changed, and only a map that is made anew gets them; set maps." + name + ".onUpdate to Reset"
			}
		}
		reports = append(reports, report)
	}
	for _, name := range slices.Sorted(maps.Keys(old.Maps)) {
		if p.Spec.Maps[name] == nil && !isConstant(name) && !guard.IsMap(name) {
			reports = append(reports, MapReport{Map: name, Reason: p.lacks(name)})
		}
	}
	return shared, reports
}

// lacks says why the new revision does not have a map. A definition cannot name a section of variables.
func (p *Prepared) lacks(name string) string {
	switch {
	case !p.leftOut[name]:
		return "the new revision has no such map"
	case strings.HasPrefix(name, "."):
		return "no program of the new revision refers to it"
	}
	return "no program of the new revision refers to it; to have it all the same, name it in the definition: maps." + name
}

// textIncompatible ends what the library says of a map that does not fit; the reasons before
// it have no type.
func textIncompatible() string { return ": " + plain.Error(ebpf.ErrMapIncompatible).Error() }

// contentsOf hashes the contents that the definition gives a map; empty where it gives
// none.
func (p *Prepared) contentsOf(name string) string {
	entries := p.Maps[name].Contents
	if len(entries) == 0 {
		return ""
	}
	text, err := json.Marshal(entries)
	if err != nil {
		// What was opened was JSON.
		return "unknown"
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// differs says why the contents of a map of old cannot stay, or nothing. A revision that
// is loaded once more is no update.
func (p *Prepared) differs(name string, old *Revision, layouts *layout.Hasher) string {
	ms, m := p.Spec.Maps[name].Copy(), old.Maps[name]
	switch {
	case old.Notes[name].From != "":
		return "it was a map of " + old.Notes[name].From + ", and is this application's own now"
	case p.Maps[name].OnUpdate == v1alpha1.MapReset && old.Name != p.Revision:
		return "the definition has it made anew for every version"
	case ms.Type == ebpf.ProgramArray:
		return "a prog array is made anew for every revision, with its own programs"
	case isMapInMap(ms.Type) && len(ms.Contents) > 0:
		return "the object or the definition says which maps it holds"
	case p.Set[name] && old.Name != p.Revision:
		return "a variable in it is set by the definition"
	}
	if isData(name) {
		// Set by the library at load time, where the kernel has it.
		ms.Flags |= m.Flags() & unix.BPF_F_MMAPABLE
	}
	if err := plain.Error(ms.Compatible(m)); err != nil {
		return strings.TrimSuffix(err.Error(), textIncompatible())
	}
	if !layouts.Same(old.Notes[name].Layout, p.Spec.Maps[name]) {
		return "the layout of its key or value changed"
	}
	return ""
}

func isMapInMap(t ebpf.MapType) bool { return t == ebpf.ArrayOfMaps || t == ebpf.HashOfMaps }

// CarryVariables copies the values of global variables from the data sections
// of old into those of r that are not shared with it: each variable that both
// have under one name and type, but those that the definition sets. It is to be
// called just before r's programs take over; what old's programs write after is
// lost. It returns the names of the carried variables by section.
//
// The object that old was loaded from tells where its variables lie. Where it is
// not at hand, was is nil, and the kernel is asked, which takes CAP_SYS_ADMIN.
func CarryVariables(p, was *Prepared, old, r *Revision) (map[string][]string, error) {
	carried := map[string][]string{}
	sections, err := SeparateSections(old, r)
	errs := []error{err}
	for _, name := range sections {
		if p.Spec.Maps[name] == nil {
			continue
		}
		if carried[name], err = p.carrySection(name, was, old.Maps[name], r.Maps[name]); err != nil {
			errs = append(errs, fmt.Errorf("carry variables of %s: %w", name, err))
		}
	}
	return carried, errors.Join(errs...)
}

// SeparateSections lists the data sections, but constants, that both revisions have
// and that are not one map. CarryVariables has nothing to do for any other.
func SeparateSections(old, r *Revision) ([]string, error) {
	var sections []string
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(r.Maps)) {
		if !isData(name) || isConstant(name) || old.Maps[name] == nil {
			continue
		}
		same, err := sameMap(old.Maps[name], r.Maps[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("compare %s: %w", name, err))
		} else if !same {
			sections = append(sections, name)
		}
	}
	return sections, errors.Join(errs...)
}

// sameMap reports whether the two are one map in the kernel.
func sameMap(a, b *ebpf.Map) (bool, error) {
	x, err := plain.Of(a.Info())
	if err != nil {
		return false, fmt.Errorf("read info of map: %w", err)
	}
	y, err := plain.Of(b.Info())
	if err != nil {
		return false, fmt.Errorf("read info of map: %w", err)
	}
	m, _ := x.ID()
	n, _ := y.ID()
	return m == n && m != 0, nil
}

// carrySection copies what two data sections have in common.
func (p *Prepared) carrySection(name string, was *Prepared, from, to *ebpf.Map) ([]string, error) {
	had, err := was.datasec(name, from)
	if err != nil || had == nil {
		return nil, err
	}
	has, ok := p.Spec.Maps[name].Value.(*btf.Datasec)
	if !ok {
		return nil, nil
	}
	source, err := plain.Of(from.LookupBytes(uint32(0)))
	if err != nil {
		return nil, err
	}
	target, err := plain.Of(to.LookupBytes(uint32(0)))
	if err != nil {
		return nil, err
	}
	var carried []string
	layouts := layout.New()
	for _, v := range has.Vars {
		old := find(had, v, layouts)
		if old == nil || p.SetVariables[v.Type.TypeName()] || !within(*old, source) || !within(v, target) {
			continue
		}
		copy(target[v.Offset:v.Offset+v.Size], source[old.Offset:old.Offset+old.Size])
		carried = append(carried, v.Type.TypeName())
	}
	return carried, plain.Error(to.Put(uint32(0), target))
}

func within(v btf.VarSecinfo, section []byte) bool {
	return uint64(v.Offset)+uint64(v.Size) <= uint64(len(section))
}

// find returns the variable of the section with the name, size and type.
func find(ds *btf.Datasec, v btf.VarSecinfo, layouts *layout.Hasher) *btf.VarSecinfo {
	for i, old := range ds.Vars {
		if old.Type.TypeName() == v.Type.TypeName() && old.Size == v.Size && layouts.Equal(old.Type, v.Type) {
			return &ds.Vars[i]
		}
	}
	return nil
}

// datasec finds the type of a data section in the object it was loaded from, or
// asks the kernel.
func (p *Prepared) datasec(name string, m *ebpf.Map) (*btf.Datasec, error) {
	if p != nil && p.Spec.Maps[name] != nil {
		if section, ok := p.Spec.Maps[name].Value.(*btf.Datasec); ok {
			return section, nil
		}
	}
	section, err := datasec(m)
	return section, rights.ExplainLoad(err, []rights.Capability{rights.SysAdmin})
}

// datasec reads the type of a data section from the kernel, or nil where the
// map has none.
func datasec(m *ebpf.Map) (*btf.Datasec, error) {
	handle, err := plain.Of(m.Handle())
	if errors.Is(err, ebpf.ErrNotSupported) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read BTF of map: %w", err)
	}
	spec, err := plain.Of(handle.Spec(nil))
	if err := errors.Join(err, handle.Close()); err != nil {
		return nil, fmt.Errorf("read BTF of map: %w", err)
	}
	for t, err := range spec.All() {
		if err != nil {
			return nil, fmt.Errorf("read BTF of map: %w", err)
		}
		if ds, ok := t.(*btf.Datasec); ok {
			return ds, nil
		}
	}
	return nil, nil
}
