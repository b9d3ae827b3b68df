package loader

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/guard"
	"github.com/skep-dev/skep/agent/program/owner"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/bytecode/values"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
)

// Prepared is an application's object with everything its intent says put into
// it: what is left to do is to ask the kernel.
type Prepared struct {
	// UID, Revision and Application are the intent's.
	UID, Revision string
	Application   v1alpha1.Identity
	// Spec holds the instances of the intent's programs, the programs they tail
	// call by a prog array, and the maps that these need or the intent names. It is not modified by loading.
	Spec *ebpf.CollectionSpec
	// Set are the data sections that hold a variable the intent sets.
	Set map[string]bool
	// SetVariables are those variables.
	SetVariables map[string]bool
	// Maps is what the intent says of maps, whose sizes and contents Spec has.
	Maps map[string]v1alpha1.Map
	// Choices are what of Spec is loaded only where the kernel supports it.
	Choices []plan.Choice
	// Once are the instances that run once when they are loaded, in the order of the definition.
	Once []string
	// Bound is what the verifier may take of a processor for the load, see package deadline. Optional programs are left out
	// where it is over, unless they run already; with 0 the load fails then.
	Bound time.Duration
	// running are the instances of the revision whose place the load takes.
	running []string
	// leftOut are the maps of the object that are not made.
	leftOut map[string]bool
	// taken are maps of other applications by the name of the one whose place they have.
	taken map[string]*ebpf.Map
}

// Prepare reads the object and applies the intent to it: programs, attach
// targets, sizes and contents of maps, and variables. It asks the kernel nothing but, for objects
// that read it, how it was configured; what is wrong is rejected with the names
// the definition uses. Its programs are not relocated for the kernel, so that it is for looking at
// what a load makes, and loads objects without CO-RE relocations alone.
func Prepare(o intent.Opened, object []byte) (*Prepared, error) {
	return prepare(o, object, plan.Loads, func(*objectfile.Object, []string) error { return nil })
}

// PrepareToLoad is Prepare for a load: it relocates the programs for the kernel that runs, whose
// type information the cache has. It fails with a *DeniedError where a program then does what the
// intent does not say of it.
func PrepareToLoad(o intent.Opened, object []byte, types *btf.Cache) (*Prepared, error) {
	payload := o.Payload()
	return prepare(o, object, plan.Loads, relocateFor(types, func(read *objectfile.Object, programs []string) error {
		return admit(&payload, read, programs)
	}))
}

// PrepareAgain is PrepareToLoad for more programs of a revision that was loaded, and so admitted:
// what runs keeps running.
func PrepareAgain(o intent.Opened, object []byte, types *btf.Cache) (*Prepared, error) {
	return prepare(o, object, plan.Loads, relocateFor(types, func(*objectfile.Object, []string) error { return nil }))
}

// step is done with the programs of these names when all of the object is settled, before
// instructions of Skep are added to them.
type step func(read *objectfile.Object, programs []string) error

// lister lists what must be loaded of an application's program for an attachment, as plan.Loads does.
type lister func(of v1alpha1.Identity, program string, at v1alpha1.Attachment) []plan.Load

