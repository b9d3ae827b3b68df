// Package attach makes the links between loaded programs and the kernel's
// hooks: one family of hooks a file, one small function a row of hook.Table.
//
// It owns nothing it makes: the link goes to the caller, unpinned. It loads no
// program, decides neither what attaches where nor in which order, and keeps no
// state.
//
// Size: it grows by one small function for each row of the table. What is read to find
// targets in files is in packages of its own where it has a format (usdt, functions).
package attach

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/pods/process"
	"github.com/skep-dev/skep/agent/program/functions"
	"github.com/skep-dev/skep/agent/program/holders"
	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

// ErrTarget: the target does not exist on this node now. It may come later.
var ErrTarget = errors.New("target does not exist")

// Request is one link to be made.
type Request struct {
	// Attachment says where; its target is resolved.
	Attachment plan.Attachment
	// Program is what to attach, loaded for the hook.
	Program *ebpf.Program
	// Host is where the node's own names are found.
	Host Host
	// Found is what Find found; nil has To look for it. The caller closes it.
	Found *Found
	// Specs is the map in which the program looks up the arguments of a USDT probe, by
	// SpecID; nil where the program reads none.
	Specs  *ebpf.Map
	SpecID uint32
	// HeldBy names the program of ours that has the place of the attachment, which takes
	// one; empty where none of ours has it.
	HeldBy string
	// UID is the application's. Filters are those of the node; nil where none can be made.
	UID     string
	Filters *clsact.Table
	// Fallback is told why an XDP program that leaves its mode open does not run in the
	// driver; nil where it is not asked for.
	Fallback func(*DriverError)
	// Neighbours are our own links on the same ordered hook, in the order in
	// which they are to run, with the new link's place among them.
	Neighbours Neighbours
}

// Host says where this process finds what definitions name on the node.
type Host struct {
	// CgroupRoot is the mount point of cgroup2; without one there are no cgroups.
	CgroupRoot string
	// Root is the folder that has the node's files: of a container, what is
	// mounted there of them. Empty where the process sees the node's own.
	Root string
	// Functions finds functions of the kernel; nil where none is asked for.
	Functions *functions.Kernel
	// Occupants finds who has a place that takes one program; nil where every error looks anew.
	Occupants *holders.Finder
	// Netfilter is what is known of the kernel's; nil where it is not asked for.
	Netfilter *Netfilter
	// Containers are those of the node, in which targets are that have a Container; nil where
	// they are not known. What looks beside the agent's loop reads it, too.
	Containers *containers.Snapshot
	// Mounts keeps what the container runtime has mounted; nil where that is read each time.
	Mounts *process.Mounts
	// Namespaces are the network namespaces that have devices beside the agent's own; nil
	// where there are none.
	Namespaces *netns.Table
}

// Neighbours are links on one ordered hook.
type Neighbours struct {
	// Before run ahead of the new link, After behind it, and Own is the one that it replaces.
	Before, After []link.ID
	Own           link.ID
	// Position is on which side of programs of others all of them are to run.
	Position v1alpha1.Position
	// FiltersBefore and FiltersAfter are those that are filters.
	FiltersBefore, FiltersAfter []*clsact.Filter
}

// attacher makes a link of one hook, or what there is instead.
type attacher func(hook.Hook, Request) (pins.Held, error)

// attachers has a row for every hook the agent attaches today.
var attachers = map[string]attacher{
	"xdp":         xdp,
	"tcx/ingress": tcx,
	"tcx/egress":  tcx,
	"tc/ingress":  filter,
	"tc/egress":   filter,

	"netkit/primary": ordered,
	"netkit/peer":    ordered,

	"tracepoint": tracepoint,
	"raw_tp":     rawTracepoint,
	"raw_tp.w":   rawTracepoint,
	"tp_btf":     tracing,

	"kprobe":          kprobe,
	"kretprobe":       kretprobe,
	"ksyscall":        kprobe,
	"kretsyscall":     kretprobe,
	"kprobe.multi":    kprobeMulti,
	"kretprobe.multi": kprobeMulti,
	"kprobe.session":  kprobeMulti,
	"fentry":          tracing,
	"fexit":           tracing,
	"fmod_ret":        tracing,
	"lsm":             lsm,
	"lsm_cgroup":      lsmOfCgroup,

	"uprobe":          uprobe,
	"uretprobe":       uretprobe,
	"uprobe.multi":    uprobeMulti,
	"uretprobe.multi": uretprobeMulti,
	"usdt":            usdtProbe,

	"perf_event": perfEvent,

	"sk_lookup":      ofNamespace,
	"flow_dissector": ofNamespace,
	"netfilter":      netfilter,
	"iter":           iter,

	"cgroup_skb/ingress":      cgroup,
	"cgroup_skb/egress":       cgroup,
	"cgroup/sock_create":      cgroup,
	"cgroup/sock_release":     cgroup,
	"cgroup/post_bind4":       cgroup,
	"cgroup/post_bind6":       cgroup,
	"cgroup/bind4":            cgroup,
	"cgroup/bind6":            cgroup,
	"cgroup/connect4":         cgroup,
	"cgroup/connect6":         cgroup,
	"cgroup/sendmsg4":         cgroup,
	"cgroup/sendmsg6":         cgroup,
	"cgroup/recvmsg4":         cgroup,
	"cgroup/recvmsg6":         cgroup,
	"cgroup/getpeername4":     cgroup,
	"cgroup/getpeername6":     cgroup,
	"cgroup/getsockname4":     cgroup,
	"cgroup/getsockname6":     cgroup,
	"cgroup/connect_unix":     cgroup,
	"cgroup/sendmsg_unix":     cgroup,
	"cgroup/recvmsg_unix":     cgroup,
	"cgroup/getpeername_unix": cgroup,
	"cgroup/getsockname_unix": cgroup,
	"cgroup/sysctl":           cgroup,
	"cgroup/getsockopt":       cgroup,
	"cgroup/setsockopt":       cgroup,
	"cgroup/dev":              cgroup,
	"sockops":                 cgroup,
}

