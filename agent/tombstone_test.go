package agent_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// swollen is xdp_count with a .bss of so many bytes, which the file does not hold.
func swollen(t *testing.T, size uint64) []byte {
	t.Helper()
	object := bytes.Clone(world.ProgramsObject("xdp_count"))
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	const sizeOfHeader, sizeAt = 64, 32
	at := slices.IndexFunc(f.Sections, func(s *elf.Section) bool { return s.Name == ".bss" })
	headers := binary.LittleEndian.Uint64(object[40:])
	binary.LittleEndian.PutUint64(object[headers+uint64(at)*sizeOfHeader+sizeAt:], size)
	return object
}

// heapAt is a log that measures what is on the heap when the agent acts.
type heapAt struct {
	message string
	most    uint64
	times   int
}

func (h *heapAt) Write(line []byte) (int, error) {
	if strings.Contains(string(line), fmt.Sprintf("msg=%s ", h.message)) {
		runtime.GC()
		var now runtime.MemStats
		runtime.ReadMemStats(&now)
		h.most, h.times = max(h.most, now.HeapAlloc), h.times+1
	}
	return len(line), nil
}

// TestATombstoneActsBeforeAnyObjectIsRead restarts an agent that holds objects with
// large sections: what they declare is allocated when they are parsed.
func TestATombstoneActsBeforeAnyObjectIsRead(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "wh0", "wh1")
	const section, applications = 8 << 20, 6
	object := w.Object(swollen(t, section))
	o := w.Options()
	a, stop := w.Run(o)
	var all []intent.Payload
	for i := range applications {
		p := w.Intent(fmt.Sprint("large", i), "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", []string{"wh0", "wh1"}[i%2])})
		p.ObjectDigest = object
		all = append(all, p)
	}
	gone := w.Intent("gone", "raw_tp_count", world.RawProgram())
	if err := w.Accept(a, append(all, gone)...); err != nil {
		t.Fatal(err)
	}
	stop()

	heap := &heapAt{message: "act"}
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	o.Log = slog.New(slog.NewTextHandler(heap, nil))
	a = w.Idle(o)
	if err := a.Accept(w.Seal(w.Tombstone(gone))); err != nil {
		t.Fatal(err)
	}
	a.Reconcile(t.Context())
	if world.StatusOf(a, "gone") != nil || heap.times == 0 {
		t.Errorf("the tombstone did not act: %+v", world.StatusOf(a, "gone"))
	}
	if grown := int64(heap.most) - int64(before.HeapAlloc); grown > section {
		t.Errorf("the heap grew by %d MiB before the tombstone acted", grown>>20)
	}
	world.Until(t, "all to be checked", time.Minute, func() bool { a.Reconcile(t.Context()); return a.IsIdle() })
	for _, p := range all {
		if !world.IsIn(a, p) {
			t.Errorf("%s: %+v", p.UID, world.StatusOf(a, p.Application.Name))
		}
	}
}
