package loader

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/program/relocate"
	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/bytecode/plain"
)

// relocateFor returns a step of prepare: it makes the programs what they are on the kernel that runs,
// and has admit look at them before instructions of Skep are added.
func relocateFor(cache *btf.Cache, admit step) step {
	return func(read *objectfile.Object, programs []string) error {
		lacking, err := relocateAll(read.Spec, programs, cache)
		if err != nil {
			return err
		}
		if err := admit(read, programs); err != nil {
			return err
		}
		for name, at := range lacking {
			relocate.Poison(read.Spec.Programs[name].Instructions, at, read.Spec.Types)
		}
		return nil
	}
}

// relocateAll relocates programs, and returns for each which of its instructions read what the kernel
// lacks. These are as they were.
func relocateAll(spec *ebpf.CollectionSpec, programs []string, cache *btf.Cache) (map[string][]int, error) {
	lacking := map[string][]int{}
	var targets []*btf.Spec
	for _, name := range programs {
		ps := spec.Programs[name].Copy()
		spec.Programs[name] = ps
		if !relocate.HasPending(ps.Instructions) {
			continue
		}
		var err error
		if targets == nil {
			if targets, err = relocate.Targets(cache); err != nil {
				return nil, err
			}
		}
		if lacking[name], err = relocate.Apply(ps.Instructions, targets); err != nil {
			return nil, fmt.Errorf("program %s: apply CO-RE relocations: %w", name, plain.Error(err))
		}
	}
	return lacking, nil
}

// poisoned is how the verifier shows an instruction that was to read what the kernel has
// not, with its number: a call, or a load, of the number 0xbad2310 is there.
var poisoned = regexp.MustCompile(`(?m)^(\d+): \((?:85|18)\) .*(?:195896080|0xbad2310)`)

// missingOfKernel names the field, type or constant that a program was built to read and that
// this kernel has not; empty where a program was rejected for another reason.
func (p *Prepared) missingOfKernel(err error) string {
	found := poisoned.FindAllStringSubmatch(LogOf(err), -1)
	if len(found) == 0 {
		return ""
	}
	at, _ := strconv.ParseUint(found[len(found)-1][1], 10, 32)
	for name, ps := range p.Spec.Programs {
		if !strings.HasPrefix(err.Error(), "program "+name+": ") {
			continue
		}
		for i := ps.Instructions.Iterate(); i.Next(); {
			if uint64(i.Offset) == at {
				return relocate.Lacking(i.Ins)
			}
		}
	}
	return ""
}
