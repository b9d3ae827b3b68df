// Package jit counts what the kernel's compiler adds to the work of a load on this machine. It asks the kernel, and keeps an
// answer for five seconds: an administrator may change it at any time.
package jit

import (
	"bytes"
	"encoding/binary"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

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
	insns := probe()
	p, err := load(insns)
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

// probe is a program with a constant.
func probe() asm.Instructions { return asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()} }

// mostAttempts is how often the kernel is asked again that was interrupted by a signal.
const mostAttempts = 30

// load loads a program. The library would ask for ever where the kernel answers EAGAIN, and the loop waits for the answer.
func load(insns asm.Instructions) (*ebpf.Program, error) {
	var code bytes.Buffer
	if err := insns.Marshal(&code, binary.LittleEndian); err != nil {
		return nil, err
	}
	license := []byte{0}
	// The first members of union bpf_attr (include/uapi/linux/bpf.h); the kernel takes the others as zero.
	attr := struct {
		programType, count uint32
		insns, license     unsafe.Pointer
	}{uint32(ebpf.SocketFilter), uint32(len(insns)), unsafe.Pointer(&code.Bytes()[0]), unsafe.Pointer(&license[0])} //nolint:gosec // the kernel reads them
	for attempt := 1; ; attempt++ {
		fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)) //nolint:gosec // union bpf_attr
		switch {
		case errno == 0:
			return ebpf.NewProgramFromFD(int(fd))
		case errno != unix.EAGAIN && errno != unix.EINTR || attempt == mostAttempts:
			return nil, errno
		}
	}
}
