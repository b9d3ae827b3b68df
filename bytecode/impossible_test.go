package bytecode

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/test/harness/golden"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestNoKernelMakesAMapWithObstacles makes maps of every type with sizes and flags at and beside their
// bounds: the kernel rejects each that has an obstacle, and each row finds one.
func TestNoKernelMakesAMapWithObstacles(t *testing.T) {
	need.Kernel(t)
	number := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	hits, made := make([]int, len(mapDemands)), 0
	for kind := ebpf.Hash; kind <= ebpf.Arena; kind++ {
		for _, c := range mapVariants(kind) {
			m := inspectMap(c.Name, c, Options{CPUs: testCPUs})
			if c.Key != nil {
				m.KeyType, m.ValueType = "int", "int"
				c.Key, c.Value = number, number
			}
			obstacles := m.Obstacles()
			for i, row := range mapDemands {
				if reason, _ := row.check(m); reason != "" && (row.types == nil || slices.Contains(row.types, kind)) {
					hits[i]++
				}
			}
			if kind == ebpf.ArrayOfMaps || kind == ebpf.HashOfMaps {
				c.InnerMap = &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
			}
			one, err := ebpf.NewMap(c)
			if err != nil {
				continue
			}
			made++
			if len(obstacles) > 0 {
				t.Errorf("the kernel makes a map that has the obstacles %q: %+v", obstacles, c)
			}
			if err := one.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if made < 40 {
		t.Errorf("only %d maps were made", made)
	}
	for i, n := range hits {
		if n == 0 {
			t.Errorf("no map met row %d", i)
		}
	}
}

// mapVariants are maps of a type. One with a key asks for types.
func mapVariants(kind ebpf.MapType) (all []*ebpf.MapSpec) {
	for _, key := range []uint32{0, 4, 8, 261} {
		for _, value := range []uint32{0, 4, 8, 12, 65536, 65544} {
			for _, entries := range []uint32{0, 4096} {
				for _, flags := range []uint32{0, 1, 2, flagReadOnly | flagWriteOnly, flagReadProg | flagWriteProg, flagMmapable} {
					all = append(all, &ebpf.MapSpec{Name: "m", Type: kind, KeySize: key, ValueSize: value, MaxEntries: entries, Flags: flags})
				}
				if key == 4 {
					all = append(all, &ebpf.MapSpec{Name: "m", Type: kind, KeySize: key, ValueSize: value, MaxEntries: entries, Flags: 1,
						Key: &btf.Void{}, Value: &btf.Void{}})
				}
			}
		}
	}
	return append(all, &ebpf.MapSpec{Name: "m", Type: kind, ValueSize: 4, MaxEntries: 8, MapExtra: 16})
}

// TestNoKernelLoadsAProgramWithObstacles: what every run begins with counts, and what may never run does not.
func TestNoKernelLoadsAProgramWithObstacles(t *testing.T) {
	end := []asm.Instruction{asm.Mov.Imm(asm.R0, 1), asm.Return()}
	functions := func(n int) (insns asm.Instructions) {
		for range n {
			insns = append(insns, asm.Call.Label("f"))
		}
		insns = append(insns, end...)
		for i := range n {
			name := "f"
			if i > 0 {
				name += strings.Repeat("x", i)
			}
			insns = append(insns, asm.Mov.Imm(asm.R0, 0).WithSymbol(name), asm.Return())
		}
		return insns
	}
	for sentence, c := range map[string]struct {
		kind    ebpf.ProgramType
		license string
		insns   asm.Instructions
		reason  string
	}{
		"a stack that is used whole":   {ebpf.SocketFilter, "MIT", append(asm.Instructions{asm.StoreMem(asm.RFP, -512, asm.R1, asm.DWord)}, end...), ""},
		"a store below the stack":      {ebpf.SocketFilter, "MIT", append(asm.Instructions{asm.StoreMem(asm.RFP, -520, asm.R1, asm.DWord)}, end...), "at -520"},
		"a load above it":              {ebpf.SocketFilter, "MIT", append(asm.Instructions{asm.LoadMem(asm.R1, asm.RFP, 8, asm.DWord)}, end...), "at +8"},
		"a store that nothing gets to": {ebpf.SocketFilter, "MIT", append(dead(asm.StoreMem(asm.RFP, -520, asm.R1, asm.DWord)), end...), ""},
		"a helper for the GPL": {ebpf.Kprobe, "MIT", append(asm.Instructions{asm.FnGetPrandomU32.Call(), asm.FnTracePrintk.Call()}, end...),
			"bpf_trace_printk under the licence \"MIT\""},
		"one that nothing gets to": {ebpf.Kprobe, "MIT", append(dead(asm.FnTracePrintk.Call()), end...), ""},
		"a helper of another type": {ebpf.SocketFilter, "GPL", append(asm.Instructions{asm.FnXdpAdjustHead.Call()}, end...), "programs of type XDP alone"},
		"too many instructions": {ebpf.SocketFilter, "GPL", append(slices.Repeat(asm.Instructions{asm.Mov.Imm(asm.R0, 0)}, maxInstructions), end...),
			"1000002 instructions"},
		"a program of a security hook":  {ebpf.LSM, "MIT", end, "type LSM need one"},
		"that is under the GPL":         {ebpf.LSM, "Dual MIT/GPL", end, ""},
		"one function more than it may": {ebpf.SocketFilter, "GPL", functions(256), "257 functions"},
	} {
		t.Run(sentence, func(t *testing.T) {
			insns := slices.Clone(c.insns)
			insns[0] = insns[0].WithSymbol("p")
			spec := &ebpf.ProgramSpec{Name: "p", Type: c.kind, License: c.license, Instructions: insns}
			object := &objectfile.Object{Spec: &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{"p": spec}}}
			p, err := InspectProgram(object, "p")
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Obstacles; len(got) > 0 != (c.reason != "") || len(got) > 0 && !strings.Contains(got[0].Reason, c.reason) {
				t.Errorf("obstacles: %q", got)
			}
			if c.kind == ebpf.LSM || len(c.insns) > maxInstructions {
				return // the one needs a hook, the other takes seconds
			}
			need.Kernel(t)
			loaded, err := ebpf.NewProgram(spec)
			if err == nil {
				err = loaded.Close()
			} else if c.reason == "" || errors.Is(err, ebpf.ErrNotSupported) {
				t.Errorf("the kernel does not load it: %v", err)
				return
			}
			if err == nil && c.reason != "" && loaded != nil {
				t.Error("the kernel loads it")
			}
		})
	}
}

// dead puts an instruction where no run of a program gets to.
func dead(ins asm.Instruction) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.JEq.Imm(asm.R0, 0, "end"), ins, asm.Mov.Imm(asm.R0, 0).WithSymbol("end")}
}

