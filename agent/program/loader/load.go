// Package loader puts the programs and maps of an application into the kernel: Prepare makes an
// object what its intent says, and Load loads it, with the contents of the maps that stay. It pins
// and attaches nothing.
//
// Size: what a load needs of an object is decided here alone, and the same figures are asked for
// before and after it.
package loader

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/cgrouplsm"
	"github.com/skep-dev/skep/agent/program/guard"
	"github.com/skep-dev/skep/agent/program/owner"
	"github.com/skep-dev/skep/agent/program/reason"
	"github.com/skep-dev/skep/agent/program/relocate"
	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/layout"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/bytecode/values"
)

// Revision is one revision of an application in the kernel, held open.
type Revision struct {
	UID, Name string
	// Programs by the name of their instance, Maps by that in the object.
	Programs map[string]*ebpf.Program
	Maps     map[string]*ebpf.Map
	// Skipped says, by instance, why a program that the intent leaves to the node is not
	// loaded.
	Skipped map[string]string
	// Further are more programs of an instance, see LoadCopy.
	Further map[string][]*ebpf.Program
	// Notes are what is noted of maps.
	Notes map[string]Note
	ids   map[ebpf.ProgramID]string
	// memory is what each map may take, in bytes, by the kernel's id; mapIDs are those ids.
	memory map[ebpf.MapID]uint64
	mapIDs map[string]ebpf.MapID
	// programs is what all programs take, in bytes.
	programs uint64
	// identities of instances.
	identities map[string]identity
	// shared are the instances of the revision that this one was shared from.
	shared []string
}

// Note is what is noted of a map beside its pin.
type Note struct {
	// Layout is that of its key and value, as package layout writes it.
	Layout string
	// Contents is a hash of those that a definition gave it when it was made; empty where it
	// gave none.
	Contents string
	// From says whose it is, if it is another application's.
	From string
}

// New returns a revision that has nothing yet.
func New(uid, name string) *Revision {
	return &Revision{UID: uid, Name: name, Programs: map[string]*ebpf.Program{}, Maps: map[string]*ebpf.Map{}, Skipped: map[string]string{},
		Further: map[string][]*ebpf.Program{}, Notes: map[string]Note{}}
}

// identity is what the kernel calls a program.
type identity struct {
	id  ebpf.ProgramID
	tag string
}