func prepare(o intent.Opened, object []byte, loads lister, relocated step) (*Prepared, error) {
	p := o.Payload()
	read, err := objectfile.Read(object)
	if err != nil {
		return nil, fmt.Errorf("read object of %s: %w", p.Application, err)
	}
	spec := read.Spec
	if err := settleKconfig(read); err != nil {
		return nil, fmt.Errorf("read the kernel's configuration for %s: %w", p.Application, err)
	}
	if err := settleKsyms(read); err != nil {
		return nil, fmt.Errorf("find variables of the kernel for %s: %w", p.Application, err)
	}
	if err := values.Apply(spec, p.Variables); err != nil {
		return nil, fmt.Errorf("set variables of %s: %w", p.Application, err)
	}
	prepared := &Prepared{UID: p.UID, Revision: o.Revision(), Application: p.Application, Maps: p.Maps, Set: map[string]bool{}, SetVariables: map[string]bool{},
		Choices: plan.Choices(p)}
	for name := range p.Variables {
		prepared.Set[spec.Variables[name].SectionName] = true
		prepared.SetVariables[name] = true
	}
	if err := settle(spec); err != nil {
		return nil, fmt.Errorf("set variables of %s: %w", p.Application, err)
	}
	if err := errors.Join(overrideMaps(spec, p.Maps, p.Programs), ownMaps(spec), owner.AddToConstants(spec, ownerOf(prepared))); err != nil {
		return nil, fmt.Errorf("prepare maps of %s: %w", p.Application, err)
	}
	prepared.leftOut = leaveOut(spec, p)
	all := loaded(spec, p.Programs)
	if err := relocated(read, all); err != nil {
		return nil, fmt.Errorf("prepare programs of %s: %w", p.Application, err)
	}
	if p.Application.IsNamespaced() {
		if err := bound(spec, all); err != nil {
			return nil, fmt.Errorf("prepare programs of %s: %w", p.Application, err)
		}
	}
	for name := range read.SocketFilters {
		if err := observe(spec.Programs[name]); err != nil {
			return nil, fmt.Errorf("prepare program %s of %s: %w", name, p.Application, err)
		}
	}
	programs, err := instances(spec, &p, loads)
	if err == nil && p.Application.IsNamespaced() {
		err = boundAnswers(programs)
	}
	if err != nil {
		return nil, fmt.Errorf("prepare programs of %s: %w", p.Application, err)
	}
	spec.Programs = programs
	prepared.Spec, prepared.Once = spec, once(&p, loads)
	return prepared, nil
}

// settle writes the variables into the contents of their data sections and
// lists them no more: the library would map each section into memory.
func settle(spec *ebpf.CollectionSpec) error {
	for name, v := range spec.Variables {
		ms := spec.Maps[v.SectionName]
		if ms == nil || len(ms.Contents) != 1 {
			continue
		}
		data, ok := ms.Contents[0].Value.([]byte)
		if !ok || uint64(v.Offset)+uint64(len(v.Value)) > uint64(len(data)) {
			return fmt.Errorf("variables.%s: it lies outside its section %s; compile the object anew", name, v.SectionName)
		}
		copy(data[v.Offset:], v.Value)
	}
	spec.Variables = nil
	return nil
}

// overrideMaps applies what the definition says of maps.
func overrideMaps(spec *ebpf.CollectionSpec, maps map[string]v1alpha1.Map, programs []v1alpha1.Program) error {
	var errs []error
	for name, m := range maps {
		ms, ok := spec.Maps[name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("maps.%s: the object has no such map; it has %s", name, names(spec.Maps)))
		case isData(name) && !reflect.ValueOf(m).IsZero():
			errs = append(errs, fmt.Errorf("maps.%s: a data section has one entry, which variables set; take all fields away", name))
		case m.ValueSize != nil && ms.ValueSize != 0 && ms.ValueSize != *m.ValueSize:
			errs = append(errs, fmt.Errorf("maps.%s: the object says that values have %d bytes; take valueSize away", name, ms.ValueSize))
		default:
			values.Resize(ms, m)
		}
	}
	if len(errs) == 0 {
		for _, misfit := range values.Contents(spec, maps, programs) {
			errs = append(errs, misfit)
		}
	}
	return errors.Join(errs...)
}

// leaveOut takes the maps out of the object that no program refers to which is loaded, and that the definition
// does not name, and returns their names.
func leaveOut(spec *ebpf.CollectionSpec, p intent.Payload) map[string]bool {
	needed, out := values.Loaded(spec, p.Programs, p.Maps).Maps, map[string]bool{}
	maps.DeleteFunc(spec.Maps, func(name string, _ *ebpf.MapSpec) bool {
		out[name] = !needed[name]
		return out[name]
	})
	return out
}

// arenaAddress is where processes see the memory of an arena, unless its object says where.
// The kernel wants to know before it loads a program: libbpf maps the memory into its own
// process, and the agent does not.
const arenaAddress = 1 << 44

