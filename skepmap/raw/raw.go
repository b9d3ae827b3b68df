// Package raw reads and writes the entries of maps as bytes, through a descriptor: readers that have
// a pin use it, and the agent for those that have a socket. It owns how the entries of every type of
// map are listed, and must not know folders or grants.
package raw

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/cilium/ebpf"
)

// Map is a map whose keys and values are bytes. The value of a per-CPU map has the values of all
// possible CPUs, one after the other without padding.
type Map struct {
	m *ebpf.Map
	// cpus is 0 for a map that is not per CPU.
	cpus int
}

// New takes a map, which stays the caller's to close. Maps without entries that have keys, such as
// ring buffers, queues and arrays of perf events, are an error.
func New(m *ebpf.Map) (Map, error) {
	cpus, err := Values(m.Type())
	return Map{m: m, cpus: cpus}, err
}

// Values is how many values an entry of a per-CPU map has, and 0 for other types. It is an error
// for types without entries that can be read.
func Values(kind ebpf.MapType) (int, error) {
	switch kind {
	case ebpf.Hash, ebpf.LRUHash, ebpf.Array, ebpf.LPMTrie:
		return 0, nil
	case ebpf.PerCPUHash, ebpf.LRUCPUHash, ebpf.PerCPUArray:
		return ebpf.PossibleCPU()
	}
	return 0, fmt.Errorf("a map of the type %s has no entries to read", kind)
}

// ValueBytes is how many bytes a value has, those of all CPUs together.
func (m Map) ValueBytes() int { return int(m.m.ValueSize()) * max(m.cpus, 1) }

// stride is how far apart the values of two CPUs are in what the kernel gives.
func (m Map) stride() int { return (int(m.m.ValueSize()) + 7) &^ 7 }

// Get returns the value of a key. It is ebpf.ErrKeyNotExist where there is none.
func (m Map) Get(key []byte) ([]byte, error) {
	value, err := m.m.LookupBytes(key)
	switch {
	case err != nil:
		return nil, err
	case value == nil:
		return nil, ebpf.ErrKeyNotExist
	case m.cpus == 0 || m.stride() == int(m.m.ValueSize()):
		return value, nil
	}
	packed := make([]byte, 0, m.ValueBytes())
	for cpu := range m.cpus {
		packed = append(packed, value[cpu*m.stride():][:m.m.ValueSize()]...)
	}
	return packed, nil
}

// Put sets the value of a key: flags is what the kernel calls BPF_ANY, BPF_NOEXIST or BPF_EXIST.
func (m Map) Put(key, value []byte, flags ebpf.MapUpdateFlags) error {
	if len(value) != m.ValueBytes() {
		return fmt.Errorf("the value has %d bytes; the map has values of %d", len(value), m.ValueBytes())
	}
	if m.cpus == 0 {
		return m.m.Update(key, value, flags)
	}
	size := int(m.m.ValueSize())
	each := make([][]byte, m.cpus)
	for cpu := range each {
		each[cpu] = value[cpu*size:][:size]
	}
	return m.m.Update(key, each, flags)
}

// Delete deletes a key. It is ebpf.ErrKeyNotExist where there is none.
func (m Map) Delete(key []byte) error { return m.m.Delete(key) }

// Scan lists all entries in batches. Entries that are added or deleted meanwhile may be in it or
// not, and a hash that changes may give one twice.
type Scan struct {
	m Map
	// cursor is the kernel's, and nil once single keys are asked for.
	cursor *ebpf.MapBatchCursor
	// keys and values are slices of byte arrays, which the kernel fills.
	keys, values reflect.Value
	last         []byte
	left         uint64
	ended        bool
}

// Scan begins a scan whose batches have at most that many bytes of keys and values together, and
// one entry at least.
func (m Map) Scan(most int) *Scan {
	entry := int(m.m.KeySize()) + m.ValueBytes()
	count := min(max(most/entry, 1), int(m.m.MaxEntries()))
	return &Scan{
		m: m, cursor: new(ebpf.MapBatchCursor),
		keys:   arrays(int(m.m.KeySize()), count),
		values: arrays(int(m.m.ValueSize()), count*max(m.cpus, 1)),
		// A hash that changes can lead in a circle, from a key that is gone to the first.
		left: 2*uint64(m.m.MaxEntries()) + 1,
	}
}

// arrays is a slice of byte arrays of one size.
func arrays(size, count int) reflect.Value {
	return reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(size, reflect.TypeFor[byte]())), count, count)
}

// flat are the bytes of the first arrays of a slice.
func flat(slice reflect.Value, count int) []byte {
	if count == 0 {
		return nil
	}
	out := make([]byte, 0, count*slice.Index(0).Len())
	for i := range count {
		out = append(out, slice.Index(i).Bytes()...)
	}
	return out
}

// Next returns the keys of the next entries, one after the other, and their values. It returns none
// at the end.
func (s *Scan) Next() (keys, values []byte, err error) {
	for !s.ended && len(keys) == 0 {
		if s.cursor == nil {
			return s.single()
		}
		n, err := s.m.m.BatchLookup(s.cursor, s.keys.Interface(), s.values.Interface(), nil)
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			s.ended = true
		case err != nil:
			// The kernel has no batches of this type, or a bucket holds more entries than a batch. The
			// error is no better than what single keys give: to find a reason, the library tries to make a map.
			s.cursor = nil
			continue
		}
		keys, values = flat(s.keys, n), flat(s.values, n*max(s.m.cpus, 1))
		if size := int(s.m.m.KeySize()); n > 0 {
			s.last = keys[len(keys)-size:]
		}
	}
	return keys, values, nil
}

// briefly is how long single keys are asked for: of keys of one hash, the kernel looks at each for each.
const briefly = 5 * time.Millisecond

// single returns as many entries as a batch has, or fewer where that takes long, by the keys that follow each other.
func (s *Scan) single() (keys, values []byte, err error) {
	var previous any
	end := time.Now().Add(briefly)
	for range s.keys.Len() {
		if len(keys) > 0 && time.Now().After(end) {
			break
		}
		if previous = nil; s.last != nil {
			previous = s.last
		}
		key, err := s.m.m.NextKeyBytes(previous)
		if err != nil {
			return nil, nil, err
		}
		if s.ended = key == nil; s.ended {
			break
		}
		if s.left--; s.left == 0 {
			return nil, nil, ebpf.ErrIterationAborted
		}
		s.last = key
		value, err := s.m.Get(key)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		keys, values = append(keys, key...), append(values, value...)
	}
	if len(keys) == 0 && !s.ended {
		return s.single()
	}
	return keys, values, nil
}
