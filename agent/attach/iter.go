package attach

import (
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/hook"
)

// iter makes an iterator's link. Once it is pinned, reading the pin runs the
// program over what it iterates.
func iter(_ hook.Hook, r Request) (kernel.Held, error) {
	return link.AttachIter(link.IterOptions{Program: r.Program})
}
