// Package cgrouplsm loads LSM programs for cgroups (BPF_LSM_CGROUP). The kernel wants to be
// told their LSM hook when they are loaded, and cilium/ebpf tells it no function with this
// attach type.
//
// It does what the library does between a ProgramSpec and the kernel, with the library's own
// parts: it refers to maps and to functions of the kernel, relocates (CO-RE), and writes the
// type information. Addresses (__ksym), variables of the kernel's configuration (__kconfig) and
// functions of modules are left to the library, and are an error here. Maps, links and pins are
// others'. For programs of all types it asks the kernel for the log that the library drops.
package cgrouplsm

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/program/relocate"
	"github.com/skep-dev/skep/bytecode/plain"
)

// NotBuiltError says that a program uses something that only the library puts in.
type NotBuiltError struct {
	// Program is the function, and Uses what it uses.
	Program, Uses string
}

// Error implements error.
func (e *NotBuiltError) Error() string {
	return fmt.Sprintf("load %s: a program of hook lsm_cgroup cannot use %s yet; leave it out, or use hook lsm with pods", e.Program, e.Uses)
}

// Is reports whether a program is to be loaded here and not by the library.
func Is(spec *ebpf.ProgramSpec) bool {
	return spec.Type == ebpf.LSM && spec.AttachType == ebpf.AttachLSMCgroup
}

// Load loads a program for the LSM hook that its AttachTo names, on maps by their names in the
// collection. The cache may be nil. What the kernel rejects is an *ebpf.VerifierError; a hook
// that it does not have is btf.ErrNotFound.
func Load(spec *ebpf.ProgramSpec, maps map[string]*ebpf.Map, cache *btf.Cache) (*ebpf.Program, error) {
	if len(spec.Instructions) == 0 {
		return nil, fmt.Errorf("load %s: it has no instructions", spec.Name)
	}
	if spec.ByteOrder != nil && spec.ByteOrder != relocate.ByteOrder() {
		return nil, fmt.Errorf("load %s: it is for processors of another byte order (%s); compile the object with -target bpf on one like this",
			spec.Name, spec.ByteOrder)
	}
	if cache == nil {
		cache = btf.NewCache()
	}
	attr, done, err := prepare(spec, "bpf_lsm_"+spec.AttachTo, maps, cache)
	if err != nil {
		return nil, err
	}
	defer done()
	program, err := attr.load()
	// The instructions have no more than their descriptors.
	runtime.KeepAlive(maps)
	if rejection := new(ebpf.VerifierError); errors.As(err, &rejection) {
		// Its text begins with what was done, which the library alone can say, and a colon.
		return nil, fmt.Errorf("load %s for lsm_cgroup/%s%w", spec.Name, spec.AttachTo, err)
	}
	if err != nil {
		return nil, fmt.Errorf("load %s for lsm_cgroup/%s: %w", spec.Name, spec.AttachTo, err)
	}
	return program, nil
}

// prepare makes the attributes of a load for the type of the kernel that the program names,
// which may be empty. done ends what the load needs.
func prepare(spec *ebpf.ProgramSpec, target string, maps map[string]*ebpf.Map, cache *btf.Cache) (attr *attributesOfLoad, done func(), err error) {
	insns := append(asm.Instructions(nil), spec.Instructions...)
	kernel, err := plain.Of(cache.Kernel())
	if err != nil {
		return nil, nil, fmt.Errorf("load %s: read the kernel's type information: %w", spec.Name, err)
	}
	id, err := targetID(kernel, target)
	if err != nil {
		return nil, nil, fmt.Errorf("load %s: find LSM hook %s: %w", spec.Name, spec.AttachTo, err)
	}
	if err := refer(spec.Name, insns, maps, kernel); err != nil {
		return nil, nil, err
	}
	var types btf.Builder
	if err := applyRelocations(insns, &types, cache); err != nil {
		return nil, nil, fmt.Errorf("load %s: apply CO-RE relocations: %w", spec.Name, err)
	}
	functions, lines, err := btf.MarshalExtInfos(insns, &types)
	if err != nil {
		return nil, nil, fmt.Errorf("load %s: write type information: %w", spec.Name, plain.Error(err))
	}
	var code bytes.Buffer
	if err := plain.Error(insns.Marshal(&code, relocate.ByteOrder())); err != nil {
		return nil, nil, fmt.Errorf("load %s: %w", spec.Name, err)
	}
	attr, done = attributes(spec, code.Bytes(), id), func() {}
	if !types.Empty() {
		handle, err := plain.Of(btf.NewHandle(&types))
		if err != nil {
			return nil, nil, fmt.Errorf("load %s: load type information: %w", spec.Name, err)
		}
		done = func() { _ = handle.Close() }
		attr.describe(handle, functions, lines)
	}
	return attr, done, nil
}