// Close lets the revision go. What is pinned or attached stays.
func (r *Revision) Close() error {
	if r == nil {
		return nil
	}
	var errs []error
	for _, p := range r.Programs {
		errs = append(errs, p.Close())
	}
	for _, further := range r.Further {
		for _, p := range further {
			errs = append(errs, p.Close())
		}
	}
	for _, m := range r.Maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Key names the revision as it is in the kernel, for people and for comparison: the
// same revision that is loaded again has another. It is empty where there is none.
func (r *Revision) Key() string {
	if r == nil {
		return ""
	}
	ids := slices.Sorted(maps.Keys(r.ids))
	if len(ids) == 0 {
		return r.UID + "@" + r.Name
	}
	return fmt.Sprintf("%s@%s#%d", r.UID, r.Name, ids[0])
}

// Scopes are those of the revision's guarded programs, by their names. All are empty until
// their members are set, and a revision that is loaded anew has others: they have to be set
// before its programs are attached, or it misses what happens until then.
func (r *Revision) Scopes() map[string]guard.Scope { return guard.Scopes(r.Maps) }

// HasMap reports whether one of the maps is the revision's own, or with taken one that it
// has from another application. One that cannot be read counts as one.
func (r *Revision) HasMap(ids []ebpf.MapID, taken bool) bool {
	for name, m := range r.Maps {
		if (r.Notes[name].From != "") != taken {
			continue
		}
		info, err := m.Info()
		if err != nil {
			return true
		}
		if id, ok := info.ID(); !ok || slices.Contains(ids, id) {
			return true
		}
	}
	return false
}

// ProgramIDs returns the kernel's ids of all programs.
func (r *Revision) ProgramIDs() []ebpf.ProgramID { return slices.Collect(maps.Keys(r.ids)) }

// Instance finds the name of the program with the kernel's id.
func (r *Revision) Instance(id ebpf.ProgramID) (string, bool) {
	name, ok := r.ids[id]
	return name, ok
}

// Index asks the kernel which programs and maps these are. It is to be called again when some are added.
func (r *Revision) Index() error {
	r.ids, r.identities, r.programs = map[ebpf.ProgramID]string{}, map[string]identity{}, 0
	// Somebody may have removed the pin of the first program, and left those of further ones.
	for _, programs := range []map[string][]*ebpf.Program{first(r.Programs), r.Further} {
		for instance, all := range programs {
			for _, p := range all {
				if err := r.add(instance, p); err != nil {
					return err
				}
			}
		}
	}
	return r.weigh()
}

// first has each program as a list of one.
func first(programs map[string]*ebpf.Program) map[string][]*ebpf.Program {
	all := map[string][]*ebpf.Program{}
	for instance, p := range programs {
		all[instance] = []*ebpf.Program{p}
	}
	return all
}

// add asks the kernel about one program.
func (r *Revision) add(instance string, p *ebpf.Program) error {
	info, err := plain.Of(p.Info())
	if err != nil {
		return fmt.Errorf("read info of program %s: %w", instance, err)
	}
	id, ok := info.ID()
	if !ok {
		return fmt.Errorf("read info of program %s: the kernel tells no id", instance)
	}
	// The kernel tells no size to a process without CAP_BPF, which could load none.
	size, _ := info.TranslatedSize()
	functions, _ := info.JitedFuncLens()
	r.programs = addMemory(r.programs, memoryOfProgram(size/asm.InstructionSize, len(functions)))
	r.ids[id] = instance
	if r.Programs[instance] == p {
		r.identities[instance] = identity{id, info.Tag}
	}
	return nil
}

// LoadError is the kernel's rejection of a program or map.
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

// rejection says what the kernel rejected, and for want of which right.
func (p *Prepared) rejection(err error) *LoadError {
	var types []ebpf.ProgramType
	for _, ps := range p.Spec.Programs {
		types = append(types, ps.Type)
	}
	explained, isKnown := rights.ExplainLoad(err, rights.ToLoad(types...)), false
	if p.Application.Kind == v1alpha1.KindBpfApplication && isTooDeep(err) {
		isKnown, explained = true, fmt.Errorf("%w; in a namespace, what functions can use of the stack is cleared, and all 512 bytes where an address on the stack "+
			"is computed: move the buffer into a map, or index it by constants", explained)
	}
	if missing := p.missingOfKernel(err); missing != "" {
		isKnown, explained = true, fmt.Errorf("%w; the program reads %s, which this kernel has not: look whether it is there (bpf_core_field_exists and its like), "+
			"or keep the application to nodes whose kernel has it", explained, missing)
	}
	if strings.Contains(LogOf(err), "has no valid bpf_spin_lock") && p.linksNodes() {
		isKnown, explained = true, fmt.Errorf("%w; the kernel was not told which nodes its lists and trees hold (bpf_list_head, bpf_rb_root): "+
			"the library that makes maps leaves their types out, so keep the nodes in maps instead", explained)
	}
	if fix := reason.Fix(err, LogOf(err)); fix != "" && !isKnown {
		explained = fmt.Errorf("%w; %s", explained, fix)
	}
	return &LoadError{Application: p.Application.String(), Log: LogOf(err), err: plain.Error(explained)}
}

// withLog asks the kernel again, and returns the error with the verifier's last words, where the
// library drops them. It makes the maps of the object anew for that, as the library does.
func withLog(err error, spec *ebpf.CollectionSpec, replacements map[string]*ebpf.Map, cache *btf.Cache) error {
	if !errors.Is(err, unix.EFAULT) || LogOf(err) != "" {
		return err
	}
	only := spec.Copy()
	only.Programs = nil
	for _, ms := range only.Maps {
		if ms.Type == ebpf.ProgramArray {
			ms.Contents = nil
		}
	}
	coll, failed := ebpf.NewCollectionWithOptions(only, ebpf.CollectionOptions{MapReplacements: replacements, Cache: cache})
	if failed != nil {
		return err
	}
	defer coll.Close()
	for name, program := range spec.Programs {
		// The library names the program (collectionLoader.loadProgram), and says no more of it.
		if strings.HasPrefix(err.Error(), "program "+name+": ") {
			return cgrouplsm.WithLog(err, program, coll.Maps, cache)
		}
	}
	return err
}

// linksNodes reports whether the object has lists or trees of the kernel. A tag names the type
// of their nodes, and no map refers to it.
func (p *Prepared) linksNodes() bool {
	return p.Spec.Types != nil && slices.ContainsFunc([]string{"bpf_list_head", "bpf_rb_root"}, func(name string) bool {
		found, err := p.Spec.Types.AnyTypesByName(name)
		return err == nil && len(found) > 0
	})
}

// isTooDeep reports whether the verifier found that functions use too much of the stack together.
func isTooDeep(err error) bool {
	return strings.Contains(LogOf(err), "Too large") && strings.Contains(LogOf(err), "stack")
}

// LogOf returns the full verifier log in an error's chain, or nothing.
func LogOf(err error) string {
	var ve *ebpf.VerifierError
	if !errors.As(err, &ve) {
		return ""
	}
	return strings.Join(ve.Log, "\n")
}

// Load puts a prepared object into the kernel. Maps whose contents can stay are
// shared with old, the revision that runs now, or nil, and what the object is to Take is
// another application's; the reports tell what became of each other one. It pins and attaches nothing, and touches nothing but its
// arguments and, by the programs that run once, those maps. Of what the intent leaves to the node, it loads what the kernel supports;
// lacks says what it is known not to. Errors about the object are *LoadError.
func Load(p *Prepared, old *Revision, lacks Lacks, cache *btf.Cache) (*Revision, []MapReport, error) {
	if err := p.withinNamespace(old); err != nil {
		return nil, nil, &LoadError{Application: p.Application.String(), err: err}
	}
	hasher := layout.New()
	replacements, reports := p.carry(old, hasher)
	maps.Copy(replacements, p.taken)
	spec, err := loadable(p.Spec, replacements)
	if err != nil {
		return nil, nil, err
	}
	later := p.setAside(spec)
	p.running = old.instances()
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements, Cache: cache})
	if err != nil {
		return nil, nil, p.rejection(withLog(err, spec, replacements, cache))
	}
	r := New(p.UID, p.Revision)
	r.Programs, r.Maps = coll.Programs, coll.Maps
	for name, ms := range p.Spec.Maps {
		note := Note{Layout: layoutOf(hasher, ms), Contents: p.contentsOf(name)}
		if replacements[name] != nil && p.taken[name] == nil {
			note.Contents = old.Notes[name].Contents
		}
		r.Notes[name] = note
	}
	r.MarkTaken(p.Application, p.Maps)
	if err := errors.Join(r.loadAside(p, lacks, later, cache), r.Index(), owner.Bind(slices.Collect(maps.Values(r.Programs)), ownerOf(p))); err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	if err := r.runOnce(p); err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	return r, reports, nil
}

