package inventory

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

// places turns what the kernel tells about a link into words. What it needs to
// look up on the host it looks up once.
type places struct {
	devices devices
	cgroups cgroups
	netns   namespaces
	types   kernelTypes
}

func newPlaces(opts Options) *places {
	return &places{
		devices: readDevices(),
		cgroups: cgroups{mount: cmp.Or(opts.Cgroups, findCgroups(opts.Proc))},
		netns:   namespaces{proc: opts.Proc},
	}
}

// of is the place of a link.
func (p *places) of(info *link.Info) Place {
	switch {
	case info.XDP() != nil:
		return p.devices.place("xdp", ebpf.AttachXDP, info.XDP().Ifindex, info.Program)
	case info.TCX() != nil:
		t := info.TCX()
		return p.devices.place(hookOf(ebpf.AttachType(t.AttachType)), ebpf.AttachType(t.AttachType), t.Ifindex, info.Program)
	case info.Netkit() != nil:
		n := info.Netkit()
		return p.devices.place(hookOf(ebpf.AttachType(n.AttachType)), ebpf.AttachType(n.AttachType), n.Ifindex, info.Program)
	case info.Cgroup() != nil:
		c := info.Cgroup()
		return Place{Hook: hookOf(ebpf.AttachType(c.AttachType)), Target: p.cgroups.path(c.CgroupId)}
	case info.NetNs() != nil:
		n := info.NetNs()
		return Place{Hook: hookOf(ebpf.AttachType(n.AttachType)), Target: p.netns.name(uint64(n.NetnsInode))}
	case info.RawTracepoint() != nil:
		return Place{Hook: "raw_tp", Target: info.RawTracepoint().Name}
	case info.Tracing() != nil:
		t := info.Tracing()
		return Place{Hook: hookOf(ebpf.AttachType(t.AttachType)), Target: p.types.name(ebpf.AttachType(t.AttachType), t.TargetObjectId, t.TargetBtfId)}
	case info.PerfEvent() != nil:
		return perfPlace(info.PerfEvent())
	}
	return otherPlace(info)
}

// perfPlace is the place of a perf_event link. Its kinds without details are
// those of kernels before 6.6, which tell nothing.
func perfPlace(e *link.PerfEventInfo) Place {
	switch {
	case e.Kprobe() != nil:
		return Place{Hook: "kprobe", Target: offset(e.Kprobe().Function, uint64(e.Kprobe().Offset))}
	case e.Uprobe() != nil:
		return Place{Hook: "uprobe", Target: offset(e.Uprobe().File, uint64(e.Uprobe().Offset))}
	case e.Tracepoint() != nil:
		return Place{Hook: "tracepoint", Target: e.Tracepoint().Tracepoint}
	case e.Event() != nil:
		return Place{Hook: "perf_event", Target: eventName(e.Event())}
	}
	return Place{}
}

// eventName is perf(1)'s name of an event, or the kernel's numbers where that is no
// single word.
func eventName(e *link.EventInfo) string {
	for _, known := range hook.Events() {
		if known.Type == e.Type && known.Config == e.Config {
			return known.Name
		}
	}
	return fmt.Sprintf("type %d config %d", e.Type, e.Config)
}

func otherPlace(info *link.Info) Place {
	switch {
	case info.Netfilter() != nil:
		n := info.Netfilter()
		return Place{Hook: "netfilter", Target: fmt.Sprintf("%s %s priority %d", familyName(uint32(n.ProtocolFamily)), netfilterHook(uint32(n.Hook)), n.Priority)}
	case info.KprobeMulti() != nil:
		return Place{Hook: "kprobe.multi", Target: fmt.Sprintf("%d functions", info.KprobeMulti().Count)}
	case info.UprobeMulti() != nil:
		return Place{Hook: "uprobe.multi", Target: fmt.Sprintf("%s, %d places", info.UprobeMulti().File, info.UprobeMulti().Count)}
	}
	if name := typeName(info.Type); name == "iter" || name == "struct_ops" {
		return Place{Hook: name}
	}
	return Place{}
}

// familyName is the name of a family of netfilter, or the kernel's number.
func familyName(number uint32) string {
	for name, is := range hook.NetfilterFamilies() {
		if is == number {
			return name
		}
	}
	return fmt.Sprintf("family %d", number)
}

// netfilterHook is the name of a place of netfilter, or the kernel's number.
func netfilterHook(number uint32) string {
	if names := hook.NetfilterHooks(); number < uint32(len(names)) {
		return names[number]
	}
	return fmt.Sprintf("hook %d", number)
}

func offset(name string, bytes uint64) string {
	if bytes == 0 {
		return name
	}
	return fmt.Sprintf("%s+%#x", name, bytes)
}

// hookOf finds the row of the hook table with an attach type that no other row
// has. Zero is both no attach type and that of cgroup_skb/ingress, the only hook
// of number zero whose links tell it.
func hookOf(attach ebpf.AttachType) string {
	var name string
	for _, h := range hook.All() {
		if h.AttachType == attach && (attach != ebpf.AttachNone || h.ProgramType == ebpf.CGroupSKB) {
			if name != "" {
				return strings.ToLower(attach.String())
			}
			name = h.Name
		}
	}
	return cmp.Or(name, strings.ToLower(attach.String()))
}

// kernelTypes names the targets of tracing programs, which the kernel tells as
// numbers in its own type information.
type kernelTypes struct {
	spec *btf.Spec
	err  error
	read bool
}

// name is the function or tracepoint behind a number. The number's object is a
// program where one program replaces or traces another.
func (k *kernelTypes) name(attach ebpf.AttachType, objectID uint32, id btf.TypeID) string {
	if attach == ebpf.AttachTraceIter || id == 0 {
		return ""
	}
	if !isKernel(btf.ID(objectID)) {
		return fmt.Sprintf("type %d of object %d", id, objectID)
	}
	if !k.read {
		k.spec, k.err = plain.Of(btf.LoadKernelSpec())
		k.read = true
	}
	if k.err != nil {
		return fmt.Sprintf("type %d", id)
	}
	t, err := k.spec.TypeByID(id)
	if err != nil {
		return fmt.Sprintf("type %d", id)
	}
	return strings.TrimPrefix(t.TypeName(), "btf_trace_")
}

// isKernel reports whether the number is that of the kernel's own types, not a
// module's or a program's.
func isKernel(id btf.ID) bool {
	handle, err := btf.NewHandleFromID(id)
	if err != nil {
		return false
	}
	defer handle.Close()
	info, err := handle.Info()
	return err == nil && info.IsVmlinux()
}