// targetID is the id of a type of the kernel by its name, 0 without one.
func targetID(kernel *btf.Spec, name string) (btf.TypeID, error) {
	if name == "" {
		return 0, nil
	}
	if !strings.HasPrefix(name, "btf_trace_") {
		return functionID(kernel, name)
	}
	var typedef *btf.Typedef
	if err := plain.Error(kernel.TypeByName(name, &typedef)); err != nil {
		return 0, err
	}
	return plain.Of(kernel.TypeID(typedef))
}

// functionID is the id of one of the kernel's functions in its type information.
func functionID(kernel *btf.Spec, name string) (btf.TypeID, error) {
	var function *btf.Func
	if err := plain.Error(kernel.TypeByName(name, &function)); err != nil {
		return 0, err
	}
	return plain.Of(kernel.TypeID(function))
}

// refer has the instructions refer to maps by their descriptors, and to functions of the kernel
// by their ids.
func refer(program string, insns asm.Instructions, maps map[string]*ebpf.Map, kernel *btf.Spec) error {
	for i := range insns {
		ins := &insns[i]
		name := ins.Reference()
		switch {
		case ins.IsLoadFromMap() && ins.Map() != nil:
		case ins.IsLoadFromMap() && maps[name] != nil:
			if err := plain.Error(ins.AssociateMap(maps[name])); err != nil {
				return fmt.Errorf("load %s: refer to map %s: %w", program, name, err)
			}
		case ins.IsLoadFromMap():
			return &NotBuiltError{program, "variables of the kernel's configuration (__kconfig)"}
		case ins.IsKfuncCall():
			id, err := functionID(kernel, name)
			if err != nil {
				return fmt.Errorf("load %s: find function %s of the kernel: %w", program, name, err)
			}
			ins.Constant, ins.Offset = int64(id), 0
		case ins.OpCode.IsDWordLoad() && name != "" && !ins.IsLoadOfFunctionPointer():
			return &NotBuiltError{program, "addresses of the kernel (" + name + ")"}
		}
	}
	return nil
}

// applyRelocations applies the CO-RE relocations that are left, for the kernel that runs and its modules.
func applyRelocations(insns asm.Instructions, types *btf.Builder, cache *btf.Cache) error {
	var relocations []*btf.CORERelocation
	var at []*asm.Instruction
	for i := range insns {
		if r := btf.CORERelocationMetadata(&insns[i]); r != nil {
			relocations, at = append(relocations, r), append(at, &insns[i])
		}
	}
	if len(at) == 0 {
		return nil
	}
	targets, err := relocate.Targets(cache)
	if err != nil {
		return err
	}
	fixups, err := plain.Of(btf.CORERelocate(relocations, targets, relocate.ByteOrder(), types.Add))
	if err != nil {
		return err
	}
	for i, fixup := range fixups {
		if err := plain.Error(fixup.Apply(at[i])); err != nil {
			return fmt.Errorf("%s: %w", relocations[i], err)
		}
	}
	return nil
}
