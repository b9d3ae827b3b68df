package agent

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/readers/host"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/agent/state/statedir"
)

// Cleanup removes every pin below bpffs, which detaches and unloads the programs, and all that an
// Agent keeps below state, which would load them again. files are further names below state, of the
// caller. It needs neither keys nor a source. It fails with pins.ErrHeld while an Agent runs, and
// then removes nothing.
func Cleanup(bpffs, state string, files ...string) error {
	store, err := pins.OpenStore(bpffs)
	if err != nil {
		return err
	}
	namespaces := netns.NewTable()
	namespaces.Renew(netns.OfNode("/run/netns"))
	defer namespaces.Close()
	store.Filters.Namespaces = namespaces
	pace := live.NewPace()
	err = errors.Join(store.Clear(pace.Await), store.Close(), statedir.Remove(state))
	for _, name := range files {
		err = errors.Join(err, os.RemoveAll(filepath.Join(state, name)))
	}
	return err
}

// RemoveState removes all that an Agent keeps below its state directory.
func RemoveState(dir string) error { return statedir.Remove(dir) }

// RemoveReaders removes the readers' folders of a host below Options.MapsDir, which no Agent uses any more. What readers have open stays
// theirs.
func RemoveReaders(dir string) error { return host.Clear(dir) }
