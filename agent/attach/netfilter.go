package attach

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

// defragments is BPF_F_NETFILTER_IP_DEFRAG of include/uapi/linux/bpf.h. The library's
// constant of that name is 0.
const defragments link.NetfilterAttachFlags = 1

// maxDistance bounds the priorities that are tried for the time of an update.
const maxDistance = 16

// netfilter attaches at a priority, which the kernel gives to one BPF program.
func netfilter(h hook.Hook, r Request) (pins.Held, error) {
	return r.inNamespace(func() (link.Link, error) { return r.atPriority(h, r.Attachment.Netfilter.Priority) })
}

// nearby attaches at the first free priority behind that of the attachment, else before it.
func nearby(h hook.Hook, r Request) (pins.Held, error) {
	return r.inNamespace(func() (link.Link, error) { return r.nearPriority(h) })
}

// inNamespace makes a link on a thread that is in the network namespace of the attachment.
func (r Request) inNamespace(do func() (link.Link, error)) (link.Link, error) {
	return makeWithin(func(do func() error) error { return r.Found.within(r.Attachment.NetworkNamespace, do) }, do)
}

// makeWithin makes a link where within calls it.
func makeWithin(within func(func() error) error, do func() (link.Link, error)) (l link.Link, err error) {
	err = within(func() (err error) {
		l, err = do()
		return err
	})
	if err != nil && l != nil {
		// The thread could not come back.
		return nil, errors.Join(err, l.Close())
	}
	return l, err
}

func (r Request) nearPriority(h hook.Hook) (l link.Link, err error) {
	for _, direction := range []int64{1, -1} {
		for distance := range int64(maxDistance) {
			at := int64(r.Attachment.Netfilter.Priority) + direction*(distance+1)
			if at != int64(int32(at)) {
				break
			}
			// ERANGE is that of priorities which the kernel keeps for itself.
			if l, err = r.atPriority(h, int32(at)); !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ERANGE) {
				return l, err
			}
		}
	}
	return nil, fmt.Errorf("the %d priorities on either side of %d are taken, and an update needs one of them: %w",
		maxDistance, r.Attachment.Netfilter.Priority, unix.EBUSY)
}

// atPriority attaches in the network namespace of the thread.
func (r Request) atPriority(h hook.Hook, priority int32) (link.Link, error) {
	n := r.Attachment.Netfilter
	o := link.NetfilterOptions{Program: r.Program, ProtocolFamily: link.NetfilterProtocolFamily(hook.NetfilterFamilies()[n.Family]),
		Hook: link.NetfilterInetHook(slices.Index(hook.NetfilterHooks(), n.Hook)), Priority: priority}
	if n.Defragment {
		o.NetfilterFlags = defragments
	}
	l, err := plain.Of(link.AttachNetfilter(o))
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, unix.EBUSY):
		return nil, fmt.Errorf("%s priority %d at %s of %s; choose another priority (`nft list hooks` and `skep inventory` show them): %w",
			r.has("another program or rule"), priority, n.Hook, n.Family, err)
	case errors.Is(err, unix.ENOENT) && n.Defragment:
		return nil, lackingPart(h, fmt.Sprintf("defragments no %s packets; load its module nf_defrag_ipv4 or nf_defrag_ipv6, leave out defragment", n.Family), err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return nil, lackingPart(h, fmt.Sprintf("has no %s; name the other family", n.Family), err)
	}
	return nil, err
}

// within calls do on a thread that is in the network namespace that was found. Without a
// path, that is the agent's own.
func (f *Found) within(path string, do func() error) error {
	if path == "" {
		return do()
	}
	ns, err := os.Open(f.target.path())
	if err != nil {
		return missing(err)
	}
	defer func() { _ = ns.Close() }()
	return netns.Do(ns, path, do)
}
