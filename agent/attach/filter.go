package attach

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/hook"
)

// tcx attaches to TCX and, where the kernel has none, by a filter of clsact.
func tcx(h hook.Hook, r Request) (pins.Held, error) {
	if r.Filters != nil && errors.Is(tryOrdered(h), ebpf.ErrNotSupported) {
		return filter(h, r)
	}
	return ordered(h, r)
}

// filter attaches by a filter of clsact, at a pref that follows from the priority.
func filter(h hook.Hook, r Request) (pins.Held, error) {
	a := r.Attachment
	if r.Filters == nil {
		return nil, fmt.Errorf("hook %s needs the filters of the node", h.Name)
	}
	f, err := r.Filters.Attach(clsact.Request{Hook: h.Name, Device: a.Target.Device(), Priority: a.Priority, Owner: clsact.OwnerOf(r.UID, a.Instance),
		Name: a.Program, Program: r.Program, Before: r.Neighbours.FiltersBefore, After: r.Neighbours.FiltersAfter})
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.ENODEV), errors.Is(err, netns.ErrGone):
		return nil, errors.Join(ErrTarget, err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return nil, lacking(h, err)
	}
	return nil, err
}

// tryTCX reports whether the kernel has TCX or, in its place, clsact.
func tryTCX(h hook.Hook) error {
	err := tryOrdered(h)
	if errors.Is(err, ebpf.ErrNotSupported) && clsact.Probe() == nil {
		return nil
	}
	return err
}