// AskOnce has the library ask the kernel for bpf_probe_read_kernel, and for functions of programs. It does so once, and
// takes any error for a no: also that of a load whose time is over.
func AskOnce() {
	end := asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	reads := append(asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, -8), asm.Mov.Imm(asm.R2, 8), asm.Mov.Imm(asm.R3, 0), asm.FnProbeReadKernel.Call(),
	}, end...)
	// The library asks for functions after EINVAL: the second one ends nowhere.
	calls := append(asm.Instructions{asm.Call.Label("f")}, end...)
	calls = append(calls, asm.Mov.Imm(asm.R0, 0).WithSymbol("f"))
	for _, insns := range []asm.Instructions{reads, calls} {
		if program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe, License: "GPL", Instructions: insns}); err == nil {
			_ = program.Close()
		}
	}
}

func ownerOf(p *Prepared) owner.Owner {
	return owner.Owner{App: p.Application.String(), UID: p.UID, Revision: p.Revision}
}

// instances are the names of the revision's programs, or of those that it was shared from.
func (r *Revision) instances() []string {
	if r == nil {
		return nil
	}
	return slices.AppendSeq(slices.Clone(r.shared), maps.Keys(r.Programs))
}

// Share returns a revision that has the same maps, held open apart, and of the
// programs no more than their names: a load that runs beside the agent's loop uses it. Of none it is none.
func (r *Revision) Share() (*Revision, error) {
	if r == nil {
		return nil, nil
	}
	shared := New(r.UID, r.Name)
	shared.Notes, shared.shared = maps.Clone(r.Notes), r.instances()
	for name, m := range r.Maps {
		c, err := plain.Of(m.Clone())
		if err != nil {
			return nil, errors.Join(fmt.Errorf("share map %s: %w", name, err), shared.Close())
		}
		shared.Maps[name] = c
	}
	return shared, nil
}

// noLayout is noted of a map whose types are beyond a bound: a later revision
// never goes on with its contents. The controller denies such an object.
const noLayout = "unknown"

// layoutOf is what is noted of a map's layout.
func layoutOf(hasher *layout.Hasher, ms *ebpf.MapSpec) string {
	text, err := hasher.Map(ms)
	if err != nil {
		return noLayout
	}
	return text
}

