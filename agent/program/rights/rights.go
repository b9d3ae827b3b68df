// Package rights says which capability is missing where the kernel rejects a
// program, a map or an attachment without a word of its own.
//
// It reads what this process may do and asks for nothing more.
package rights

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/plain"
)

// Capability is one of capabilities(7), by its number.
type Capability int

// The capabilities that BPF takes, and looking for its targets.
const (
	// BPF makes maps and loads programs.
	BPF Capability = unix.CAP_BPF
	// NetAdmin loads and attaches programs on network devices and cgroups.
	NetAdmin Capability = unix.CAP_NET_ADMIN
	// Perfmon loads programs that trace.
	Perfmon Capability = unix.CAP_PERFMON
	// SysAdmin has the rights of the three, looks objects up by id, and opens
	// the perf event of a uprobe.
	SysAdmin Capability = unix.CAP_SYS_ADMIN
	// SysPtrace looks into processes of other users: at their files and namespaces.
	SysPtrace Capability = unix.CAP_SYS_PTRACE
)

// String is the name, as capabilities(7) has it.
func (c Capability) String() string {
	switch c {
	case BPF:
		return "CAP_BPF"
	case NetAdmin:
		return "CAP_NET_ADMIN"
	case Perfmon:
		return "CAP_PERFMON"
	case SysAdmin:
		return "CAP_SYS_ADMIN"
	case SysPtrace:
		return "CAP_SYS_PTRACE"
	}
	return fmt.Sprintf("capability %d", int(c))
}

// ToLoad are the capabilities that loading programs of the types takes
// (is_net_admin_prog_type and is_perfmon_prog_type of kernel/bpf/syscall.c).
func ToLoad(types ...ebpf.ProgramType) []Capability {
	need := []Capability{BPF}
	for _, t := range types {
		switch t {
		case ebpf.XDP, ebpf.SchedCLS, ebpf.SchedACT, ebpf.LWTIn, ebpf.LWTOut, ebpf.LWTXmit, ebpf.LWTSeg6Local, ebpf.SkSKB, ebpf.SkMsg,
			ebpf.FlowDissector, ebpf.CGroupDevice, ebpf.CGroupSock, ebpf.CGroupSockAddr, ebpf.CGroupSockopt, ebpf.CGroupSysctl, ebpf.SockOps, ebpf.Netfilter:
			need = append(need, NetAdmin)
		case ebpf.Kprobe, ebpf.TracePoint, ebpf.PerfEvent, ebpf.RawTracepoint, ebpf.RawTracepointWritable, ebpf.Tracing, ebpf.LSM, ebpf.StructOps:
			need = append(need, Perfmon)
		case ebpf.Extension:
			need = append(need, NetAdmin, Perfmon)
		}
	}
	slices.Sort(need)
	return slices.Compact(need)
}

// Error is a rejection for want of a right. Its text is the kernel's without what
// the library guesses, and says what is missing.
type Error struct {
	// Missing are the capabilities that this process lacks; none where it has
	// all and is rejected still.
	Missing []Capability
	// Why says what else rejects, where no capability is missing.
	Why string
	err error
}

// Error implements error.
func (e *Error) Error() string {
	return plain.Error(e.err).Error() + ": " + e.Lacks()
}

// Lacks is the text without the kernel's words.
func (e *Error) Lacks() string {
	if len(e.Missing) == 0 {
		return e.Why
	}
	names := make([]string, len(e.Missing))
	for i, c := range e.Missing {
		names[i] = c.String()
	}
	return fmt.Sprintf("this process lacks %s; grant it", strings.Join(names, " and "))
}

// Unwrap returns the library's error.
func (e *Error) Unwrap() error { return e.err }

// Check returns an *Error where this process lacks one of the capabilities.
func Check(need []Capability) error {
	if missing := read().lacks(need); len(missing) > 0 {
		return &Error{Missing: missing, err: unix.EPERM}
	}
	return nil
}

// ExplainLoad says what is missing where loading was rejected for want of a
// right. Any other error it returns as it is.
func ExplainLoad(err error, need []Capability) error {
	if !errors.Is(err, unix.EPERM) || saidByVerifier(err) {
		return err
	}
	return Explain(err, need)
}

