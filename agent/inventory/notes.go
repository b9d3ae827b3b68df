package inventory

import (
	"github.com/skep-dev/skep/agent/program/holders"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
)

// note tells of Skep's own links what the kernel does not: the text beside the
// pin has it.
func note(links []Link, managed string, pinned map[holders.Object][]string) {
	for i := range links {
		l := &links[i]
		for _, path := range pinned[holders.Link(l.ID)] {
			if !pins.Owns(managed, path) {
				continue
			}
			if at, ok := pins.ReadText(path); ok && adds(at, *l) {
				l.Place = Place{Hook: at.Hook, Target: at.Place()}
			}
			if on, ok := pins.ReadChainText(path); ok && l.Type == "xdp" && isElsewhere(on, l.Place) {
				l.Place = Place{Hook: plan.XDP, Target: on.String()}
			}
		}
	}
}

// noteFilters tells of Skep's own filters in other network namespaces, where nothing else looks:
// their programs are pinned in the place of links.
func noteFilters(managed string, pinned map[holders.Object][]string, unlinked map[uint32][]Place) {
	for o, paths := range pinned {
		for _, path := range paths {
			if o.Kind != holders.OfProgram || !pins.Owns(managed, path) {
				continue
			}
			if at, ok := pins.ReadText(path); ok && at.Ifindex != 0 && at.NetnsID != 0 {
				unlinked[o.ID] = append(unlinked[o.ID], Place{Hook: at.Hook, Target: at.Place()})
			}
		}
	}
}

// isElsewhere reports whether a text names a device in another network namespace than the agent's,
// of which the kernel tells a number, and the link is on a device still.
func isElsewhere(on plan.Target, told Place) bool {
	return on.Ifindex != 0 && on.NetnsID != 0 && told.Target != goneTarget
}

// adds reports whether the text says more than the kernel and does not contradict
// it. The kernel knows a uprobe's binary by the name it was given when it was
// opened (the agent opens it first, and gives that descriptor), does not tell a
// probe from one of a return or of a system call, nor which functions one link is on, and leaves out a tracepoint's category and how often
// and where an event is sampled; before 6.6 it says nothing of any.
func adds(at plan.Attachment, l Link) bool {
	switch at.Hook {
	case "uprobe.multi", "uretprobe.multi":
		return l.Type == "uprobe_multi"
	case "kprobe.multi", "kretprobe.multi", "kprobe.session":
		return l.Type == "kprobe_multi"
	}
	if l.Type != "perf_event" {
		return (l.Type == "tcx" || l.Type == "netkit") && at.Hook == l.Place.Hook && isElsewhere(at.Target, l.Place)
	}
	switch at.Hook {
	case "kprobe", "kretprobe", "ksyscall", "kretsyscall":
		return l.Place.Hook == "kprobe" || l.Place.Hook == ""
	case "uprobe", "uretprobe", "usdt":
		return l.Place.Hook == "uprobe" || l.Place.Hook == ""
	case "perf_event":
		return l.Place.Hook == "perf_event" || l.Place.Hook == ""
	case "tracepoint":
		return l.Place.Hook == "tracepoint" || l.Place.Hook == ""
	}
	return false
}
