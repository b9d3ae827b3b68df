package rights

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/drop"
	"github.com/skep-dev/skep/test/harness/library"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestTheLibraryGuessesAtTheCauseOfEPERM(t *testing.T) {
	need.Kernel(t)
	var err error
	drop.Capabilities(t, func() {
		var m *ebpf.Map
		if m, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 4, ValueSize: 4, MaxEntries: 1}); err == nil {
			_ = m.Close()
		}
	}, unix.CAP_BPF, unix.CAP_SYS_ADMIN)
	if err == nil {
		t.Fatal("a map was made without CAP_BPF")
	}
	library.Says(t, "github.com/cilium/ebpf", err.Error(), memlock)
}
