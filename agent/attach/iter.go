package attach

import (
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

// iter makes an iterator's link. Once it is pinned, reading the pin runs the
// program over what it iterates.
func iter(_ hook.Hook, r Request) (pins.Held, error) {
	return plain.Of(link.AttachIter(link.IterOptions{Program: r.Program}))
}