// Explain says what is missing, or what else denies, of a rejection that is for want of a
// right.
func Explain(err error, need []Capability) error {
	now := read()
	return &Error{Missing: now.lacks(need), Why: now.otherwise(), err: err}
}

// ExplainAttach does so where attaching was rejected. A cgroup or a device may
// reject a program of a process that has every right, so where none is missing
// the error stays as it is.
func ExplainAttach(err error, need []Capability) error {
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) || saidByVerifier(err) {
		return err
	}
	if missing := read().lacks(need); len(missing) > 0 {
		return &Error{Missing: missing, err: err}
	}
	return err
}

// saidByVerifier tells of a program that was evaluated, and not this process.
func saidByVerifier(err error) bool { return errors.As(err, new(*ebpf.VerifierError)) }

// process is what a process may do.
type process struct {
	// effective capabilities, a bit each; known reports whether they could be read.
	effective uint64
	known     bool
	// nested: it runs in a user namespace of its own.
	nested bool
	// seccomp is its mode as proc_pid_status(5) has it, empty where that cannot be read:
	// 0 is none, 2 a filter.
	seccomp string
	// lockdown is the kernel's mode.
	lockdown string
}

// read asks about the thread that is running, as the kernel does.
func read() process {
	var p process
	var data [2]unix.CapUserData
	if unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]) == nil {
		p.effective, p.known = uint64(data[1].Effective)<<32|uint64(data[0].Effective), true
	}
	// The first namespace maps every id to itself (user_namespaces(7)).
	if ids, err := os.ReadFile("/proc/self/uid_map"); err == nil {
		p.nested = !slices.Equal(strings.Fields(string(ids)), []string{"0", "0", "4294967295"})
	}
	if status, err := os.ReadFile("/proc/thread-self/status"); err == nil {
		p.seccomp = seccompMode(string(status))
	}
	if modes, err := os.ReadFile("/sys/kernel/security/lockdown"); err == nil {
		p.lockdown = chosen(string(modes))
	}
	return p
}

// seccompMode is the mode in a file as of proc_pid_status(5); empty where it has none.
func seccompMode(status string) string {
	for line := range strings.Lines(status) {
		if mode, ok := strings.CutPrefix(line, "Seccomp:"); ok {
			return strings.TrimSpace(mode)
		}
	}
	return ""
}

// Confined reports whether something else than the kernel's own settings may deny this
// process what it has the capabilities for: a user namespace, or a seccomp filter.
func Confined() bool {
	p := read()
	return p.nested || p.seccomp != "0"
}

// chosen is the mode in brackets, or nothing for the one that is off.
func chosen(modes string) string {
	_, rest, _ := strings.Cut(modes, "[")
	mode, _, _ := strings.Cut(rest, "]")
	if mode == "none" {
		return ""
	}
	return mode
}

// lacks are the capabilities that the process has not. CAP_SYS_ADMIN stands for
// those of BPF, and not for CAP_SYS_PTRACE.
func (p process) lacks(need []Capability) []Capability {
	has := func(c Capability) bool {
		return p.effective&(1<<c) != 0 || c != SysPtrace && p.effective&(1<<SysAdmin) != 0
	}
	if !p.known {
		return nil
	}
	missing := slices.DeleteFunc(slices.Clone(need), has)
	slices.Sort(missing)
	return slices.Compact(missing)
}

// otherwise says what rejects a process that has the capabilities.
func (p process) otherwise() string {
	switch {
	case p.nested:
		return "this process has the capabilities within a user namespace, and the kernel asks for them in the first; run it there"
	case p.lockdown != "":
		return fmt.Sprintf("this process has the capabilities; the kernel is locked down (%s), or a security module%s denies bpf(2)", p.lockdown, p.filter())
	}
	return fmt.Sprintf("this process has the capabilities; a security module%s denies bpf(2)", p.filter())
}

// filter says what is known of a seccomp filter.
func (p process) filter() string {
	switch p.seccomp {
	case "0":
		return ""
	case "":
		return " or seccomp filter"
	}
	return fmt.Sprintf(" or the seccomp filter of this process (Seccomp: %s in /proc/%d/status; seccompProfile Unconfined takes it away)", p.seccomp, os.Getpid())
}