// loadable is the spec as the library is to load it: a shared map must not be
// written by loading, and a per-CPU map is written for every CPU.
//
// It is an error about a program that the library would relocate: what comes of it was not checked.
func loadable(spec *ebpf.CollectionSpec, replaced map[string]*ebpf.Map) (*ebpf.CollectionSpec, error) {
	for name, ps := range spec.Programs {
		if relocate.HasPending(ps.Instructions) {
			return nil, fmt.Errorf("load program %s: it was not prepared for a kernel", name)
		}
	}
	cpus, err := countCPUs()
	if err != nil {
		return nil, err
	}
	c := *spec
	c.Programs = maps.Clone(spec.Programs)
	c.Maps = make(map[string]*ebpf.MapSpec, len(spec.Maps))
	for name, ms := range spec.Maps {
		if m, ok := replaced[name]; ok {
			ms = ms.Copy()
			ms.Contents = nil
			fillOpen(ms, m)
		}
		c.Maps[name] = values.PerCPU(ms, cpus)
	}
	return &c, nil
}

// Whole reports whether the revision has everything the prepared object needs.
func (r *Revision) Whole(p *Prepared) bool {
	if r.Lacks(p.Choices, slices.Collect(maps.Keys(p.Spec.Programs))) {
		return false
	}
	for name := range p.Spec.Maps {
		if r.Maps[name] == nil {
			return false
		}
	}
	return true
}

// Lacks reports whether an instance is missing, or all sets of a choice are. That something is
// skipped is noted where others may write: only what a choice leaves to the node may be.
func (r *Revision) Lacks(choices []plan.Choice, instances []string) bool {
	isMissing := func(instance string) bool { return r.Programs[instance] == nil }
	chosen := map[string]bool{}
	for _, c := range choices {
		if !slices.ContainsFunc(c.Sets, func(s plan.Set) bool { return !slices.ContainsFunc(s.Instances, isMissing) }) {
			return true
		}
		for _, set := range c.Sets {
			for _, instance := range set.Instances {
				if isMissing(instance) && r.Skipped[instance] == "" {
					return true
				}
				chosen[instance] = true
			}
		}
	}
	return slices.ContainsFunc(instances, func(i string) bool { return isMissing(i) && !chosen[i] })
}

// Copies returns the programs of an instance: the first, and those that LoadCopy made.
func (r *Revision) Copies(instance string) []*ebpf.Program {
	return append([]*ebpf.Program{r.Programs[instance]}, r.Further[instance]...)
}

// LoadCopy loads one more program of an instance, on the maps of r. A TCX hook
// takes a program once, so a link that moves needs another.
func LoadCopy(p *Prepared, r *Revision, instance string, cache *btf.Cache) (*ebpf.Program, error) {
	program, err := loadOne(p, r, instance, cache)
	if err != nil {
		return nil, err
	}
	if err := owner.Bind([]*ebpf.Program{program}, ownerOf(p)); err != nil {
		return nil, errors.Join(err, program.Close())
	}
	return program, nil
}

// loadOne loads a program of an instance on the maps of r.
func loadOne(p *Prepared, r *Revision, instance string, cache *btf.Cache) (*ebpf.Program, error) {
	if ps := p.Spec.Programs[instance]; cgrouplsm.Is(ps) {
		program, err := cgrouplsm.Load(ps, r.Maps, cache)
		if err != nil {
			return nil, p.rejection(err)
		}
		return program, nil
	}
	// A revision that an earlier build loaded has all maps of its object.
	replacements := maps.Clone(r.Maps)
	maps.DeleteFunc(replacements, func(name string, _ *ebpf.Map) bool { return p.Spec.Maps[name] == nil })
	spec, err := loadable(p.Spec, replacements)
	if err != nil {
		return nil, err
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{instance: p.Spec.Programs[instance]}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements, Cache: cache})
	if err != nil {
		return nil, p.rejection(withLog(err, spec, replacements, cache))
	}
	program := coll.DetachProgram(instance)
	coll.Close()
	return program, nil
}

// Identify returns the kernel's id and tag of a function's first instance, or
// zeros.
func (r *Revision) Identify(program string) (uint32, string) {
	for _, name := range slices.Sorted(maps.Keys(r.identities)) {
		if fn, _, _ := strings.Cut(name, "@"); fn == program {
			return uint32(r.identities[name].id), r.identities[name].tag
		}
	}
	return 0, ""
}
