package loader

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/cgrouplsm"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/text"
)

// maxReason bounds why a program is skipped, in bytes.
const maxReason = 1 << 10

// Lacks says what the node does not support of the choices of a payload, by the indices of the
// choice and of its set. Sets of several choices may be of the same programs.
type Lacks map[[2]int]error

// tailCall is an entry of a prog array that names a program of a choice.
type tailCall struct {
	array, program string
	key            any
}

// setAside takes out of the spec what the node may not support and what the library does not
// load, and returns the tail calls to it.
func (p *Prepared) setAside(spec *ebpf.CollectionSpec) []tailCall {
	maps.DeleteFunc(spec.Programs, func(_ string, ps *ebpf.ProgramSpec) bool { return cgrouplsm.Is(ps) })
	for _, c := range p.Choices {
		for _, set := range c.Sets {
			for _, instance := range set.Instances {
				delete(spec.Programs, instance)
			}
		}
	}
	var later []tailCall
	for name, ms := range spec.Maps {
		isLater := func(kv ebpf.MapKV) bool {
			program, named := kv.Value.(string)
			return ms.Type == ebpf.ProgramArray && named && spec.Programs[program] == nil && p.Spec.Programs[program] != nil
		}
		if !slices.ContainsFunc(ms.Contents, isLater) {
			continue
		}
		for _, kv := range ms.Contents {
			if program, named := kv.Value.(string); named && isLater(kv) {
				later = append(later, tailCall{name, program, kv.Key})
			}
		}
		ms = ms.Copy()
		ms.Contents = slices.DeleteFunc(ms.Contents, isLater)
		spec.Maps[name] = ms
	}
	return later
}

// loadAside loads what the library does not load, and of each choice the first set that the
// kernel supports.
func (r *Revision) loadAside(p *Prepared, lacks Lacks, later []tailCall, cache *btf.Cache) error {
	chosen := map[string]bool{}
	for _, c := range p.Choices {
		for _, set := range c.Sets {
			for _, instance := range set.Instances {
				chosen[instance] = true
			}
		}
	}
	for instance, ps := range p.Spec.Programs {
		if !cgrouplsm.Is(ps) || chosen[instance] {
			continue
		}
		program, err := loadOne(p, r, instance, cache)
		if err != nil {
			return err
		}
		r.Programs[instance] = program
	}
	rejected := map[string]error{}
	for i := range p.Choices {
		if err := r.chooseSet(p, i, lacks, rejected, cache); err != nil {
			return err
		}
	}
	for _, call := range later {
		program := r.Programs[call.program]
		if program == nil {
			continue
		}
		if err := plain.Error(r.Maps[call.array].Put(call.key, program)); err != nil {
			return fmt.Errorf("put program %s into map %s: %w", call.program, call.array, err)
		}
	}
	return nil
}

func (r *Revision) chooseSet(p *Prepared, choice int, lacks Lacks, known map[string]error, cache *btf.Cache) error {
	c := p.Choices[choice]
	var rejected []error
	for i, set := range c.Sets {
		err := lacks[[2]int{choice, i}]
		if err == nil {
			err = r.loadSet(p, set, known, cache)
		}
		if err == nil {
			for j, other := range c.Sets {
				switch {
				case j < i:
					r.skip(other, rejected[j].Error())
				case j > i:
					r.skip(other, fmt.Sprintf("%s runs in its place", set))
				}
			}
			return nil
		}
		why := p.whyWithout(c, err)
		if why == nil {
			return err
		}
		rejected = append(rejected, why)
	}
	if c.Name == "" {
		return rejected[len(rejected)-1]
	}
	return fmt.Errorf("choose programs of alternative %s: this node supports no set of them: %w", c.Name, errors.Join(rejected...))
}

// whyWithout returns why a node is without a set of a choice that cannot be loaded; nil where the load fails with it. How
// long the verifier took is measured, and a busy core is no reason to end a program that runs.
func (p *Prepared) whyWithout(c plan.Choice, err error) error {
	isRunning := func(s plan.Set) bool {
		return slices.ContainsFunc(s.Instances, func(i string) bool { return slices.Contains(p.running, i) })
	}
	switch {
	case IsRejection(err):
		return err
	case c.Name == "" && !c.Must() && p.Bound > 0 && errors.Is(err, unix.ETIME) && !slices.ContainsFunc(c.Sets, isRunning):
		return TooSlow(err, p.Bound)
	}
	return nil
}

// TooSlow adds to the error of a load that took the verifier longer than it may by which rule it fails, and the fix.
func TooSlow(err error, most time.Duration) error {
	return fmt.Errorf("%w: denied by load/time: the kernel's verifier did not end within %s of processor time, which is all that a load has; "+
		"write loops with bpf_loop or bpf_for, branch less, or split the object into several ones", err, most)
}

// loadSet loads all programs of a set on the maps of the revision, or none. The kernel is asked
// once for each, whatever sets have it: known says what it rejected.
func (r *Revision) loadSet(p *Prepared, set plan.Set, known map[string]error, cache *btf.Cache) error {
	loaded := map[string]*ebpf.Program{}
	for _, instance := range set.Instances {
		if r.Programs[instance] != nil {
			continue
		}
		if p.Spec.Programs[instance] == nil {
			return fmt.Errorf("load %s: it changes what functions return, which takes a link for each", instance)
		}
		program, err := (*ebpf.Program)(nil), known[instance]
		if err == nil {
			program, err = loadOne(p, r, instance, cache)
		}
		if err != nil {
			known[instance] = err
			for _, other := range loaded {
				err = errors.Join(err, other.Close())
			}
			return err
		}
		loaded[instance] = program
	}
	for instance, program := range loaded {
		r.Programs[instance] = program
		delete(r.Skipped, instance)
	}
	return nil
}

// skip notes why a set is not loaded.
func (r *Revision) skip(set plan.Set, why string) {
	for _, instance := range set.Instances {
		if r.Programs[instance] == nil {
			r.Skipped[instance] = text.Line(text.Cut(why, maxReason))
		}
	}
}

// IsRejection reports whether an error of a load says that the node does not support the
// program, and not that it cannot be loaded at this moment.
func IsRejection(err error) bool {
	// ETIME is the end of a load's time, see package deadline.
	for _, passing := range []error{unix.ENOMEM, unix.EAGAIN, unix.EINTR, unix.EMFILE, unix.ENFILE, unix.ETIME} {
		if errors.Is(err, passing) {
			return false
		}
	}
	return true
}
