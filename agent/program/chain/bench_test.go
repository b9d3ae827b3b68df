package chain_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/chain"
)

// BenchmarkMember measures what one more member costs a packet, counters
// included, as the kernel's own test run times it. The member returns at once,
// so what is left is the chain's part; the figure to watch is ns/member, which
// is a difference within one run.
func BenchmarkMember(b *testing.B) {
	short := load(b, several(b, 1, "xdp_pass")...)
	for _, n := range []int{2, 8, 32} {
		b.Run(fmt.Sprintf("of-%d", n), func(b *testing.B) {
			long := load(b, several(b, n, "xdp_pass")...)
			repeat := max(b.N, 10_000)
			one, all := perPacket(b, short.Program, repeat), perPacket(b, long.Program, repeat)
			b.ReportMetric(float64(all-one)/float64(n-1), "ns/member")
			b.ReportMetric(float64(perPacket(b, calls(b, n), repeat)-perPacket(b, calls(b, 1), repeat))/float64(n-1), "ns/bare-call")
			b.ReportMetric(float64(all), "ns/packet")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkChainAgainstMembers compares a chain with its members one after the other, each alone: what
// the chain adds, or spares, per packet. The member counts packets in a map of its own.
func BenchmarkChainAgainstMembers(b *testing.B) {
	for n := 1; n <= 20; n++ {
		b.Run(fmt.Sprintf("of-%d", n), func(b *testing.B) {
			repeat := max(b.N, 10_000)
			members := several(b, n, "xdp_verdict")
			l := load(b, members...)
			all, alone := perPacket(b, l.Program, repeat), time.Duration(0)
			for _, m := range members {
				alone += perPacket(b, l.apps[m.Application].Programs[m.Program], repeat)
			}
			b.ReportMetric(float64(all), "ns/chain")
			b.ReportMetric(float64(alone), "ns/alone")
			b.ReportMetric(float64(all)/float64(alone), "chain/alone")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkChainAgainstDispatcher compares a chain with the same members as libxdp runs them:
// each replaces a function of a dispatcher. The chain counts verdicts of each member besides.
func BenchmarkChainAgainstDispatcher(b *testing.B) {
	for _, n := range []int{1, 2, 5, 10, 20} {
		b.Run(fmt.Sprintf("of-%d", n), func(b *testing.B) {
			members := several(b, n, "xdp_verdict")
			l, d := load(b, members...), dispatcher(b, members)
			joined, replaced := perPacket(b, l.Program, 50_000), perPacket(b, d, 50_000)
			// In turns, since an emulated machine is disturbed for long.
			for range 40 {
				joined, replaced = min(joined, perPacket(b, l.Program, 50_000)), min(replaced, perPacket(b, d, 50_000))
			}
			b.ReportMetric(float64(joined), "ns/chain")
			b.ReportMetric(float64(replaced), "ns/dispatcher")
			b.ReportMetric(float64(joined)/float64(replaced), "chain/dispatcher")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// dispatcher is a program that calls a function for each member, as long as they pass the
// packet. Each function is replaced by its member.
func dispatcher(b *testing.B, members []chain.Member) *ebpf.Program {
	b.Helper()
	first := members[0].Object.Programs[members[0].Program].Instructions[0]
	begin := func(name string, i asm.Instruction) asm.Instruction {
		f := &btf.Func{Name: name, Linkage: btf.GlobalFunc, Type: btf.FuncMetadata(&first).Type}
		return btf.WithFuncMetadata(i.WithSymbol(name).WithSource(asm.Comment(name)), f)
	}
	slot := func(i int) string { return fmt.Sprintf("slot%d", i) }
	insns := asm.Instructions{begin("dispatches", asm.Mov.Reg(asm.R6, asm.R1))}
	for i := range members {
		insns = append(insns, asm.Mov.Reg(asm.R1, asm.R6), asm.Call.Label(slot(i)), asm.JNE.Imm(asm.R0, xdpPass, "out"))
	}
	insns = append(insns, asm.Return().WithSymbol("out"))
	for i := range members {
		insns = append(insns, begin(slot(i), asm.Mov.Imm(asm.R0, xdpPass)), asm.Return())
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "dispatches", Type: ebpf.XDP, License: "GPL", Instructions: insns})
	if err != nil {
		b.Fatalf("%+v", err)
	}
	b.Cleanup(func() { _ = program.Close() })
	for i, m := range members {
		replaces := m.Object.Copy()
		one := replaces.Programs[m.Program]
		one.Type, one.AttachType, one.AttachTarget, one.AttachTo = ebpf.Extension, ebpf.AttachNone, program, slot(i)
		replaces.Programs = map[string]*ebpf.ProgramSpec{m.Program: one}
		loaded, err := ebpf.NewCollection(replaces)
		if errors.Is(err, unix.EPERM) {
			b.Skipf("SKIPPED: no function can be replaced here: %v", err)
		}
		if err != nil {
			b.Fatalf("%+v", err)
		}
		b.Cleanup(loaded.Close)
		l, err := link.AttachFreplace(nil, "", loaded.Programs[m.Program])
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = l.Close() })
	}
	return program
}

// xdpPass is XDP_PASS.
const xdpPass = 2

// calls is a program that does nothing but call the same function n times: what
// a call and a return cost on this machine, which mitigations of the processor
// set, and no chain of functions can undercut.
func calls(b *testing.B, n int) *ebpf.Program {
	b.Helper()
	call := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall, Constant: -1}.WithReference("callee")
	insns := append(slices.Repeat(asm.Instructions{call}, n), asm.Return(),
		asm.Mov.Imm(asm.R0, 2).WithSymbol("callee"), asm.Return())
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: insns})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { program.Close() })
	return program
}

// perPacket is the shortest of several runs, which other work on the machine
// disturbed the least.
func perPacket(b *testing.B, program *ebpf.Program, repeat int) time.Duration {
	b.Helper()
	best := time.Duration(1<<63 - 1)
	for range 5 {
		_, took, err := program.Benchmark(make([]byte, 64), repeat, nil)
		if err != nil {
			b.Fatal(err)
		}
		best = min(best, took)
	}
	return best
}

// BenchmarkLink measures the pure half: twelve applications of five maps each into one
// program.
func BenchmarkLink(b *testing.B) {
	members := several(b, 12, "xdp_maps")
	for b.Loop() {
		joined(b, members...)
	}
}