// ownMaps takes pinning by name away, since pins go where the store says, gives arenas
// and rings what the kernel wants to know of them, and rejects maps the agent cannot look
// after.
func ownMaps(spec *ebpf.CollectionSpec) error {
	for name, ms := range spec.Maps {
		ms.Pinning = ebpf.PinNone
		if guard.IsMap(name) {
			return fmt.Errorf("map %s: names that begin with %s are those of scope guards; rename it in the object", name, guard.Prefix)
		}
		if ms.Type == ebpf.Arena && ms.MapExtra == 0 {
			ms.MapExtra = arenaAddress
		}
		roundRing(ms)
		if ms.InnerMap != nil {
			roundRing(ms.InnerMap)
		}
		if ms.Type == ebpf.StructOpsMap {
			return fmt.Errorf("map %s: struct_ops is not among the hooks the agent attaches; take it out of the object", name)
		}
	}
	return nil
}

// instances returns the programs to load, by the name they are pinned under, and adds the
// maps of their scopes to the spec. What a guarded program tail calls has no guard: it runs
// for the task that the caller's guard let in.
func instances(spec *ebpf.CollectionSpec, payload *intent.Payload, loads lister) (map[string]*ebpf.ProgramSpec, error) {
	out := map[string]*ebpf.ProgramSpec{}
	for _, p := range payload.Programs {
		ps, ok := spec.Programs[p.Name]
		if !ok {
			return nil, fmt.Errorf("the object has no function %q; it has %s", p.Name, names(spec.Programs))
		}
		if len(p.Attach) == 0 {
			out[p.Name] = ps
		}
		for _, a := range withAtOnce(p.Attach, ps) {
			if err := addInstances(out, spec, p.Name, a, loads(payload.Application, p.Name, a)); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range tailCalled(spec) {
		if _, ok := out[name]; !ok {
			out[name] = spec.Programs[name]
		}
	}
	return out, nil
}

// withAtOnce returns the attachments of a program, and those by one link to many functions that
// may stand in for them.
func withAtOnce(attach []v1alpha1.Attachment, ps *ebpf.ProgramSpec) []v1alpha1.Attachment {
	all := attach
	for _, a := range attach {
		if a, ok := plan.AtOnce(a); ok && !overridesReturn(ps) {
			all = append(slices.Clip(all), a)
		}
	}
	return all
}

// addInstances adds what an attachment of a program loads to out, and the maps of its scopes to
// the spec.
func addInstances(out map[string]*ebpf.ProgramSpec, spec *ebpf.CollectionSpec, program string, a v1alpha1.Attachment, loads []plan.Load) error {
	ps := spec.Programs[program]
	one, err := instance(ps, a)
	if err != nil {
		return fmt.Errorf("program %s: %w", program, err)
	}
	for _, load := range loads {
		bare := strings.TrimSuffix(load.Instance, plan.Bounded)
		if before := cmp.Or(out[bare], out[bare+plan.Bounded]); before != nil && before.Type != one.Type {
			return fmt.Errorf("program %s: its section %q says of no type, and its hooks make it %s and %s; name hooks for one type",
				program, ps.SectionName, before.Type, one.Type)
		}
		if out[load.Instance], err = loadedFor(one, load); err != nil {
			return err
		}
		if load.Scope != "" {
			maps.Copy(spec.Maps, guard.Maps(load.Scope))
		}
	}
	return nil
}

// overridesReturn reports whether a program changes what functions return. Links to many
// functions take no such program on many kernels.
func overridesReturn(ps *ebpf.ProgramSpec) bool {
	return slices.ContainsFunc(ps.Instructions, func(i asm.Instruction) bool {
		return i.IsBuiltinCall() && asm.BuiltinFunc(i.Constant) == asm.FnOverrideReturn
	})
}

// instance is the program as the hook wants it.
func instance(ps *ebpf.ProgramSpec, a v1alpha1.Attachment) (*ebpf.ProgramSpec, error) {
	h, ok := hook.Lookup(a.Hook)
	if !ok || !h.Attachable {
		return nil, fmt.Errorf("hook %q is not one the agent attaches", a.Hook)
	}
	if kind, ok := hook.ForMapEntries(ps.SectionName); ok {
		return nil, fmt.Errorf("section %q makes it a program for entries of a %s, which attaches nowhere; name another function", ps.SectionName, kind)
	}
	one := ps.Copy()
	if one.Type == ebpf.UnspecifiedProgram {
		one.Type = h.ProgramType
	}
	if one.Type != h.ProgramType {
		return nil, fmt.Errorf("section %q makes it a %s program, and hook %s takes %s; name another hook or another function",
			ps.SectionName, one.Type, h.Name, h.ProgramType)
	}
	if h.RunsOnce() {
		// A section that says of no type does not say so, and the kernel takes no other.
		one.Instructions, one.Flags = inlined(one.Instructions), one.Flags|unix.BPF_F_SLEEPABLE
	}
	if h.AttachType != ebpf.AttachNone && h.ProgramType != ebpf.SchedCLS {
		one.AttachType = h.AttachType
	}
	return one, nil
}

// loadedFor is the program as it is loaded for a target and a scope.
func loadedFor(ps *ebpf.ProgramSpec, load plan.Load) (*ebpf.ProgramSpec, error) {
	if load.Target == "" && load.Scope == "" {
		return ps, nil
	}
	one := ps.Copy()
	if load.Target != "" {
		one.AttachTo = load.Target
	}
	if load.Scope == "" {
		return one, nil
	}
	return one, guard.Put(one, load.Scope)
}

// loaded lists the programs of the object that the definition names and those that they tail call.
func loaded(spec *ebpf.CollectionSpec, programs []v1alpha1.Program) []string {
	all := tailCalled(spec)
	for _, p := range programs {
		if spec.Programs[p.Name] != nil {
			all = append(all, p.Name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// bound makes programs what a namespace may have: none reads more of the kernel by
// bpf_probe_read_kernel than the registers of the task that it runs for, or what the
// kernel left on its stack. It does so before they get guards, so that a guard lets the task in first.
func bound(spec *ebpf.CollectionSpec, programs []string) error {
	for _, name := range programs {
		ps := spec.Programs[name].Copy()
		if err := guard.BoundReads(ps); err != nil {
			return err
		}
		if err := guard.KeepCallbacks(ps); err != nil {
			return err
		}
		if err := guard.ClearFrames(ps); err != nil {
			return err
		}
		spec.Programs[name] = ps
	}
	return nil
}

// boundAnswers has none of a namespace's programs answer more than guard.BoundAnswers lets it. It is given
// what is loaded: a section may say of no type, so that a program has that of its hook.
func boundAnswers(programs map[string]*ebpf.ProgramSpec) error {
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		if err := guard.BoundAnswers(programs[name]); err != nil {
			return err
		}
	}
	return nil
}

// tailCalled lists the programs that prog arrays of the object name.
func tailCalled(spec *ebpf.CollectionSpec) []string {
	var out []string
	for _, ms := range spec.Maps {
		if ms.Type != ebpf.ProgramArray {
			continue
		}
		for _, kv := range ms.Contents {
			if name, ok := kv.Value.(string); ok && spec.Programs[name] != nil {
				out = append(out, name)
			}
		}
	}
	return out
}

// isData reports whether the map is a data section of the object.
func isData(name string) bool {
	return strings.HasPrefix(name, ".data") || strings.HasPrefix(name, ".bss") || isConstant(name)
}

// isConstant reports whether the map is a data section that programs do not
// write.
func isConstant(name string) bool {
	return strings.HasPrefix(name, ".rodata") || strings.HasPrefix(name, ".kconfig") || strings.HasPrefix(name, ".ksyms")
}

func names[T any](m map[string]T) string {
	if len(m) == 0 {
		return "none"
	}
	list := make([]string, 0, len(m))
	for n := range m {
		list = append(list, n)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// roundRing gives a ring the size that it has on this kernel; see bytecode.RingBytes.
func roundRing(ms *ebpf.MapSpec) {
	if ms.Type == ebpf.RingBuf || ms.Type == ebpf.UserRingbuf {
		ms.MaxEntries = bytecode.RingBytes(ms.MaxEntries, uint32(os.Getpagesize()))
	}
}
