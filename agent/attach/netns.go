package attach

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
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
	l, err := plain.Of(link.AttachNetNs(int(ns.Fd()), r.Program))
	if err != nil {
		return nil, errors.Join(r.occupied(h, int(ns.Fd()), err), ns.Close())
	}
	if err := ns.Close(); err != nil {
		return nil, fmt.Errorf("close network namespace: %w", err)
	}
	return l, nil
}

// has says that the place belongs to a program of ours, or else to something else.
func (r Request) has(other string) string {
	if r.HeldBy == "" {
		return other + " has"
	}
	return r.HeldBy + " has"
}
