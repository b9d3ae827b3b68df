package build

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/intent"
)

// value is a result that holds nothing open.
type value struct{}

// Close implements io.Closer: there is nothing to free.
func (value) Close() error { return nil }

// Profile is what the programs of a revision take of a chain.
type Profile struct {
	chain.Profile
	value
}

// Memory is what the maps may take that a load makes, in bytes.
type Memory struct {
	Bytes uint64
	value
}

// Wholeness reports whether a revision has everything that its object needs.
type Wholeness struct {
	IsWhole bool
	value
}

// Measure reads an object and measures its XDP programs. The load of a revision measures
// them, too; Measure is for one that an earlier agent loaded.
func Measure(o intent.Opened, files *objects.Cache) (Profile, error) {
	object, err := readMember(o, files, loader.Prepare)
	if err != nil {
		return Profile{}, err
	}
	found, err := measure(o.Payload(), object)
	return Profile{Profile: found}, err
}

// measure returns what the XDP programs of an intent take.
func measure(p intent.Payload, object *memberObject) (chain.Profile, error) {
	var members []chain.Member
	for _, program := range p.Programs {
		if !slices.ContainsFunc(program.Attach, func(a v1alpha1.Attachment) bool { return a.Hook == plan.XDP }) {
			continue
		}
		one, err := object.member(plan.Member{UID: p.UID, Identity: p.Application, Program: program.Name})
		if err != nil {
			return chain.Profile{}, err
		}
		one.Key = program.Name
		members = append(members, one)
	}
	return chain.Measure(members)
}

// measureLoaded is measure for an object that is loaded anyway; nil where it
// cannot be measured.
func measureLoaded(p intent.Payload, spec *ebpf.CollectionSpec, facts *bytecode.Facts) *chain.Profile {
	if facts == nil {
		return nil
	}
	found, err := measure(p, &memberObject{spec, *facts})
	if err != nil {
		return nil
	}
	return &found
}

// Weigh reads an object and adds up the maps that its load makes after old.
func Weigh(o intent.Opened, files *objects.Cache, old *loader.Revision) (Memory, error) {
	_, prepared, err := read(o, files, loader.Prepare)
	if err != nil {
		return Memory{}, err
	}
	memory, err := prepared.Memory(old)
	if err != nil {
		return Memory{}, fmt.Errorf("weigh maps of %s: %w", o.Payload().Application, err)
	}
	return Memory{Bytes: memory}, nil
}

// Check reads an object and reports whether the revision has everything that it needs.
func Check(o intent.Opened, files *objects.Cache, r *loader.Revision) (Wholeness, error) {
	_, prepared, err := read(o, files, loader.Prepare)
	if err != nil {
		return Wholeness{}, err
	}
	return Wholeness{IsWhole: r.Whole(prepared)}, nil
}

// LacksProgram reports whether a revision lacks a program that its intent attaches, or may
// attach. It needs no object.
func LacksProgram(r *loader.Revision, payload intent.Payload) bool {
	var instances []string
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			for _, load := range plan.Loads(payload.Application, program.Name, at) {
				instances = append(instances, load.Instance)
			}
		}
	}
	return r.Lacks(plan.Choices(payload), instances)
}
