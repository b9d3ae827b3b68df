package show

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/perf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/bytecode/values"
)

// Record is a record of a ring buffer, or of a perf buffer.
type Record struct {
	// Value is decoded by the type that was asked for, and else the hex digits.
	Value any `json:"value"`
	// Lost is how many records of a perf buffer were lost before it.
	Lost uint64 `json:"lost,omitempty"`
}

// perfBytes is how much of each CPU's records a perf buffer holds.
const perfBytes = 64 << 10

// Watch calls f for each record of a ring or perf buffer, until ctx ends or f returns an error. Its
// records are decoded by a type of the programs' BTF; by none, they are hex digits. A buffer that
// another process consumes is an error: two consumers lose records.
func Watch(ctx context.Context, m Map, typeName string, f func(Record) error) error {
	if p, consumes := consumer(m.HeldBy, "/proc"); consumes {
		return fmt.Errorf("map %s of %s is consumed by process %d (%s), and two consumers lose records: stop that one first", m.Name, m.Application, p.PID, p.Name)
	}
	var t btf.Type
	if typeName != "" {
		var err error
		if t, err = typeOfPrograms(m.programs, typeName); err != nil {
			return err
		}
	}
	opened, err := ebpf.NewMapFromID(ebpf.MapID(m.ID))
	if err != nil {
		return fmt.Errorf("open map %s of %s: %w", m.Name, m.Application, plain.Error(err))
	}
	defer opened.Close()
	next, stop, err := reader(opened)
	if err != nil {
		return fmt.Errorf("watch map %s of %s: %w", m.Name, m.Application, plain.Error(err))
	}
	defer context.AfterFunc(ctx, func() { _ = stop() })()
	defer func() { _ = stop() }()
	for {
		raw, lost, err := next()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("watch map %s of %s: %w", m.Name, m.Application, plain.Error(err))
		}
		if err := f(Record{Value: showRecord(t, raw), Lost: lost}); err != nil {
			return err
		}
	}
}

// showRecord decodes a record. A perf buffer fills one up to eight bytes.
func showRecord(t btf.Type, raw []byte) any {
	if t == nil {
		return values.Show(nil, order(), raw)
	}
	if size, err := btf.Sizeof(t); err == nil && len(raw) > size && len(raw)-size < 8 {
		raw = raw[:size]
	}
	return values.Show(t, order(), raw)
}

// reader reads a buffer.
func reader(m *ebpf.Map) (next func() (raw []byte, lost uint64, err error), stop func() error, err error) {
	switch m.Type() {
	case ebpf.RingBuf:
		r, err := ringbuf.NewReader(m)
		if err != nil {
			return nil, nil, err
		}
		return func() ([]byte, uint64, error) {
			record, err := plain.Of(r.Read())
			return record.RawSample, 0, err
		}, r.Close, nil
	case ebpf.PerfEventArray:
		r, err := perf.NewReader(m, perfBytes)
		if err != nil {
			return nil, nil, err
		}
		return func() ([]byte, uint64, error) {
			record, err := plain.Of(r.Read())
			return record.RawSample, record.LostSamples, err
		}, r.Close, nil
	}
	return nil, nil, fmt.Errorf("it is a %s; only a RingBuf and a PerfEventArray have records; use dump", m.Type())
}

// consumer is the process among those with a descriptor that has records of a buffer mapped: the agent has
// descriptors and the first page, by which the kernel lets no process freeze the map, and consumes nothing.
func consumer(held []inventory.Process, proc string) (inventory.Process, bool) {
	for _, p := range held {
		if p.PID == os.Getpid() {
			continue
		}
		mapped, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(p.PID), "maps"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		for line := range bytes.Lines(mapped) {
			isRing := bytes.Contains(line, []byte("anon_inode:bpf-map")) && !bytes.Contains(line, []byte("-s 00000000 "))
			if isRing || bytes.Contains(line, []byte("anon_inode:[perf_event]")) && bytes.Contains(line, []byte(" rw-s ")) {
				return p, true
			}
		}
	}
	return inventory.Process{}, false
}
