package hook

import (
	"maps"
	"slices"

	"github.com/cilium/ebpf"
)

// obstacle says why something is not attached, and what does the like of it: the rest of a sentence
// that begins with use.
type obstacle struct{ why, instead string }

// obstacles are those of the hooks that are not attached, by their programs' type.
var obstacles = map[ebpf.ProgramType]obstacle{
	ebpf.Extension: {"it replaces a function of another program, whose owner would have to allow that",
		"xdp or tcx hooks: an interface runs several programs of them in order"},
	ebpf.SocketFilter: {"a process attaches it to a socket of its own (SO_ATTACH_BPF), and it ends with that process",
		"tcx/ingress and tcx/egress, where it sees each packet, and the packet goes on whatever it returns"},
	ebpf.SkSKB: ofSocketMaps,
	ebpf.SkMsg: ofSocketMaps,
	ebpf.SkReuseport: {
		"a process attaches it to the sockets that it shares a port with (SO_ATTACH_REUSEPORT_EBPF)", "sk_lookup, which chooses the socket of a new connection",
	},
	ebpf.LWTIn:   {"it is a part of a route, which ip-route(8) adds (encap bpf)", "tcx/ingress"},
	ebpf.LWTOut:  ofRoutesOut,
	ebpf.LWTXmit: ofRoutesOut,
	ebpf.LWTSeg6Local: {"it is a part of a route, which ip-route(8) adds (encap seg6local)",
		"ip-route(8)"},
	ebpf.LircMode2: {"it attaches to an infrared receiver, for which the kernel has no links", "ir-keytable(1), which loads and attaches it"},
	ebpf.Kprobe:    {"the library that attaches programs has no link for it", "two programs, of uprobe.multi and uretprobe.multi"},
	ebpf.Tracing:   {"the library that attaches programs has no link for it", "two programs, of fentry and fexit"},
	ebpf.StructOps: {"it is a table of functions that the kernel calls, such as a congestion control, and not one program",
		"bpftool-struct_ops(8), which registers it"},
}

var (
	ofSocketMaps = obstacle{"it attaches to a map of sockets, which processes fill with their own",
		"cgroup_skb hooks, which see and drop what sockets send and receive, and redirect nothing"}
	ofOneMap = obstacle{"it goes over one map, which the kernel wants named when it attaches the iterator, and no field of a definition names it",
		"iter/bpf_map, which goes over all maps, or read the pinned map"}
	ofRoutesOut = obstacle{"it is a part of a route, which ip-route(8) adds (encap bpf)", "tcx/egress"}
)

// Obstacle says why the hook is not attached, and what to use instead; both are empty where it is.
func (h Hook) Obstacle() (why, instead string) {
	if h.Attachable {
		return "", ""
	}
	o := obstacles[h.ProgramType]
	return o.why, o.instead
}

// iterators are the obstacles of those that go over one thing, by what their section names.
var iterators = map[string]obstacle{
	"bpf_map_elem":       ofOneMap,
	"bpf_sk_storage_map": ofOneMap,
	"sockmap":            ofOneMap,
	"cgroup": {"it goes over cgroups from one of them on, which the kernel wants named when it attaches the iterator, and the library that attaches it cannot",
		"iter/task, which finds the cgroup of each task"},
}

// Iterators lists what iter/TARGET must not name, in order; see TargetObstacle.
func Iterators() []string { return slices.Sorted(maps.Keys(iterators)) }

// TargetObstacle says why a program is not attached to the hook whose section names the target, and
// what to use instead; both are empty where it is.
func (h Hook) TargetObstacle(target string) (why, instead string) {
	if h.Name != "iter" {
		return "", ""
	}
	o := iterators[target]
	return o.why, o.instead
}
