// Package jit counts what the kernel's compiler adds to the work of a load on this machine. It asks the kernel, and keeps an
// answer for five seconds: an administrator may change it at any time.
package jit

import (
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/agent/program/rights"
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

// fresh is how long an answer of the kernel is kept.
const fresh = 5 * time.Second

var last struct {
	sync.Mutex
	until  time.Time
	blinds bool
}

// Blinds reports whether the compiler blinds constants.
func Blinds() bool {
	last.Lock()
	defer last.Unlock()
	if now := time.Now(); now.After(last.until) {
		last.blinds, last.until = ask(), now.Add(fresh)
	}
	return last.blinds
}

// ask looks at what the kernel makes of a program with a constant: only the initial network namespace has the sysctl, and it
// takes CAP_SYS_ADMIN to read it. Without an answer constants count, except in a process that loads nothing.
func ask() bool {
	insns := asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}
	p, err := ebpf.NewProgramWithOptions(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, Instructions: insns}, ebpf.ProgramOptions{LogDisabled: true})
	if err != nil {
		return rights.Check(rights.ToLoad(ebpf.SchedCLS)) == nil
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return true
	}
	size, err := info.TranslatedSize()
	return err != nil || size > len(insns)*asm.InstructionSize
}
