package attach

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/hook"
)

// ownNetns is the network namespace of the agent, which the calling thread is in. The first
// thread, whose namespace is that of /proc/self, may be in a pod's for a moment.
const ownNetns = "/proc/thread-self/ns/net"

func ofNamespace(h hook.Hook, r Request) (pins.Held, error) {
	ns, err := os.Open(r.Found.target.path())
	if err != nil {
		return nil, missing(err)
	}
	l, err := link.AttachNetNs(int(ns.Fd()), r.Program)
	if err != nil {
		return nil, errors.Join(r.occupied(h, err), ns.Close())
	}
	if err := ns.Close(); err != nil {
		return nil, fmt.Errorf("close network namespace: %w", err)
	}
	return l, nil
}

// occupied says who has the one place of a network namespace. The kernel's answers are
// those of netns_bpf_link_attach and flow_dissector_bpf_prog_attach_check.
func (r Request) occupied(h hook.Hook, err error) error {
	switch {
	case h.Sharing != hook.Exclusive:
	case errors.Is(err, unix.E2BIG):
		return fmt.Errorf("%s the place of %s in the network namespace, which takes one program; remove that one (skep inventory and bpftool link show it): %w",
			r.has("another program"), h.Name, err)
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("a %s program is attached to this network namespace without a link, or to the initial one, which excludes those of all others; "+
			"detach it (bpftool prog detach): %w",
			h.Name, err)
	}
	return err
}

// has says that the place belongs to a program of ours, or else to something else.
func (r Request) has(other string) string {
	if r.HeldBy == "" {
		return other + " has"
	}
	return r.HeldBy + " has"
}
