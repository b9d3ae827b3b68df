package guard

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/test/harness/tasks"
)

// rounds is how often one call of the kernel runs what is measured. bpf_loop takes up to
// 8 Mi.
const rounds = 1 << 16

// function is the type information of a function of two arguments.
func function(name string, linkage btf.FuncLinkage) *btf.Func {
	number := &btf.Int{Name: "long", Size: 8, Encoding: btf.Signed}
	return &btf.Func{Name: name, Linkage: linkage, Type: &btf.FuncProto{
		Return: number, Params: []btf.FuncParam{{Name: "a", Type: number}, {Name: "b", Type: number}},
	}}
}

// looped loads a program that runs the instructions many times.
func looped(b *testing.B, body asm.Instructions, maps map[string]*ebpf.Map) *ebpf.Program {
	b.Helper()
	entry := btf.WithFuncMetadata(asm.Mov.Imm(asm.R1, rounds).WithSymbol("measures").WithSource(asm.Comment("measures")), function("measures", btf.GlobalFunc))
	callback := asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Dst: asm.R2, Src: asm.PseudoFunc, Constant: -1}.WithReference("once")
	insns := append(asm.Instructions{entry, callback, asm.Mov.Imm(asm.R3, 0), asm.Mov.Imm(asm.R4, 0), asm.FnLoop.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return()},
		body...)
	collection := &ebpf.CollectionSpec{Maps: Maps("s"), Programs: map[string]*ebpf.ProgramSpec{
		"p": {Name: "measures", Type: ebpf.RawTracepoint, License: "GPL", Instructions: insns}}}
	loaded, err := ebpf.NewCollectionWithOptions(collection, ebpf.CollectionOptions{MapReplacements: maps})
	if err != nil {
		b.Fatal(err)
	}
	p := loaded.DetachProgram("p")
	loaded.Close()
	b.Cleanup(func() { _ = p.Close() })
	return p
}

// run runs a program once and returns the time of a round in ns.
func run(b *testing.B, p *ebpf.Program) float64 {
	b.Helper()
	start := time.Now()
	if _, err := p.Run(&ebpf.RunOptions{Context: struct{ A uint64 }{}}); err != nil {
		b.Fatal(err)
	}
	return float64(time.Since(start).Nanoseconds()) / rounds
}

// once is a callback with or without a guard. Under another licence than GPL the guard asks
// the helper at each level.
func once(b *testing.B, body asm.Instructions, guarded bool, license string) asm.Instructions {
	b.Helper()
	spec := &ebpf.ProgramSpec{Name: "once", Type: ebpf.RawTracepoint, License: license, Instructions: body}
	spec.Instructions[0] = btf.WithFuncMetadata(body[0].WithSymbol("once").WithSource(asm.Comment("once")), function("once", btf.StaticFunc))
	if guarded {
		if err := Put(spec, "s"); err != nil {
			b.Fatal(err)
		}
	}
	return spec.Instructions
}

// BenchmarkGuard measures the guard of this task for scopes with cgroups at several levels,
// of which the last matches or none does, beside one look-up in a map of the same kind.
func BenchmarkGuard(b *testing.B) {
	nested := []string{tasks.Cgroup(b, "skep-a")}
	for i := range MaxLevels {
		nested = append(nested, tasks.Cgroup(b, fmt.Sprintf("%s/%d", nested[i], i)))
	}
	enter(b, nested[MaxLevels])
	maps := newMaps(b, "s")
	bare := looped(b, once(b, asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}, false, "GPL"), maps)
	lookup := looped(b, once(b, asm.Instructions{
		asm.StoreImm(asm.RFP, -8, 0, asm.Word), asm.StoreImm(asm.RFP, -4, 0, asm.Word), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.LoadMapPtr(asm.R1, 0).WithReference(cgroupsName("s")), asm.FnMapLookupElem.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return()}, false, "GPL"), maps)
	for _, license := range []string{"GPL", "Proprietary"} {
		guarded := looped(b, once(b, asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}, true, license), maps)
		b.Run(license, func(b *testing.B) { measure(b, nested, maps, bare, lookup, guarded) })
	}
}

// measure runs three programs in turns: without a guard, with one look-up, with a guard.
func measure(b *testing.B, nested []string, maps map[string]*ebpf.Map, bare, lookup, guarded *ebpf.Program) {
	for _, levels := range []int{0, 1, 2, MaxLevels} {
		for _, matches := range []bool{false, true} {
			if matches && levels == 0 {
				continue
			}
			b.Run(fmt.Sprintf("levels=%d/matches=%v", levels, matches), func(b *testing.B) {
				var members []Member
				for i := range levels {
					m := member(b, nested[i])
					if !matches || i < levels-1 {
						m.CgroupID += 1 << 40
					}
					members = append(members, m)
				}
				if err := Scopes(maps)["s"].Set(members); err != nil {
					b.Fatal(err)
				}
				// The least of many: whatever else runs on the machine only adds.
				none, one, with := math.Inf(1), math.Inf(1), math.Inf(1)
				for b.Loop() {
					none, one, with = min(none, run(b, bare)), min(one, run(b, lookup)), min(with, run(b, guarded))
				}
				b.ReportMetric(with-none, "ns/guard")
				b.ReportMetric(one-none, "ns/look-up")
				b.ReportMetric((with-none)/(one-none), "look-ups")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// enter moves this process into a cgroup, until the test ends.
func enter(b *testing.B, cgroup string) {
	b.Helper()
	move := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, os.Getpid()), 0)
	}
	if err := move(cgroup); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := move(tasks.Root(b)); err != nil {
			b.Error(err)
		}
	})
}
