package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/functions"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

func kprobe(h hook.Hook, r Request) (pins.Held, error) {
	return r.probeFunction(h, link.Kprobe)
}

func kretprobe(h hook.Hook, r Request) (pins.Held, error) {
	return r.probeFunction(h, link.Kretprobe)
}

// kprober is what the two kinds of probe have in common.
type kprober func(string, *ebpf.Program, *link.KprobeOptions) (link.Link, error)

func (r Request) probeFunction(h hook.Hook, attach kprober) (link.Link, error) {
	symbol, err := symbolOf(h, r.Attachment.Function)
	if err == nil {
		err = r.Host.notPrefixed(symbol)
	}
	if err != nil {
		return nil, err
	}
	l, err := attach(symbol, r.Program, &link.KprobeOptions{Offset: r.Attachment.Offset})
	return l, r.missingFunction(h, err, r.Attachment.Function)
}

// notPrefixed fails where the kernel has a function of a system call, and not the one that
// is named: the library tries the name again behind the architecture's prefix.
func (host Host) notPrefixed(symbol string) error {
	if host.Functions == nil || !strings.HasPrefix(symbol, "sys_") {
		return nil
	}
	err := host.Functions.Check("", symbol)
	if missing := new(functions.MissingError); errors.As(err, &missing) {
		return fmt.Errorf("%w: %w; hook ksyscall finds system calls by their names, such as %s", ErrTarget, err, strings.TrimPrefix(symbol, "sys_"))
	}
	return err
}

func kprobeMulti(h hook.Hook, r Request) (pins.Held, error) {
	names := r.Found.functions
	attach := link.KprobeMulti
	if h.Name == "kretprobe.multi" {
		attach = link.KretprobeMulti
	}
	l, err := attach(r.Program, link.KprobeMultiOptions{Symbols: names, Session: h.AttachType == ebpf.AttachTraceKprobeSession})
	return l, r.missingFunction(h, err, names...)
}

// lsm attaches only where the program would run: the kernel takes it otherwise, too.
func lsm(h hook.Hook, r Request) (pins.Held, error) {
	if err := runsLSM(h); err != nil {
		return nil, err
	}
	return plain.Of(link.AttachLSM(link.LSMOptions{Program: r.Program}))
}

// lsmOfCgroup attaches to the tasks and sockets of a cgroup.
func lsmOfCgroup(h hook.Hook, r Request) (pins.Held, error) {
	if err := runsLSM(h); err != nil {
		return nil, err
	}
	l, err := cgroup(h, r)
	if errors.Is(err, unix.E2BIG) {
		err = fmt.Errorf("%w: the kernel has programs of cgroups at no more than ten LSM hooks at a time; detach those of another", err)
	}
	return l, err
}

// runsLSM returns a *LackingError where the kernel loads programs of LSM hooks and runs none.
func runsLSM(h hook.Hook) error {
	if modules, active := lsmActive(); !active {
		return lackingPart(h, fmt.Sprintf("runs no programs of LSM hooks, since bpf is not among its security modules (%s); boot it with lsm=…,bpf", modules), nil)
	}
	return nil
}

// syscallPrefixes are what the kernel calls the functions of system calls, by
// architecture (libbpf's arch_specific_syscall_pfx).
var syscallPrefixes = map[string]string{
	"amd64": "__x64_sys_", "arm64": "__arm64_sys_", "s390x": "__s390x_sys_", "riscv64": "__riscv_sys_", "ppc64le": "__powerpc_sys_", "loong64": "__se_sys_",
}

// prefixOf is what the names of the kernel's functions begin with, and those of
// definitions do not.
func prefixOf(h hook.Hook) string {
	switch {
	case h.TakesSyscalls():
		return syscallPrefixes[runtime.GOARCH]
	case h.ProgramType == ebpf.LSM:
		return "bpf_lsm_"
	}
	return ""
}

// Symbol is what the kernel calls a function that a definition names, as far as that is known here.
func Symbol(h hook.Hook, name string) string { return prefixOf(h) + name }

