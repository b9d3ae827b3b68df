package serve

import (
	"os"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/plain"
)

// Map is a map that folders share, however many there are: it costs one descriptor. It closes when all shares are closed.
type Map struct {
	*ebpf.Map
	// ID is the kernel's number.
	ID     ebpf.MapID
	shares atomic.Int64
	// guard is a page of it that is mapped for writing: while one is, the kernel lets no process freeze the map (EBUSY).
	guard []byte
}

// NewMap takes a map over, with one share.
func NewMap(m *ebpf.Map) (*Map, error) {
	info, err := plain.Of(m.Info())
	if err != nil {
		return nil, err
	}
	shared := &Map{Map: m}
	shared.ID, _ = info.ID()
	shared.shares.Store(1)
	if m.Type() == ebpf.RingBuf || m.Flags()&unix.BPF_F_MMAPABLE != 0 {
		// The page is the consumer's of a ring buffer. A map that is frozen already has none.
		if page, err := unix.Mmap(m.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			shared.guard = page
		}
	}
	return shared, nil
}

// Share is one share more, of a caller who has one.
func (m *Map) Share() *Map {
	m.shares.Add(1)
	return m
}

// Close closes a share.
func (m *Map) Close() error {
	if m.shares.Add(-1) > 0 {
		return nil
	}
	if m.guard != nil {
		_ = unix.Munmap(m.guard)
	}
	return m.Map.Close()
}
