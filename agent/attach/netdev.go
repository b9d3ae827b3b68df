package attach

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

// retries bounds how often an ordered attach is tried again because others
// changed the hook meanwhile.
const retries = 8

// onDevice makes a link on a thread that is in the network namespace of the interface.
func (r Request) onDevice(do func() (link.Link, error)) (pins.Held, error) {
	l, err := makeWithin(func(do func() error) error { return withDevice(r.Attachment.Target.Device(), r.Host.Namespaces, do) }, do)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// withDevice calls do on a thread that is in the network namespace of a device. It fails with
// ErrTarget where there is none.
func withDevice(d plan.Device, in *netns.Table, do func() error) error {
	err := in.Do(d.NetnsID, do)
	if errors.Is(err, netns.ErrGone) {
		return errors.Join(ErrTarget, err)
	}
	return err
}

// ordered attaches to TCX and netkit, in the kernel's own order. The revision makes the look and the
// attach one step: a change of the hook in between makes it fail with
// ESTALE (kernel/bpf/mprog.c), and the look is taken again.
func ordered(h hook.Hook, r Request) (pins.Held, error) {
	return r.onDevice(func() (link.Link, error) { return r.attachInOrder(h) })
}

// attachInOrder attaches in the network namespace of the thread.
func (r Request) attachInOrder(h hook.Hook) (link.Link, error) {
	var err error
	for range retries {
		var seen *link.QueryResult
		if seen, err = query(r.Attachment.Ifindex, h.AttachType); err != nil {
			return nil, notNetkit(h, r.Attachment.Interface, err)
		}
		revision := seen.Revision
		if isNetkit(h) && len(seen.Programs) == 0 {
			// An empty hook of netkit tells 1, and compares with the number of all changes
			// before (bpf_mprog_query of kernel/bpf/mprog.c, netkit_entry_fetch).
			revision = 0
		}
		var l link.Link
		l, err = attachOrdered(h, link.TCXOptions{
			Interface: r.Attachment.Ifindex, Program: r.Program, Attach: h.AttachType,
			Anchor: place(r.Neighbours, seen), ExpectedRevision: revision,
		})
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, unix.ESTALE) && !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	return nil, err
}

// attachOrdered makes the link. The options of TCX and netkit are the same.
func attachOrdered(h hook.Hook, o link.TCXOptions) (link.Link, error) {
	if isNetkit(h) {
		return plain.Of(link.AttachNetkit(link.NetkitOptions(o)))
	}
	return plain.Of(link.AttachTCX(o))
}

func isNetkit(h hook.Hook) bool {
	return h.AttachType == ebpf.AttachNetkitPrimary || h.AttachType == ebpf.AttachNetkitPeer
}

// notNetkit says what netkit_dev_fetch of drivers/net/netkit.c rejects.
func notNetkit(h hook.Hook, name string, err error) error {
	switch {
	case isNetkit(h) && errors.Is(err, unix.ENXIO):
		return fmt.Errorf("interface %s is no netkit device; name the primary device of a netkit pair: %w", name, err)
	case isNetkit(h) && errors.Is(err, unix.EACCES):
		return fmt.Errorf("interface %s is the peer of a netkit pair, whose programs are attached through its primary device; name that one: %w", name, err)
	}
	return err
}

// query reads what is attached, in order.
func query(ifindex int, at ebpf.AttachType) (*link.QueryResult, error) {
	seen, err := plain.Of(link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: at}))
	if errors.Is(err, unix.ENODEV) {
		return nil, errors.Join(ErrTarget, err)
	}
	return seen, err
}

// place chooses the anchor: in front of the first of ours that is to run later,
// else behind the last that is to run earlier, else at the end, or before all with
// that position. Programs of others keep their order whichever it is.
func place(n Neighbours, seen *link.QueryResult) link.Anchor {
	order := n.side(linkIDs(seen))
	for _, id := range order {
		if id != 0 && slices.Contains(n.After, id) {
			return link.BeforeLinkByID(id)
		}
	}
	for _, id := range slices.Backward(order) {
		if id != 0 && slices.Contains(n.Before, id) {
			return link.AfterLinkByID(id)
		}
	}
	if n.Position == v1alpha1.PositionFirst {
		return link.Head()
	}
	return link.Tail()
}