// symbolOf is what the kernel calls the function.
func symbolOf(h hook.Hook, name string) (string, error) {
	prefix := prefixOf(h)
	if prefix == "" && h.TakesSyscalls() {
		return "", fmt.Errorf("find system call %s: what the kernel calls it on %s is not known here; use hook kprobe with its function", name, runtime.GOARCH)
	}
	return prefix + name, nil
}

// missingFunction marks an error that comes of a function that the kernel has not, or
// cannot trace. It may come with a module.
func (r Request) missingFunction(h hook.Hook, err error, names ...string) error {
	said := missingFunctions(r.Host, h, err, names)
	if len(names) == 1 && errors.Is(err, fs.ErrNotExist) && !errors.As(said, new(*functions.MissingError)) {
		// The round has looked for long enough, and a later one names those that are near.
		return fmt.Errorf("%w: %w", ErrTarget, &functions.MissingError{Name: names[0]})
	}
	return said
}

func missingFunctions(host Host, h hook.Hook, err error, names []string) error {
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, btf.ErrNotFound) {
		return err
	}
	if host.Functions != nil {
		if missing := host.Functions.Explain(prefixOf(h), names...); missing != nil {
			return fmt.Errorf("%w: %w", ErrTarget, missing)
		}
	}
	return missing(err)
}

// CheckFunctions fails with ErrTarget where the kernel lacks one of the functions that are
// named, and with functions.ErrLater where that is not known yet.
func CheckFunctions(host Host, h hook.Hook, names []string) error {
	err := host.Functions.Check(prefixOf(h), slices.DeleteFunc(slices.Clone(names), functions.IsGlob)...)
	if missing := new(functions.MissingError); errors.As(err, &missing) {
		return fmt.Errorf("%w: %w", ErrTarget, err)
	}
	return err
}

// ExplainLoad returns an ErrTarget around the error of a load where the program was to be
// loaded for a function that the kernel has not.
func ExplainLoad(host Host, h hook.Hook, names []string, err error) error {
	if !h.TakesFunctions() || !h.LoadsForTarget() {
		return err
	}
	if errors.Is(err, ebpf.ErrNotSupported) && host.Functions != nil {
		// Of a function that no type information has, the library says that it is not supported.
		if missing := CheckFunctions(host, h, names); errors.Is(missing, ErrTarget) {
			return missing
		}
	}
	return missingFunctions(host, h, err, names)
}

// tryFunction finds out whether the kernel has a hook on its functions.
func tryFunction(h hook.Hook) error {
	switch {
	case h.AttachType == ebpf.AttachTraceKprobeMulti:
		return plain.Error(features.HaveBPFLinkKprobeMulti())
	case h.AttachType == ebpf.AttachTraceKprobeSession:
		return plain.Error(features.HaveBPFLinkKprobeSession())
	case h.ProgramType == ebpf.Kprobe:
		if _, err := os.Stat("/sys/bus/event_source/devices/kprobe"); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: it has no kprobes", ebpf.ErrNotSupported)
		}
		return plain.Error(features.HaveProgramType(ebpf.Kprobe))
	case h.ProgramType == ebpf.LSM:
		if _, active := lsmActive(); !active {
			return fmt.Errorf("%w: bpf is not among its security modules", ebpf.ErrNotSupported)
		}
		return tryTyped(h, "task_getpgid")
	case h.AttachType == ebpf.AttachModifyReturn:
		// Each is of some kernels: those with security modules, and those since 6.2.
		if err := tryTyped(h, "security_task_getpgid"); !errors.Is(err, ebpf.ErrNotSupported) {
			return err
		}
		return tryTyped(h, "bpf_modify_return_test")
	}
	return tryTyped(h, "bpf_fentry_test1")
}

// lsmActive reports whether the kernel runs programs of LSM hooks, which it loads in any
// case, and lists its security modules. Where securityfs is not mounted, they are not known.
func lsmActive() (modules string, active bool) {
	body, err := os.ReadFile("/sys/kernel/security/lsm")
	modules = strings.TrimSpace(string(body))
	return modules, err != nil || slices.Contains(strings.Split(modules, ","), "bpf")
}
