package inventory

import (
	"context"
	"errors"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/plain"
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

// settling bounds how long a link that is being made is waited for.
const settling = time.Second

// listLinks reads every link and where it attaches its program.
func listLinks(ctx context.Context, places *places) ([]Link, error) {
	found := []Link{}
	for started := time.Now(); ; {
		var last link.ID
		if n := len(found); n > 0 {
			last = link.ID(found[n-1].ID)
		}
		more, err := listAfter(ctx, last, places)
		found = append(found, more...)
		if len(more) > 0 {
			started = time.Now()
		}
		// A link has its id before it can be opened (bpf_link_by_id of
		// kernel/bpf/syscall.c), for as long as attaching takes.
		if !errors.Is(err, unix.EAGAIN) || time.Since(started) > settling {
			return found, err
		}
	}
}

// listAfter reads the links whose ids come after one, up to the first that
// cannot be opened.
func listAfter(ctx context.Context, last link.ID, places *places) ([]Link, error) {
	var found []Link
	it := link.Iterator{ID: last}
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
	return found, plain.Error(it.Err())
}