// side returns those of ours that are on the side of the position already: the others are about to move there. Without a position
// it returns all, and so where one is elsewhere that this one must not get ahead of, or fall behind: it may be one that cannot move.
func (n Neighbours) side(order []link.ID) []link.ID {
	isForeign := func(id link.ID) bool {
		return (id == 0 || id != n.Own) && !slices.Contains(n.Before, id) && !slices.Contains(n.After, id)
	}
	switch n.Position {
	case v1alpha1.PositionFirst:
		if i := slices.IndexFunc(order, isForeign); i >= 0 && !haveAny(order[i:], n.Before) {
			return order[:i]
		}
	case v1alpha1.PositionLast:
		for i, id := range slices.Backward(order) {
			if isForeign(id) && haveAny(order[:i], n.After) {
				return order
			}
			if isForeign(id) {
				return order[i+1:]
			}
		}
	}
	return order
}

// haveAny reports whether one of the links that are asked for is in the order.
func haveAny(order, asked []link.ID) bool {
	return slices.ContainsFunc(order, func(id link.ID) bool { return slices.Contains(asked, id) })
}

// CheckPosition fails with a *LackingError where the kernel has no TCX, so that a program has no position among those of others.
func CheckPosition(h hook.Hook, p v1alpha1.Position) error {
	// The device of the index 1 is lo.
	_, err := plain.Of(link.QueryPrograms(link.QueryOptions{Target: 1, Attach: h.AttachType}))
	if err == nil || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return lackingPart(h, fmt.Sprintf("has no TCX, which came with Linux 6.6, and runs filters of clsact by prefs that each tool chooses for itself, "+
		"so that position %s cannot be kept; leave position out", p), err)
}

// queryWithin reads what is attached to an interface, in order.
func queryWithin(hookName string, d plan.Device, in *netns.Table) (seen *link.QueryResult, err error) {
	h, _ := hook.Lookup(hookName)
	err = withDevice(d, in, func() (err error) {
		seen, err = query(d.Index, h.AttachType)
		return err
	})
	return seen, err
}

// Placed is a program on a hook whose order the kernel keeps. Link is 0 where none attaches it.
type Placed struct {
	Program ebpf.ProgramID
	Link    link.ID
}

// Order returns all programs on a hook whose order the kernel keeps, ours and others', in the
// order in which they run.
func Order(hookName string, d plan.Device, in *netns.Table) ([]Placed, error) {
	seen, err := queryWithin(hookName, d, in)
	if err != nil {
		return nil, fmt.Errorf("read order of %s: %w", hookName, err)
	}
	all := make([]Placed, 0, len(seen.Programs))
	for _, p := range seen.Programs {
		id, _ := p.LinkID()
		all = append(all, Placed{p.ID, id})
	}
	return all, nil
}

// IsOrdered reports whether the kernel keeps the order of a hook's programs: whether it is
// one of TCX or netkit.
func IsOrdered(hookName string) bool {
	h, _ := hook.Lookup(hookName)
	return h.AttachType == ebpf.AttachTCXIngress || h.AttachType == ebpf.AttachTCXEgress || isNetkit(h)
}

// OthersOn counts the programs on a hook of TCX or netkit that are not of our links. Filters of
// others take none of the places for ours.
func OthersOn(hookName string, d plan.Device, in *netns.Table, ours map[link.ID]bool) (int, error) {
	h, _ := hook.Lookup(hookName)
	if h.IsFilter() {
		return 0, nil
	}
	seen, err := queryWithin(hookName, d, in)
	if err != nil {
		return 0, fmt.Errorf("count programs on %s: %w", hookName, err)
	}
	others := 0
	for _, p := range seen.Programs {
		if id, ok := p.LinkID(); !ok || !ours[id] {
			others++
		}
	}
	return others, nil
}

// linkIDs are the links in their order, with 0 for a program that has none.
func linkIDs(seen *link.QueryResult) []link.ID {
	ids := make([]link.ID, 0, len(seen.Programs))
	for _, p := range seen.Programs {
		id, _ := p.LinkID()
		ids = append(ids, id)
	}
	return ids
}
