package chain

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/program/jit"
	"github.com/skep-dev/skep/bytecode/plain"
)

// kconfigName is the virtual data section of extern variables that the loader
// fills in, such as LINUX_KERNEL_VERSION.
const kconfigName = ".kconfig"

// kconfig is one application's use of that section. cilium/ebpf fills the
// section in while it loads a program, but for one object per program only;
// a chain of several is resolved one by one, by loading a probe for each.
type kconfig struct {
	application string
	// probe holds the loads as the object has them, which the loader resolves.
	probe asm.Instructions
	// at are the places of the same loads in the chain.
	at []int
}

// isKconfigLoad recognises what the ELF reader makes of a reference to an
// extern variable: a load from a map without a name, whose place in the section
// it keeps to itself.
func isKconfigLoad(ins asm.Instruction) bool {
	return ins.IsLoadFromMap() && ins.Src == asm.PseudoMapValue && ins.Reference() == "" && ins.Map() == nil
}

// findKconfigs lists the applications that use the section, in the order of
// their functions; owners has the application of each instruction.
func findKconfigs(insns asm.Instructions, owners []string) []kconfig {
	var found []kconfig
	index := map[string]int{}
	for at, ins := range insns {
		if !isKconfigLoad(ins) {
			continue
		}
		application := owners[at]
		i, ok := index[application]
		if !ok {
			i = len(found)
			index[application] = i
			found = append(found, kconfig{application: application})
		}
		found[i].probe = append(found[i].probe, unlabel(ins))
		found[i].at = append(found[i].at, at)
	}
	return found
}

// shift moves the places where instructions were put in front.
func (k kconfig) shift(by int) {
	for i := range k.at {
		k.at[i] += by
	}
}

// unlabel takes the symbol and the types off an instruction and leaves what
// resolves it.
func unlabel(ins asm.Instruction) asm.Instruction {
	ins = btf.WithFuncMetadata(ins, nil)
	return ins.WithSource(nil).WithSymbol("")
}

// resolve loads the probe and puts the section it got, and the places it was
// given in it, into the chain's instructions. The caller closes the map after
// loading.
func (k kconfig) resolve(insns asm.Instructions) (_ *ebpf.Map, err error) {
	probe, err := plain.Of(ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "skep_kconfig",
		Type:         ebpf.XDP,
		License:      "GPL",
		Instructions: append(append(asm.Instructions{}, k.probe...), asm.Mov.Imm(asm.R0, 0), asm.Return()),
	}))
	if err != nil {
		return nil, fmt.Errorf("fill in %s: %w", kconfigName, err)
	}
	defer func() { err = errors.Join(err, probe.Close()) }()
	info, err := plain.Of(probe.Info())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kconfigName, err)
	}
	filled, err := plain.Of(info.Instructions())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kconfigName, err)
	}
	ids, ok := info.MapIDs()
	if !ok || len(ids) != 1 || len(filled) < len(k.at) {
		return nil, fmt.Errorf("read %s: the kernel does not tell its map", kconfigName)
	}
	section, err := plain.Of(ebpf.NewMapFromID(ids[0]))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", kconfigName, err)
	}
	for i, at := range k.at {
		if !filled[i].OpCode.IsDWordLoad() {
			return nil, errors.Join(fmt.Errorf("read %s: where %s is 2 the kernel does not tell constants, and so not where a variable of its "+
				"configuration is; set it to 1, or keep the program to nodes where it is lower (nodeSelector)", kconfigName, jit.Hardening), section.Close())
		}
		if err := place(&insns[at], filled[i].Constant, section); err != nil {
			return nil, errors.Join(err, section.Close())
		}
	}
	return section, nil
}

// place makes an ordinary load from a section out of a load of an extern
// variable. The upper half of the constant is the place in the section; the
// lower half of what the kernel returns is the map's id, which it does not take
// back.
func place(ins *asm.Instruction, constant int64, section *ebpf.Map) error {
	load := asm.Instruction{OpCode: ins.OpCode, Dst: ins.Dst, Src: asm.PseudoMapValue, Constant: constant >> 32 << 32}
	if s := ins.Symbol(); s != "" {
		load = load.WithSymbol(s)
	}
	if fn := btf.FuncMetadata(ins); fn != nil {
		load = btf.WithFuncMetadata(load, fn)
	}
	if source := ins.Source(); source != nil {
		load = load.WithSource(source)
	}
	if err := plain.Error(load.AssociateMap(section)); err != nil {
		return fmt.Errorf("refer to %s: %w", kconfigName, err)
	}
	*ins = load
	return nil
}