// Hooks returns the names of the hooks that To attaches, sorted.
func Hooks() []string {
	names := make([]string, 0, len(attachers))
	for n := range attachers {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Near makes a link like To, at the nearest place to that of the attachment that is free.
// Only netfilter has such places.
func Near(r Request) (pins.Held, error) {
	h, _ := hook.Lookup(r.Attachment.Hook)
	l, err := attacher(nearby).found(h, r)
	if err != nil {
		return nil, describe(h, r.Attachment, err)
	}
	return l, nil
}

// To makes the link. The caller pins it: an unpinned link goes with the
// process, and an unpinned filter with the next start of an agent. It fails with ErrTarget where the target is not there, and with
// *LackingError where the kernel does not have the hook.
func To(r Request) (pins.Held, error) {
	h, known := hook.Lookup(r.Attachment.Hook)
	attach, ok := attachers[r.Attachment.Hook]
	if !known || !ok {
		return nil, fmt.Errorf("attach %s to %s: this agent attaches no such hook; it attaches %v", r.Attachment.Program, r.Attachment.Hook, Hooks())
	}
	l, err := attach.found(h, r)
	if err != nil {
		return nil, describe(h, r.Attachment, err)
	}
	return l, nil
}

// TakesLong reports whether the kernel may take long to make a link of a hook. For a probe in a
// file it takes the memory lock of each process that has the file mapped (register_for_each_vma
// of kernel/events/uprobes.c), which the process may hold for long. Probes of functions and
// tracepoints wait for those, and for the ends of others (event_mutex of kernel/trace).
func TakesLong(name string) bool {
	h, _ := hook.Lookup(name)
	return h.ProgramType == ebpf.Kprobe || h.ProgramType == ebpf.TracePoint
}

// describe says what could not be attached, and which hook or capability is missing.
func describe(h hook.Hook, a plan.Attachment, err error) error {
	return fmt.Errorf("attach %s to %s %s: %w", a.Program, h.Name, a.Target,
		plain.Error(rights.ExplainAttach(Explain(h, explainFull(h, err)), append(rights.ToLoad(h.ProgramType), toAttach(h)...))))
}

// explainFull says that a target runs as many programs as the kernel runs there. The kernel answers ERANGE where it keeps their
// order, and E2BIG elsewhere, which the library turns into text for tracepoints.
func explainFull(h hook.Hook, err error) error {
	most := h.MostPrograms()
	full := errors.Is(err, unix.E2BIG)
	switch {
	case h.Sharing == hook.Ordered:
		full = errors.Is(err, unix.ERANGE) && !h.IsFilter()
	case h.ProgramType == ebpf.TracePoint:
		full = strings.HasSuffix(err.Error(), unix.E2BIG.Error())
	}
	if most == 0 || !full {
		return err
	}
	fix := "detach one that `skep inventory` lists"
	if others := h.Unbounded(); others != "" {
		fix += ", or use " + others + ", which have no such bound"
	}
	return fmt.Errorf("the kernel runs %d programs of %s at one target, and all places are taken; %s: %w", most, h.CountedWith(), fix, err)
}

// found attaches to the target that was found, or looks for it first.
func (attach attacher) found(h hook.Hook, r Request) (pins.Held, error) {
	if r.Found != nil {
		return attach(h, r)
	}
	var err error
	if r.Found, err = r.Host.find(h, r.Attachment); err != nil {
		return nil, err
	}
	defer r.Found.Close()
	return attach(h, r)
}
