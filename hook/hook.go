// Package hook owns the one table of places in the kernel that a program can
// attach to. Admission, facts, Rego (data.hooks), the agent, CUE and the docs
// all read it; nothing else in the project enumerates hooks.
//
// Adding a hook is a row here, one small function in agent/attach, one test
// program. The package attaches nothing and looks at no kernel.
package hook

import (
	"sort"
	"strings"

	"github.com/cilium/ebpf"
)

// Shape is the kind of target a hook has, and so which fields an attachment to
// it carries.
type Shape string

// The shapes. Hooks are many; shapes are few.
const (
	// NetworkDevice takes interfaces, and priority where the hook is ordered.
	NetworkDevice Shape = "NetworkDevice"
	// KernelFunction takes functions.
	KernelFunction Shape = "KernelFunction"
	// Tracepoint takes tracepoint.
	Tracepoint Shape = "Tracepoint"
	// Cgroup takes cgroup.
	Cgroup Shape = "Cgroup"
	// UserBinary takes binary.
	UserBinary Shape = "UserBinary"
	// NetworkNamespace takes networkNamespace, and netfilter where the hook is its.
	NetworkNamespace Shape = "NetworkNamespace"
	// PerfEvent takes perfEvent.
	PerfEvent Shape = "PerfEvent"
	// None takes nothing: the object says all there is to say.
	None Shape = "None"
)

// Sharing says how several programs live on one target of a hook.
type Sharing string

const (
	// Ordered programs run one after another by priority.
	Ordered Sharing = "Ordered"
	// Parallel programs all run, in an order nobody may rely on.
	Parallel Sharing = "Parallel"
	// Exclusive targets hold one program.
	Exclusive Sharing = "Exclusive"
)

// Replace says how a running program gives way to its next version.
type Replace string

const (
	// ByLinkUpdate swaps the program under its link: no event is missed and
	// none is seen twice.
	ByLinkUpdate Replace = "LinkUpdate"
	// ByOverlap attaches the new program and then detaches the old: no event
	// is missed, and for a moment both see it.
	ByOverlap Replace = "Overlap"
)

// Risk is how much harm a program on the hook can do, for policies to weigh.
type Risk string

const (
	// Observe hooks see and change nothing.
	Observe Risk = "Observe"
	// Traffic hooks drop, redirect or rewrite packets and socket calls.
	Traffic Risk = "Traffic"
	// Control hooks decide what the kernel or a process does.
	Control Risk = "Control"
)

// Hook is one row of the table.
type Hook struct {
	// Name is what a definition calls the hook, in libbpf's section vocabulary.
	Name string `json:"name"`
	// Sections are the ELF section names, or prefixes of them up to a slash,
	// that imply the hook. The hooks that no section implies have none.
	Sections []string `json:"sections"`
	// ProgramType is what the kernel loads the program as.
	ProgramType ebpf.ProgramType `json:"-"`
	// AttachType is the expected attach type; ebpf.AttachNone where the
	// kernel asks for none.
	AttachType ebpf.AttachType `json:"-"`
	// Shape is the kind of target.
	Shape Shape `json:"shape"`
	// MinKernel is the first kernel with the hook, as major.minor.
	MinKernel string `json:"minKernel"`
	// Namespaceable hooks can be held by a namespaced application, in its own pods: they take
	// the field pods, as those of a cluster-scoped application do.
	Namespaceable bool `json:"namespaceable"`
	// Sharing says how several programs live on one target.
	Sharing Sharing `json:"sharing"`
	// Replace says how a program gives way to its next version.
	Replace Replace `json:"replace"`
	// Risk is for policies to weigh.
	Risk Risk `json:"risk"`
	// Attachable hooks are those the agent attaches today; asking for another
	// is rejected.
	Attachable bool `json:"attachable"`
}

// The fields of a binary that say where in it a hook attaches.
const (
	// InSymbol is a symbol, an offset, or both.
	InSymbol = "symbol"
	// InSymbols chooses many functions.
	InSymbols = "symbols"
	// InUSDT is a probe that the binary declares.
	InUSDT = "usdt"
)

// TakesContainers reports whether single containers of pods can be chosen: those of a pod share
// its network.
func (h Hook) TakesContainers() bool { return h.Namespaceable && (h.Guardable() || h.Shape == Cgroup) }

// ReachesNode reports whether a namespaced application may name the node's own targets of the
// hook where a policy grants them to its namespace.
func (h Hook) ReachesNode() bool { return h.Namespaceable && h.Shape == NetworkDevice }

// InBinary is the field that says where in a binary the hook attaches; empty where
// its target is no binary.
func (h Hook) InBinary() string {
	switch {
	case h.Shape != UserBinary:
		return ""
	case h.AttachType == ebpf.AttachTraceUprobeMulti:
		return InSymbols
	case h.Name == "usdt":
		return InUSDT
	}
	return InSymbol
}