//go:generate go test -run ^TestThePageListsWhatNoKernelLoads$ -update

// TestThePageListsWhatNoKernelLoads compares the page with the rows of programs and maps, or writes it.
func TestThePageListsWhatNoKernelLoads(t *testing.T) {
	golden.File(t, "../docs/impossible.md", rendered(), "go generate ./bytecode")
}

// rendered is the page.
func rendered() string {
	var b strings.Builder
	b.WriteString(`<!-- Code generated by bytecode from its rows of obstacles. DO NOT EDIT. -->

# What no kernel loads

Skep denies a definition for what no kernel from 6.1 on takes, whatever its configuration. ` + "`skep vet`" + ` and admission deny it by the rule
` + "`inspect/kernel`" + `, and the controller seals no intent, so no node has to find it out. The denial names the program or the map, the reason and the fix.

The rule looks at programs that every node has to load, and at the maps that they refer to, in the sizes of the definition. A node tries a program that is
` + "`optional`" + ` or part of an alternative. Code that may never run denies nothing, and an instruction that CO-RE relocates ends what every run begins with.

A policy reads these reasons as ` + "`input.bytecode.programs[].obstacles`" + `.

## Programs

A program that has:

`)
	for _, row := range programObstacles {
		fmt.Fprintf(&b, "- %s\n", row.what)
	}
	b.WriteString("\nHelpers that one type alone has:\n\n| type of program | helpers |\n|---|---|\n")
	byType := map[string][]string{}
	for name, kind := range ownHelpers {
		byType[kind.String()] = append(byType[kind.String()], "`"+name+"`")
	}
	for _, kind := range slices.Sorted(maps.Keys(byType)) {
		fmt.Fprintf(&b, "| %s | %s |\n", kind, strings.Join(slices.Sorted(slices.Values(byType[kind])), ", "))
	}
	b.WriteString("\n## Maps\n\n| a map that has | of type |\n|---|---|\n")
	for _, row := range mapDemands {
		var types []string
		for _, kind := range row.types {
			if !slices.Contains(types, kind.String()) {
				types = append(types, kind.String())
			}
		}
		fmt.Fprintf(&b, "| %s | %s |\n", row.what, cmp.Or(strings.Join(types, ", "), "any"))
	}
	b.WriteString(`
## Targets

A definition that attaches more programs to one target than the kernel runs there. [hooks.md](hooks.md) says of each hook how many there are.

## Objects

An object that no loader takes is denied as a whole, by a rule that begins with ` + "`bytecode/`" + `: see
[recover.md](operations/recover.md#objects).
`)
	return b.String()
}
