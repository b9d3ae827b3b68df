package kube

import (
	"fmt"

	"github.com/skep-dev/skep/agent"
)

// Cleanup unloads all that is Skep's on the node, and forgets what would bring
// it back: what node and this package keep on disk. It needs neither keys nor API server. It
// fails with kernel.ErrHeld while an agent runs.
func Cleanup(bpffs, state string) error {
	if err := agent.Cleanup(bpffs, state, labelsFile, namespacesFile, SocketName); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	return nil
}