// TakesPriority reports whether attachments have a priority, by which Skep orders the
// programs of a target. Netfilter orders its programs itself, by priorities of its own.
func (h Hook) TakesPriority() bool { return h.Sharing == Ordered && h.Shape == NetworkDevice }

// TakesOne reports whether a place of the hook takes one program. A place of netfilter has
// a priority, which the kernel gives to one program of BPF.
func (h Hook) TakesOne() bool {
	return h.Shape == NetworkNamespace && (h.Sharing == Exclusive || h.ProgramType == ebpf.Netfilter)
}

// MostPrograms is how many programs the kernel runs at one target of the hook; 0 where it has no such bound, or where Skep runs them
// all in one. Programs of all hooks of CountedWith count. It is BPF_TRACE_MAX_PROGS, BPF_CGROUP_MAX_PROGS, netns_bpf_max_progs
// or BPF_MAX_TRAMP_LINKS of Linux, or BPF_MPROG_MAX, of which one is left free; Skep makes no more filters of clsact either.
func (h Hook) MostPrograms() int {
	switch {
	case h.Sharing == Ordered && h.ProgramType == ebpf.SchedCLS:
		return 63
	case h.ProgramType == ebpf.TracePoint, h.Shape == Cgroup, h.Name == "sk_lookup":
		return 64
	case h.IsTrampoline():
		return 38
	}
	return 0
}

// IsTrampoline reports whether programs run in the trampoline of a kernel function.
func (h Hook) IsTrampoline() bool {
	return h.Shape == KernelFunction && (h.ProgramType == ebpf.Tracing || h.ProgramType == ebpf.LSM)
}

// CountedWith names the hooks whose programs count together for MostPrograms.
func (h Hook) CountedWith() string {
	if h.IsTrampoline() {
		return "fentry, fexit, fmod_ret and lsm"
	}
	return h.Name
}

// Unbounded names the hooks that reach the targets of this one, may do as much and have no MostPrograms; empty where there are none.
func (h Hook) Unbounded() string {
	switch {
	case h.ProgramType == ebpf.TracePoint:
		return "raw_tp or tp_btf"
	case h.AttachType == ebpf.AttachTraceFEntry, h.AttachType == ebpf.AttachTraceFExit:
		return "kprobe or kretprobe"
	}
	return ""
}

// IsFilter reports whether programs are always attached as filters of the clsact qdisc, whose
// places among those of others follow from their priorities.
func (h Hook) IsFilter() bool { return h.Name == "tc/ingress" || h.Name == "tc/egress" }

// TakesFunctions reports whether an attachment to the hook names functions of the
// kernel. lsm_cgroup does so beside its cgroup.
func (h Hook) TakesFunctions() bool {
	return h.Shape == KernelFunction || h.AttachType == ebpf.AttachLSMCgroup
}

// FindsFunctions reports whether the hook's functions are found on the node when a
// program is attached, so that globs, a module and an offset can say which.
func (h Hook) FindsFunctions() bool {
	return h.Shape == KernelFunction && h.ProgramType == ebpf.Kprobe && !h.TakesSyscalls()
}

// TakesModule reports whether the module of the functions can be named.
func (h Hook) TakesModule() bool {
	return h.FindsFunctions() || h.Shape == KernelFunction && h.ProgramType == ebpf.Tracing
}

// TakesSyscalls reports whether the functions are named as system calls.
func (h Hook) TakesSyscalls() bool { return h.Name == "ksyscall" || h.Name == "kretsyscall" }

// AtOnce returns the hook by which one link attaches a program for this one to many
// functions; false where there is none.
func (h Hook) AtOnce() (Hook, bool) {
	if h.Name != "kprobe" && h.Name != "kretprobe" {
		return Hook{}, false
	}
	return Lookup(h.Name + ".multi")
}

// AttachesAtOnce reports whether one link attaches to all functions of an attachment.
func (h Hook) AttachesAtOnce() bool {
	return h.AttachType == ebpf.AttachTraceKprobeMulti || h.AttachType == ebpf.AttachTraceKprobeSession
}

// RunsOnce reports whether programs of the hook are attached to nothing: they run once, when
// their version is loaded and before it is attached.
func (h Hook) RunsOnce() bool { return h.ProgramType == ebpf.Syscall }

// LoadsForTarget reports whether the kernel is told the function or tracepoint when it
// loads a program, and not when the program is attached.
func (h Hook) LoadsForTarget() bool {
	return h.ProgramType == ebpf.LSM || h.ProgramType == ebpf.Tracing && h.Shape != None
}

