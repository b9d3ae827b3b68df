package inventory

import (
	"context"

	"github.com/cilium/ebpf/link"
)

// linkTypes are the kernel's names of enum bpf_link_type, by number
// (include/uapi/linux/bpf.h).
func linkTypes() []string {
	return []string{"", "raw_tracepoint", "tracing", "cgroup", "iter", "netns", "xdp", "perf_event", "kprobe_multi",
		"struct_ops", "netfilter", "tcx", "uprobe_multi", "netkit", "sockmap"}
}

// typeName is the name of a link's type; a type newer than the table has none.
func typeName(t link.Type) string {
	if names := linkTypes(); int(t) < len(names) {
		return names[t]
	}
	return ""
}

// listLinks reads every link and where it attaches its program.
func listLinks(ctx context.Context, places *places) ([]Link, error) {
	found := []Link{}
	var it link.Iterator
	defer it.Close()
	for it.Next() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		info, err := it.Link.Info()
		if err != nil {
			// A link of a type the library has no words for, or one that lost its
			// target while it was asked.
			found = append(found, Link{ID: uint32(it.ID)})
			continue
		}
		found = append(found, Link{ID: uint32(info.ID), Type: typeName(info.Type), Program: uint32(info.Program), Place: places.of(info)})
	}
	return found, it.Err()
}
