package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/node"
)

// Cleanup unloads all that is Skep's on the node, and forgets what would bring
// it back: what node and this package keep on disk. It needs neither keys nor API server. It
// fails with kernel.ErrHeld while an agent runs.
func Cleanup(bpffs, state string) error {
	store, err := kernel.OpenStore(bpffs)
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	err = errors.Join(store.Clear(), store.Close(), node.RemoveState(state))
	for _, name := range []string{labelsFile, SocketName} {
		err = errors.Join(err, os.RemoveAll(filepath.Join(state, name)))
	}
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	return nil
}
