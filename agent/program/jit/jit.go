// Package jit counts what the kernel's compiler adds to the work of a load on this machine. It keeps no answer: an
// administrator may change it at any time.
package jit

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/bytecode"
)

// Hardening is the sysctl that has the compiler blind constants where it is 2.
const Hardening = "net.core.bpf_jit_harden"

// WorkOf counts the work for a linked program of a type, as bytecode.WorkOf, on this machine.
func WorkOf(t ebpf.ProgramType, insns asm.Instructions) bytecode.Work {
	w := bytecode.WorkOf(t, insns)
	if Blinds() {
		return w.Blinded()
	}
	return w
}

// Blinds reports whether the compiler blinds constants, by what the kernel makes of a program with one: only the initial
// network namespace has the sysctl, and it takes CAP_SYS_ADMIN to read it. A kernel that loads nothing for this process
// blinds nothing.
func Blinds() bool {
	insns := asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}
	p, err := ebpf.NewProgramWithOptions(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, Instructions: insns}, ebpf.ProgramOptions{LogDisabled: true})
	if err != nil {
		return false
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return true
	}
	size, err := info.TranslatedSize()
	return err != nil || size > len(insns)*asm.InstructionSize
}
