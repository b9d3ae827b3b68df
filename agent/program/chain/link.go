package chain

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/agent/program/jit"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/plain"
)

// Options tune a link.
type Options struct {
	// Counts are those to start from, by member key, so that they go on when a chain is
	// linked anew. What is counted between reading them and swapping the program is lost.
	Counts map[string]Counts
	// Owner is a map that says whose the chain is; nil means none. A reader that asks
	// a program for its metadata reads the first map that has any (bpftool does),
	// and the members bring their own: so the dispatcher refers to this one before
	// all others. It gives way where the members need the last of the maps.
	Owner *ebpf.MapSpec
}

// Linked is a chain as one program, before it is loaded.
type Linked struct {
	// Program is the dispatcher followed by the functions of all members. Its
	// map references are the Symbols of Maps, CountersName and ownerName.
	Program *ebpf.ProgramSpec
	// Maps are the members' maps in the order they are first referred to.
	Maps []MapRef
	// Counters is the per-CPU map of verdicts. Its one value holds the Counts of each
	// member, in order.
	Counters *ebpf.MapSpec
	// Owner is that of the options, or nil where the members left no room.
	Owner *ebpf.MapSpec
	// Members are the keys, in order.
	Members []string
	// Usage is what of the kernel's limits the chain takes.
	Usage Usage

	members  []Member
	kconfigs []kconfig
}

// MapRef is a map that a member refers to.
type MapRef struct {
	// Symbol is its name among the program's references.
	Symbol string
	// Application is that of the members which share the map.
	Application string
	// Name is the map's name in the application's object; data sections are
	// called .rodata, .data, .bss or begin so.
	Name string
}

// Link joins the members, in the given order, into one program. The error is a
// *Rejection where the members do not fit into a chain, and names the one that
// does not.
func Link(members []Member, opts Options) (*Linked, error) {
	if err := check(members); err != nil {
		return nil, err
	}
	license, err := license(members)
	if err != nil {
		return nil, err
	}
	l := newLinker()
	for i := range members {
		if err := l.add(&members[i]); err != nil {
			return nil, err
		}
	}
	kconfigs := findKconfigs(l.body, l.owners)
	if l.mapsUsed(len(kconfigs)) >= MaxMaps {
		opts.Owner = nil
	}
	head := dispatcher(members, l.calls, opts.Owner != nil)
	for _, k := range kconfigs {
		k.shift(len(head))
	}
	insns := slices.Concat(head, l.body)
	usage, err := l.usage(members, insns, len(kconfigs))
	if err != nil {
		return nil, err
	}
	return &Linked{
		Program: &ebpf.ProgramSpec{
			Name:         programName,
			Type:         ebpf.XDP,
			AttachType:   ebpf.AttachXDP,
			SectionName:  "xdp",
			Flags:        flags(members),
			License:      license,
			ByteOrder:    members[0].Object.ByteOrder,
			Instructions: insns,
		},
		Maps:     l.refs,
		Counters: counters(members, opts.Counts),
		Owner:    opts.Owner,
		Members:  keys(members),
		Usage:    usage,
		members:  slices.Clone(members),
		kconfigs: kconfigs,
	}, nil
}

// check rejects members that no chain can hold.
func check(members []Member) error {
	if len(members) == 0 {
		return errors.New("link chain: it has no members")
	}
	seen := map[string]bool{}
	objects := map[string]*ebpf.CollectionSpec{}
	for _, m := range members {
		if m.Key == "" || seen[m.Key] {
			return fmt.Errorf("link chain: member %q stands twice under one key", m.Key)
		}
		seen[m.Key] = true
		if m.Object == nil || m.Object.Programs[m.Program] == nil {
			return fmt.Errorf("link chain: member %q: its object has no program %q", m.Key, m.Program)
		}
		if spec := m.Object.Programs[m.Program]; spec.License != m.Facts.License {
			return fmt.Errorf("link chain: member %q: its facts name licence %q and its object %q", m.Key, m.Facts.License, spec.License)
		}
		if first, ok := objects[m.Application]; ok && first != m.Object {
			return fmt.Errorf("link chain: member %q: application %q comes with two objects", m.Key, m.Application)
		}
		objects[m.Application] = m.Object
		if err := checkProgram(m); err != nil {
			return err
		}
	}
	return checkFrags(members)
}

func checkProgram(m Member) error {
	spec := m.Object.Programs[m.Program]
	switch {
	case spec.Type != ebpf.XDP:
		return &Rejection{Member: m.Key, Limit: LimitType,
			Reason: fmt.Sprintf("program %s is of type %s, and an XDP chain holds XDP programs", m.Program, spec.Type),
			Fix:    `put it into section "xdp"`}
	case spec.AttachType != ebpf.AttachXDP && spec.AttachType != ebpf.AttachNone:
		return &Rejection{Member: m.Key, Limit: LimitType,
			Reason: fmt.Sprintf("program %s is made for %s, not for an interface", m.Program, spec.AttachType),
			Fix:    `put it into section "xdp" or "xdp.frags"`}
	case spec.Flags&^frags != 0:
		return &Rejection{Member: m.Key, Limit: LimitType,
			Reason: fmt.Sprintf("program %s asks for load flags %#x, which would bind every member of the chain", m.Program, spec.Flags&^frags),
			Fix:    "load it without them"}
	case throws(spec.Instructions):
		return &Rejection{Member: m.Key, Limit: LimitType,
			Reason: fmt.Sprintf("program %s calls bpf_throw, and an exception leaves the whole chain, not the member", m.Program),
			Fix:    "return a verdict in place of throwing"}
	case len(spec.Instructions) == 0:
		return fmt.Errorf("link chain: member %q: program %q has no instructions", m.Key, m.Program)
	}
	return nil
}

