package hook

import (
	"strings"

	"github.com/cilium/ebpf"
)

// obstacle says why something is not attached, and what does the like of it: the rest of a sentence
// that begins with use.
type obstacle struct{ why, instead string }

// obstacles are those of the hooks that are not attached, by their programs' type.
var obstacles = map[ebpf.ProgramType]obstacle{
	ebpf.Extension: {"it replaces a function of another program, whose owner would have to allow that",
		"xdp or tcx hooks: an interface runs several programs of them in order"},
	ebpf.LSM: {"the library that loads programs cannot name the LSM hook to the kernel for a cgroup",
		"lsm with pods, for the tasks of chosen pods or units, or a cgroup hook such as cgroup/sock_create"},
	ebpf.SocketFilter: {"a process attaches it to a socket of its own (SO_ATTACH_BPF), and it ends with that process",
		"cgroup_skb hooks for the sockets of a cgroup, or tcx hooks for an interface"},
	ebpf.SkSKB:       ofSocketMaps,
	ebpf.SkMsg:       ofSocketMaps,
	ebpf.SkReuseport: {"a process attaches it to the sockets that it shares a port with (SO_ATTACH_REUSEPORT_EBPF)", "sk_lookup, which chooses the socket of a new connection"},
	ebpf.LWTIn:       {"it is a part of a route, which ip-route(8) adds (encap bpf)", "tcx/ingress"},
	ebpf.LWTOut:      ofRoutesOut,
	ebpf.LWTXmit:     ofRoutesOut,
	ebpf.LWTSeg6Local: {"it is a part of a route, which ip-route(8) adds (encap seg6local)",
		"ip-route(8)"},
	ebpf.LircMode2: {"it attaches to an infrared receiver, for which the kernel has no links", "ir-keytable(1), which loads and attaches it"},
	ebpf.StructOps: {"it is a table of functions that the kernel calls, such as a congestion control, and not one program",
		"bpftool-struct_ops(8), which registers it"},
}

var (
	ofSocketMaps = obstacle{"it attaches to a map of sockets, which processes fill with their own",
		"cgroup_skb hooks, which see and drop what sockets send and receive, and redirect nothing"}
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

// SectionWithoutHook is a section of libbpf whose programs no hook of the table takes.
type SectionWithoutHook struct {
	// Name is the section's, or what it begins with up to a slash.
	Name string
	// Why says why there is no hook, and Instead what to use, as those of Obstacle.
	Why, Instead string
}

// SectionsWithoutHook are all of them.
func SectionsWithoutHook() []SectionWithoutHook {
	const unlinked = "the library that attaches programs has no links for it"
	return []SectionWithoutHook{
		{"fsession", unlinked, "two programs, of fentry and fexit"},
		{"uprobe.session", unlinked, "two programs, of uprobe.multi and uretprobe.multi"},
		{"syscall", "it attaches to nothing, and runs when a process asks for it", "a process of your own that loads and runs it"},
		{"action", "it is an action of a filter of tc(8)", `SEC("tc") with a tcx or tc hook`},
	}
}

// WithoutHook finds a section among SectionsWithoutHook.
func WithoutHook(section string) (SectionWithoutHook, bool) {
	for _, s := range SectionsWithoutHook() {
		if _, is := cutSection(strings.TrimPrefix(section, "?"), s.Name); is {
			return s, true
		}
	}
	return SectionWithoutHook{}, false
}
