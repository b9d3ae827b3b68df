package chain

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/agent/program/cgrouplsm"
	"github.com/skep-dev/skep/bytecode/plain"
)

// Loaded is a chain in the kernel. It is not attached and not pinned.
type Loaded struct {
	// Program is the chain.
	Program *ebpf.Program
	// Counters is the map that ReadCounts reads.
	Counters *ebpf.Map
}

// Load puts a linked chain into the kernel. It asks open for each map the
// members use, which the caller keeps and closes.
//
// A rejection by the verifier is a *Rejection of the newcomer, with the kernel's
// words about it: every member is expected to have been loaded alone before.
// The level and size of the log in opts hold for rejections this package has no
// words for; a shared limit is told in a line.
func Load(l *Linked, open func(MapRef) (*ebpf.Map, error), opts ebpf.ProgramOptions) (*Loaded, error) {
	spec := l.Program.Copy()
	if err := l.associate(spec.Instructions, open); err != nil {
		return nil, err
	}
	sections, err := l.fillIn(spec.Instructions)
	if err != nil {
		return nil, errors.Join(err, closeAll(sections))
	}
	loaded, err := l.load(spec, opts)
	return loaded, errors.Join(err, closeAll(sections))
}

// load creates the chain's own maps and loads the program over them.
func (l *Linked) load(spec *ebpf.ProgramSpec, opts ebpf.ProgramOptions) (*Loaded, error) {
	counters, err := own(spec, CountersName, l.Counters)
	if err != nil {
		return nil, err
	}
	if l.Owner != nil {
		owner, err := own(spec, ownerName, l.Owner)
		if err != nil {
			return nil, errors.Join(err, counters.Close())
		}
		// The program keeps it.
		defer func() { _ = owner.Close() }()
	}
	program, err := l.program(spec, opts)
	if err != nil {
		return nil, errors.Join(err, counters.Close())
	}
	return &Loaded{Program: program, Counters: counters}, nil
}

// own creates a map of the chain's own and puts it into the instructions.
func own(spec *ebpf.ProgramSpec, name string, ms *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(ms)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", name, plain.Error(err))
	}
	if err := plain.Error(spec.Instructions.AssociateMap(name, m)); err != nil {
		return nil, errors.Join(fmt.Errorf("refer to %s: %w", name, err), m.Close())
	}
	return m, nil
}

// program loads twice if need be. What only a chain can fail by, the verifier
// says in a line; the full log of a million walked instructions would take
// hundreds of megabytes, and is asked for only where that line tells nothing.
func (l *Linked) program(spec *ebpf.ProgramSpec, opts ebpf.ProgramOptions) (*ebpf.Program, error) {
	terse := opts
	terse.LogLevel = ebpf.LogLevelStats
	program, err := ebpf.NewProgramWithOptions(spec, terse)
	if err == nil {
		return program, nil
	}
	err = explain(l.members, cgrouplsm.WithLog(err, spec, nil, nil))
	var refusal *Rejection
	if !errors.As(err, &refusal) || refusal.Limit != LimitVerifier {
		return nil, err
	}
	program, err = ebpf.NewProgramWithOptions(spec, opts)
	if err != nil {
		return nil, explain(l.members, err)
	}
	return program, nil
}

// associate puts the members' maps into the instructions.
func (l *Linked) associate(insns asm.Instructions, open func(MapRef) (*ebpf.Map, error)) error {
	for _, ref := range l.Maps {
		m, err := open(ref)
		if err != nil {
			return fmt.Errorf("open map %q of application %q: %w", ref.Name, ref.Application, err)
		}
		if err := plain.Error(insns.AssociateMap(ref.Symbol, m)); err != nil {
			return fmt.Errorf("refer to map %q of application %q: %w", ref.Name, ref.Application, err)
		}
	}
	return nil
}

// fillIn resolves the extern variables of several applications. Those of a
// single one are left to the loader.
func (l *Linked) fillIn(insns asm.Instructions) ([]*ebpf.Map, error) {
	if len(l.kconfigs) < 2 {
		return nil, nil
	}
	var sections []*ebpf.Map
	for _, k := range l.kconfigs {
		section, err := k.resolve(insns)
		if err != nil {
			return sections, fmt.Errorf("application %q: %w", k.application, err)
		}
		sections = append(sections, section)
	}
	return sections, nil
}

func closeAll(maps []*ebpf.Map) error {
	var err error
	for _, m := range maps {
		err = errors.Join(err, m.Close())
	}
	return err
}

// joint are the verifier's words where members that load alone do not load
// together, from kernel/bpf/verifier.c.
func joint() []struct {
	words  *regexp.Regexp
	limit  Limit
	reason string
	fix    string
} {
	return []struct {
		words  *regexp.Regexp
		limit  Limit
		reason string
		fix    string
	}{
		{regexp.MustCompile(`combined stack size of \d+ calls is \d+`), LimitStack,
			fmt.Sprintf("with the dispatcher its deepest path of calls takes more than %d bytes of stack", MaxStack),
			"use less stack: keep large values in a per-CPU map"},
		{regexp.MustCompile(`BPF program is too large`), LimitInstructions,
			fmt.Sprintf("with it the verifier walks more than %d instructions, which all members share", MaxInstructions),
			"make the program simpler (fewer branches, bpf_loop in place of unrolled loops), or attach to another interface"},
		{regexp.MustCompile(`sequence of \d+ jumps is too complex`), LimitInstructions,
			"with it the verifier has more than 8192 branches to follow, which all members share",
			"make the program simpler (fewer branches, bpf_loop in place of loops), or attach to another interface"},
		{regexp.MustCompile(`call stack of \d+ frames is too deep`), LimitFrames,
			fmt.Sprintf("with the dispatcher its calls nest deeper than %d", MaxFrames),
			inline},
		{regexp.MustCompile(`tail_calls are not allowed when call stack`), LimitStack,
			"it makes tail calls from a path of calls that takes 256 bytes of stack or more",
			"use less stack in front of the tail call"},
	}
}

// explain turns the kernel's rejection of a chain into a rejection of the
// newcomer. An error that is not about the program stays what it is.
func explain(members []Member, err error) error {
	err = plain.Error(err)
	var verifier *ebpf.VerifierError
	if !errors.As(err, &verifier) {
		return fmt.Errorf("load chain: %w", err)
	}
	refusal := &Rejection{Member: newcomer(members).Key, Limit: LimitVerifier,
		Reason: "the kernel rejects the chain with it",
		Fix:    "attach it to another interface, or see the verifier's log",
		Err:    err}
	for _, line := range verifier.Log {
		for _, j := range joint() {
			if j.words.MatchString(line) {
				refusal.Limit, refusal.Reason, refusal.Fix = j.limit, j.reason, j.fix
			}
		}
	}
	return refusal
}
