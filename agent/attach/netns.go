package attach

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/hook"
)

// ownNetns is the network namespace of the agent.
const ownNetns = "/proc/self/ns/net"

func netns(_ hook.Hook, r Request) (link.Link, error) {
	ns, err := os.Open(r.Found.target.path())
	if err != nil {
		return nil, missing(err)
	}
	l, err := link.AttachNetNs(int(ns.Fd()), r.Program)
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	if err := ns.Close(); err != nil {
		return nil, fmt.Errorf("close network namespace: %w", err)
	}
	return l, nil
}
