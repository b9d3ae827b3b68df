package attach

import (
	"errors"
	"fmt"
	"math"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/program/cgrouplsm"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

// LackingError says that the running kernel does not have the hook, or a part of it, or
// forbids it. It is an ebpf.ErrNotSupported.
type LackingError struct {
	// Hook is the row that says since which Linux there is one.
	Hook hook.Hook
	// Part says what the kernel lacks of a hook that it has, and the fix; empty where it
	// lacks the hook.
	Part string
	// Running is the kernel's version as linux/version.h encodes it, 0 where it
	// cannot be told.
	Running uint32
	// Forbidden reports that the kernel rejects programs of the hook from a process that
	// has every capability for it, and neither a user namespace nor a seccomp filter.
	Forbidden bool
	// Cause is what the kernel said, or nil.
	Cause error
}

// Error implements error.
func (e *LackingError) Error() string {
	running := fmt.Sprintf("%d.%d", e.Running>>16, e.Running>>8&0xff)
	switch {
	case e.Part != "":
		return fmt.Sprintf("this node's kernel %s, or keep the application away with nodeSelector", e.Part)
	case e.Forbidden:
		return fmt.Sprintf("hook %s is forbidden by this node's kernel, although Skep has the capabilities for it; "+
			"see whether it is locked down (kernel_lockdown(7)), or keep the application away with nodeSelector", e.Hook.Name)
	case e.Running == 0:
		return fmt.Sprintf("hook %s needs Linux %s or newer, and this node's kernel does not have it; use another hook, "+
			"or keep the application away with nodeSelector", e.Hook.Name, e.Hook.MinKernel)
	case e.Older():
		return fmt.Sprintf("hook %s needs Linux %s or newer, and this node runs %s; use another hook, or keep the application away with nodeSelector",
			e.Hook.Name, e.Hook.MinKernel, running)
	}
	return fmt.Sprintf("hook %s needs Linux %s or newer, and this node's %s was built without it; use another kernel or hook, "+
		"or keep the application away with nodeSelector", e.Hook.Name, e.Hook.MinKernel, running)
}

// Unwrap makes it an ebpf.ErrNotSupported, and keeps the cause.
func (e *LackingError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ebpf.ErrNotSupported}
	}
	return []error{ebpf.ErrNotSupported, e.Cause}
}

// Older reports whether the kernel comes before the one the table names. Where it
// does not, the kernel was built without the hook, or the table is wrong.
func (e *LackingError) Older() bool {
	var major, minor uint32
	if _, err := fmt.Sscanf(e.Hook.MinKernel, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return e.Running != 0 && e.Running < major<<16|minor<<8
}

// Explain returns a *LackingError around the error where the kernel does not
// have the hook that something failed on, else the error as it is. It tries the
// hook out: versions tell nothing where a distribution ported it back.
func Explain(h hook.Hook, err error) error {
	lacks := new(LackingError)
	if err == nil || !errors.As(Probe(h), &lacks) {
		return err
	}
	lacks.Cause = err
	return lacks
}

// lackingPart returns a *LackingError for a part of a hook that the kernel has.
func lackingPart(h hook.Hook, part string, cause error) error {
	return &LackingError{Hook: h, Part: part, Cause: cause}
}

func lacking(h hook.Hook, cause error) *LackingError {
	running, err := features.LinuxVersionCode()
	if err != nil {
		running = 0
	}
	return &LackingError{Hook: h, Running: running, Cause: cause}
}

// try finds out whether the kernel has a hook: ebpf.ErrNotSupported says that
// it does not, any other error that it cannot be told.
func try(h hook.Hook) error {
	switch {
	case h.IsFilter():
		return clsact.Probe()
	case isNetkit(h):
		return tryOrdered(h)
	case IsOrdered(h.Name):
		return tryTCX(h)
	case h.TakesFunctions():
		return tryFunction(h)
	case h.Shape == hook.Cgroup && h.Attachable:
		return tryTyped(h, "")
	case h.Name == "tp_btf":
		return tryTyped(h, "sched_switch")
	case h.Shape == hook.PerfEvent:
		return tryEvent(h)
	case h.Name == "iter":
		return tryTyped(h, "task")
	case h.AttachType == ebpf.AttachTraceUprobeMulti:
		return plain.Error(features.HaveBPFLinkUprobeMulti())
	}
	return plain.Error(features.HaveProgramType(h.ProgramType))
}

// tryOrdered asks for a link to a device that there is not: a kernel that has the
// hook says so, and upon another answer the library finds out what it has.
func tryOrdered(h hook.Hook) error {
	p, err := trivial(h, "")
	if err != nil {
		return err
	}
	l, err := attachOrdered(h, link.TCXOptions{Interface: math.MaxInt32, Program: p, Attach: h.AttachType})
	switch {
	case err == nil:
		err = l.Close()
	case errors.Is(err, unix.ENODEV):
		err = nil
	}
	return errors.Join(err, p.Close())
}

// trivial loads a program that returns 1, which every hook of a cgroup takes, or 0 for a
// function of the kernel: it lets the call go on. So only an attach type the kernel does
// not know makes it invalid. The target is that of a program typed by BTF.
func trivial(h hook.Hook, target string) (*ebpf.Program, error) {
	verdict := int32(1)
	if h.Shape == hook.KernelFunction {
		verdict = 0
	}
	spec := &ebpf.ProgramSpec{
		Name: "skep_try", Type: h.ProgramType, AttachType: h.AttachType, AttachTo: target, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()},
	}
	if cgrouplsm.Is(spec) {
		return cgrouplsm.Load(spec, nil, nil)
	}
	return plain.Of(ebpf.NewProgramWithOptions(spec, ebpf.ProgramOptions{LogDisabled: true}))
}
