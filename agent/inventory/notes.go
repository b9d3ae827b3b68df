package inventory

import (
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/plan"
)

// note tells of Skep's own links what the kernel does not: the text beside the
// pin has it.
func note(links []Link, managed string, pinned map[object][]string) {
	for i := range links {
		l := &links[i]
		for _, path := range pinned[object{ofLink, l.ID}] {
			if !kernel.Owns(managed, path) {
				continue
			}
			if at, ok := kernel.ReadText(path); ok && adds(at, *l) {
				l.Place = Place{Hook: at.Hook, Target: at.Target.String()}
			}
		}
	}
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
		return false
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
