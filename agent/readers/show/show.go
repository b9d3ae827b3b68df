// Package show finds the maps of Skep's programs on this node and decodes their entries and records,
// for root alone. It owns how they are found and decoded; it must not change a map, and asks no agent.
package show

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/bytecode/values"
	"github.com/skep-dev/skep/skepmap/raw"
)

// ErrNotFound is the error for what does not exist: a map, an application, a key or a type.
var ErrNotFound = errors.New("it does not exist")

// notFound is an ErrNotFound with a text of its own.
type notFound string

func (e notFound) Error() string { return string(e) }

// Is reports whether a target is ErrNotFound.
func (notFound) Is(target error) bool { return target == ErrNotFound }

func absent(format string, args ...any) error { return notFound(fmt.Sprintf(format, args...)) }

// Map is a map of an application.
type Map struct {
	// Application is NAME or NAMESPACE/NAME.
	Application string `json:"application"`
	// Name is the map's name in the object.
	Name       string `json:"name"`
	ID         uint32 `json:"id"`
	Type       string `json:"type"`
	KeySize    uint32 `json:"keySize"`
	ValueSize  uint32 `json:"valueSize"`
	MaxEntries uint32 `json:"maxEntries"`
	// Pin is one of its pins.
	Pin string `json:"pin"`
	// HeldBy are the processes with a descriptor of it.
	HeldBy []inventory.Process `json:"heldBy"`
	// programs are those that use it.
	programs []uint32
}

// List returns the maps of all applications of this node, by application and name. A map that
// applications share is listed for each.
func List(ctx context.Context, o inventory.Options) ([]Map, error) {
	all, err := inventory.List(ctx, o)
	if err != nil {
		return nil, err
	}
	applications := map[string]string{} // by UID, which is the name of a folder of pins
	for _, p := range all.Programs {
		if p.Managed && p.Owner != nil && p.Owner.UID != "" {
			applications[p.Owner.UID] = p.Owner.App
		}
	}
	found := map[string]Map{}
	for _, m := range all.Maps {
		for _, pin := range m.Pins {
			name, isMap := pins.MapName(pin)
			application := applicationOf(pin, applications)
			if !m.Managed || !isMap || application == "" {
				continue
			}
			found[fmt.Sprint(application, "\x00", name, "\x00", m.ID)] = Map{
				Application: application, Name: name, ID: m.ID, Type: m.Type, KeySize: m.KeySize, ValueSize: m.ValueSize,
				MaxEntries: m.MaxEntries, Pin: pin, HeldBy: m.Holders, programs: m.Programs,
			}
		}
	}
	return sorted(found), nil
}

// sorted are maps by application, name and id.
func sorted(found map[string]Map) []Map {
	return slices.SortedFunc(maps.Values(found), func(a, b Map) int {
		return cmp.Or(cmp.Compare(a.Application, b.Application), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
}

// applicationOf is the application whose folder a pin is in.
func applicationOf(pin string, applications map[string]string) string {
	for part := range strings.SplitSeq(pin, "/") {
		if application := applications[part]; application != "" {
			return application
		}
	}
	return ""
}

// Find returns a map by application and name. While a new version with another map is being rolled
// out, it is the newest.
func Find(all []Map, application, name string) (Map, error) {
	var names []string
	var newest Map
	for _, m := range all {
		if m.Application == application {
			names = append(names, m.Name)
			if m.Name == name && m.ID > newest.ID {
				newest = m
			}
		}
	}
	switch {
	case newest.ID != 0:
		return newest, nil
	case names == nil:
		return Map{}, absent("no application %s with maps runs here; see skep map list", application)
	}
	return Map{}, absent("application %s has no map %s; it has %s", application, name, strings.Join(slices.Compact(names), ", "))
}

// order is that of this machine's bytes, by the name that bytecode/values knows.
func order() binary.ByteOrder {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return binary.LittleEndian
	}
	return binary.BigEndian
}

// Entries are those of a map, which its types decode.
type Entries struct {
	m          *ebpf.Map
	raw        raw.Map
	cpus       int
	key, value btf.Type
}

// Entry is an entry as people read it.
type Entry struct {
	Key any `json:"key"`
	// Value is that of a map that is not per CPU, and Values those of all possible CPUs.
	Value  any   `json:"value,omitempty"`
	Values []any `json:"values,omitempty"`
}

// Open opens the entries of a map for reading.
func Open(m Map) (*Entries, error) {
	opened, err := ebpf.NewMapFromID(ebpf.MapID(m.ID))
	if err != nil {
		return nil, fmt.Errorf("open map %s of %s: %w", m.Name, m.Application, plain.Error(err))
	}
	e := &Entries{m: opened}
	if records := opened.Type() == ebpf.RingBuf || opened.Type() == ebpf.PerfEventArray; records {
		err = errors.New("it has records and no entries; use skep map watch")
	} else if e.raw, err = plain.Of(raw.New(opened)); err == nil {
		e.cpus, err = plain.Of(raw.Values(opened.Type()))
	}
	if err == nil {
		e.key, e.value, err = typesOf(opened)
	}
	if t := opened.Type(); e.key == nil && (t == ebpf.Array || t == ebpf.PerCPUArray) {
		e.key = &btf.Int{Name: "unsigned int", Size: 4}
	}
	if err != nil {
		_ = opened.Close()
		return nil, fmt.Errorf("open map %s of %s: %w", m.Name, m.Application, err)
	}
	return e, nil
}

// Close closes the map.
func (e *Entries) Close() error { return e.m.Close() }

// entry decodes one.
func (e *Entries) entry(key, value []byte) Entry {
	entry := Entry{Key: values.Show(e.key, order(), key)}
	if e.cpus == 0 {
		entry.Value = values.Show(e.value, order(), value)
		return entry
	}
	for one := range slices.Chunk(value, len(value)/e.cpus) {
		entry.Values = append(entry.Values, values.Show(e.value, order(), one))
	}
	return entry
}

// Get returns the entry of a key: JSON as the key's type asks for it, or the hex digits of its bytes
// where the type is not known. Text that is no JSON is taken as a string.
func (e *Entries) Get(key string) (Entry, error) {
	if !json.Valid([]byte(key)) {
		quoted, err := json.Marshal(key)
		if err != nil {
			return Entry{}, err
		}
		key = string(quoted)
	}
	if e.key == nil {
		digits, err := bytesOfHex(key, int(e.m.KeySize()))
		if err != nil {
			return Entry{}, err
		}
		return e.get(digits)
	}
	b, err := values.Encode(e.key, order(), []byte(key))
	if err != nil {
		return Entry{}, fmt.Errorf("read the key: %w", err)
	}
	return e.get(b)
}

func (e *Entries) get(key []byte) (Entry, error) {
	value, err := e.raw.Get(key)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return Entry{}, absent("the map has no such key")
	}
	if err != nil {
		return Entry{}, plain.Error(err)
	}
	return e.entry(key, value), nil
}

// batchBytes is about how many bytes are read at once.
const batchBytes = 64 << 10

// All calls f for each entry until it returns an error.
func (e *Entries) All(ctx context.Context, f func(Entry) error) error {
	keySize := int(e.m.KeySize())
	for scan := e.raw.Scan(batchBytes); ; {
		keys, all, err := scan.Next()
		if err != nil || len(keys) == 0 {
			return plain.Error(err)
		}
		size := len(all) / (len(keys) / keySize)
		for ; len(keys) > 0; keys, all = keys[keySize:], all[size:] {
			if err := f(e.entry(keys[:keySize], all[:size])); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}