// throws reports whether a program can throw an exception. The kernel unwinds one
// up to the dispatcher, and takes its handler from a tag of the main function,
// which a member no longer is.
func throws(insns asm.Instructions) bool {
	return slices.ContainsFunc(insns, func(ins asm.Instruction) bool {
		return ins.IsKfuncCall() && ins.Reference() == "bpf_throw"
	})
}

// TakesFrags reports whether a program takes packets of several buffers.
func TakesFrags(p *ebpf.ProgramSpec) bool { return p.Flags&frags != 0 }

// flags are those of the joined program: it takes packets of several buffers
// only if every member can.
func flags(members []Member) uint32 {
	all := uint32(frags)
	for _, m := range members {
		all &= m.Object.Programs[m.Program].Flags
	}
	return all
}

func keys(members []Member) []string {
	out := make([]string, len(members))
	for i, m := range members {
		out[i] = m.Key
	}
	return out
}

// entryID is one function of one application: members that agree on it share
// its code.
type entryID struct{ application, program string }

// linker collects the members' functions and maps.
type linker struct {
	// body are the functions of all members, and owners the application of each
	// instruction.
	body   asm.Instructions
	owners []string
	// calls are the symbols to call, in order.
	calls []string
	// entries are the symbols of what is in body already.
	entries map[entryID]string
	// work is what the kernel makes of each entry, by symbol.
	work map[string]bytecode.Work
	// starts are the symbols that begin functions.
	starts map[string]bool
	// refs and maps are the maps referred to, as a list and as a set of symbols.
	refs []MapRef
	maps map[string]bool
}

func newLinker() *linker {
	return &linker{entries: map[entryID]string{}, work: map[string]bytecode.Work{}, starts: map[string]bool{}, maps: map[string]bool{}}
}

// add appends the functions a member reaches, unless an earlier member brought
// them along.
func (l *linker) add(m *Member) error {
	id := entryID{m.Application, m.Program}
	if entry, ok := l.entries[id]; ok {
		l.calls = append(l.calls, entry)
		return nil
	}
	insns := slices.Clone(m.Object.Programs[m.Program].Instructions)
	starts, err := functions(insns, m.Program)
	if err != nil {
		return fmt.Errorf("link member %q: %w", m.Key, err)
	}
	prefix := fmt.Sprintf("%d/%s/", len(l.entries), m.Program)
	for i := range insns {
		insns[i] = describe(insns[i], i, starts)
	}
	rename(insns, prefix)
	for _, name := range starts {
		l.starts[prefix+name] = true
	}
	if err := l.relocateMaps(insns, m); err != nil {
		return fmt.Errorf("link member %q: %w", m.Key, err)
	}
	entry := insns[0].Symbol()
	l.entries[id] = entry
	l.work[entry] = jit.WorkOf(ebpf.XDP, insns)
	l.calls = append(l.calls, entry)
	l.body = append(l.body, insns...)
	l.owners = append(l.owners, slices.Repeat([]string{m.Application}, len(insns))...)
	return nil
}

// functions finds where functions begin: the first instruction, and every
// symbol that a call or a function pointer refers to.
func functions(insns asm.Instructions, program string) (map[int]string, error) {
	if insns[0].Symbol() == "" {
		insns[0] = insns[0].WithSymbol(program)
	}
	offsets, err := plain.Of(insns.SymbolOffsets())
	if err != nil {
		return nil, fmt.Errorf("read symbols of %q: %w", program, err)
	}
	starts := map[int]string{0: insns[0].Symbol()}
	for _, ref := range insns.FunctionReferences() {
		at, ok := offsets[ref]
		if !ok {
			return nil, fmt.Errorf("program %q calls %q, which its object does not define", program, ref)
		}
		starts[at] = ref
	}
	return starts, nil
}

// rename puts the prefix before every symbol and before every reference to one.
// References to kernel functions and variables resolve by other means.
func rename(insns asm.Instructions, prefix string) {
	own := map[string]bool{}
	for _, ins := range insns {
		if s := ins.Symbol(); s != "" {
			own[s] = true
		}
	}
	for i, ins := range insns {
		if s := ins.Symbol(); s != "" {
			insns[i] = insns[i].WithSymbol(prefix + s)
		}
		if r := ins.Reference(); own[r] && !ins.IsLoadFromMap() {
			insns[i] = insns[i].WithReference(prefix + r)
		}
	}
}

// relocateMaps puts the application before every map reference.
func (l *linker) relocateMaps(insns asm.Instructions, m *Member) error {
	for i, ins := range insns {
		if !ins.IsLoadFromMap() || ins.Reference() == "" {
			continue
		}
		name := ins.Reference()
		if m.Object.Maps[name] == nil {
			return fmt.Errorf("program %q refers to map %q, which its object does not define", m.Program, name)
		}
		symbol := m.Application + "/" + name
		if !l.maps[symbol] {
			l.maps[symbol] = true
			l.refs = append(l.refs, MapRef{Symbol: symbol, Application: m.Application, Name: name})
		}
		insns[i] = ins.WithReference(symbol)
	}
	return nil
}
