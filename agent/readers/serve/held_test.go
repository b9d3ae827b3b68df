package serve_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/serve"
	"github.com/skep-dev/skep/skepmap"
	"github.com/skep-dev/skep/skepmap/protocol"
	"github.com/skep-dev/skep/test/harness/await"
)

// TestReplacedRingBuffersAreNotHeldWithoutEnd: a reader keeps the descriptors of ring buffers that new versions replace, whose memory is
// the agent's.
func TestReplacedRingBuffersAreNotHeldWithoutEnd(t *testing.T) {
	var loaded atomic.Uint32
	s := serve.New(serve.Options{Held: 4096, IsLoaded: func(id ebpf.MapID) bool { return uint32(id) == loaded.Load() }})
	f, path := folderOf(t, s, "shop")
	other, otherPath := folderOf(t, s, "other")
	var held []int
	drop := func() {
		for _, fd := range held {
			_ = unix.Close(fd)
		}
		held = nil
	}
	defer drop()
	// replace makes the ring buffer anew: the program, and what served it, have the former one no more.
	generation, end := uint64(0), func() {}
	replace := func() {
		ring, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 4096})
		if err != nil {
			t.Fatal(err)
		}
		generation++
		granted := grant(t, ring, skepmap.Consume, generation, nil)
		loaded.Store(uint32(granted.Map.ID))
		f.Grant(map[string]serve.Granted{"events": granted})
		end()
		end = func() { _ = ring.Close() }
	}
	consume := func(path string) error {
		conn := dial(t, path)
		_, err := conn.Do(t.Context(), protocol.Request{Op: protocol.Consume, Map: "events"})
		if fd := conn.Descriptor(); fd >= 0 {
			held = append(held, fd)
		}
		_ = conn.Close()
		return err
	}
	for range 2 {
		replace()
		if err := consume(path); err != nil {
			t.Fatal(err)
		}
	}
	replace()
	if err := consume(path); code(err) != protocol.Busy || !strings.Contains(err.Error(), "namespace shop hold 2 ring buffers of 8192 bytes") {
		t.Fatalf("a third ring buffer with two held: %v", err)
	}
	other.Grant(map[string]serve.Granted{"events": grant(t, newMap(t, &ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 4096}), skepmap.Consume, 1, nil)})
	if err := consume(otherPath); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	drop()
	await.True(t, "a reader that closed what was replaced consumes again", time.Minute, func() bool { return consume(path) == nil })
	end()
}