// Guardable reports whether a scope guard can be put before programs of the hook, so that
// they run for the tasks of chosen pods alone: where the kernel runs them in a task, of
// which SubjectOf says whether it is the one that caused what they see. An iterator runs in
// the task that reads it, and a program of freplace wherever the replaced function did.
func (h Hook) Guardable() bool {
	switch h.ProgramType {
	case ebpf.Kprobe, ebpf.TracePoint, ebpf.RawTracepoint, ebpf.RawTracepointWritable:
		return true
	case ebpf.Tracing:
		return h.Shape != None
	case ebpf.LSM:
		return h.AttachType == ebpf.AttachLSMMac
	}
	return false
}

// IsGuarded reports whether a scope guard is put before programs of an application in pods: of any
// application where the kernel runs them for tasks of the whole node, and of one of a namespace also
// where it runs them for the task that uses a socket of a pod, which may have accepted the socket, or
// been handed it. Those of the cluster decide about such a socket whose hands it is in.
func (h Hook) IsGuarded(namespaced bool) bool {
	return h.Guardable() || namespaced && h.IsOfSockets()
}

// IsOfSockets reports whether the kernel runs programs of the hook for the task that uses a socket,
// which is not always of the cgroup that has the program: a socket stays in the cgroup of the task that
// made it (net/core/sock.c, sk_alloc), and one that accept(2) returns for AF_UNIX was made by the task
// that connected (net/unix/af_unix.c, unix_stream_connect). A socket that ends may do so in any task,
// where a program decides nothing any more.
func (h Hook) IsOfSockets() bool {
	switch h.ProgramType {
	case ebpf.CGroupSock, ebpf.CGroupSockAddr, ebpf.CGroupSockopt:
		return h.AttachType != ebpf.AttachCgroupInetSockRelease
	}
	return false
}

// Lookup finds a row by name.
func Lookup(name string) (Hook, bool) {
	for _, h := range table {
		if h.Name == name {
			return h, true
		}
	}
	return Hook{}, false
}

// All returns every row in the table's order.
func All() []Hook { return append([]Hook(nil), table...) }

// Names returns every name, sorted.
func Names() []string {
	names := make([]string, 0, len(table))
	for _, h := range table {
		names = append(names, h.Name)
	}
	sort.Strings(names)
	return names
}

// FromSection finds the hook an ELF section implies and the target named in
// the section, such as "syscalls/sys_enter_execve" in
// "tracepoint/syscalls/sys_enter_execve". The longest matching section wins,
// as in libbpf. A leading "?" (libbpf: do not load by default) and a ".s"
// (sleepable) or ".frags" suffix of the hook do not change it. Sections of
// programs for map entries imply none, see ForMapEntries.
func FromSection(section string) (h Hook, target string, ok bool) {
	if _, entries := ForMapEntries(section); entries {
		return Hook{}, "", false
	}
	section = strings.TrimPrefix(section, "?")
	best := -1
	for _, row := range table {
		for _, s := range row.Sections {
			rest, match := cutSection(section, s)
			if match && len(s) > best {
				best, h, target, ok = len(s), row, rest, true
			}
		}
	}
	return h, target, ok
}

// ForMapEntries reports whether an ELF section holds XDP programs for entries of
// a device map or a CPU map, and of which. The kernel runs such a program for
// packets that are redirected through its entry; it is no program for an
// interface. The spellings are libbpf's of today and of before its 1.0.
func ForMapEntries(section string) (kind string, ok bool) {
	section = strings.TrimPrefix(section, "?")
	for _, kind := range []string{"devmap", "cpumap"} {
		for _, before := range []string{"xdp/", "xdp.frags/", "xdp_"} {
			if strings.HasPrefix(section, before+kind) {
				return kind, true
			}
		}
	}
	return "", false
}

// cutSection matches section against a name, its sleepable and frags variants,
// and returns what follows the slash.
func cutSection(section, name string) (rest string, ok bool) {
	head, tail, found := strings.Cut(section, name)
	if !found || head != "" {
		return "", false
	}
	for _, variant := range []string{"", ".s", ".frags"} {
		t, is := strings.CutPrefix(tail, variant)
		if !is {
			continue
		}
		if t == "" {
			return "", true
		}
		if r, slash := strings.CutPrefix(t, "/"); slash {
			return r, true
		}
	}
	return "", false
}

// Verdict is what an XDP program returns.
type Verdict struct {
	// Name is what proceedOn calls it.
	Name string
	// Code is the value the kernel reads.
	Code uint32
}

// XDPVerdicts are the values of enum xdp_action, in its order.
func XDPVerdicts() []Verdict {
	return []Verdict{{"Aborted", 0}, {"Drop", 1}, {"Pass", 2}, {"Tx", 3}, {"Redirect", 4}}
}
