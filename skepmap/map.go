package skepmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/skepmap/protocol"
)

// Map is a map of a readers' folder. All methods may be called at once.
//
// Keys and values are Go values with as many bytes as the map's: numbers such as uint32, arrays and
// structs of them, []byte, or types that are an encoding.BinaryMarshaler and BinaryUnmarshaler. The
// padding of a C struct is written as fields named _, such as _ [4]byte. Where the map has BTF, the
// places and sizes of the fields are compared with it. What does not fit is a *SizeError or a
// *LayoutError. The value of a per-CPU map is a slice with an element for each possible CPU.
//
// Errors are ebpf.ErrKeyNotExist for a key that is not there, fs.ErrPermission for what is not
// granted, and ErrWithdrawn for a map that is not granted any more.
type Map struct {
	name   string
	folder *Maps

	// mu is held for reading while entries are used.
	mu      sync.RWMutex
	info    MapInfo
	entries entries
	types   types
	// failed is why entries is nil.
	failed error

	checked sync.Map // reflect.Type and side → error

	recordsMu sync.Mutex
	records   map[*Records]struct{}
}

// entries are those of a map, by a pin or by the socket.
type entries interface {
	get(key []byte) ([]byte, error)
	put(key, value []byte, flags ebpf.MapUpdateFlags) error
	del(key []byte) error
	scan() batches
	// ring is the descriptor of a ring buffer.
	ring(ctx context.Context) (fd int, conn *protocol.Conn, err error)
	close() error
}

// batches are those of a scan.
type batches interface {
	next() (keys, values []byte, err error)
	close() error
}

// Name is the map's name in the program.
func (m *Map) Name() string { return m.name }

// Info is what the listing has of the map now.
func (m *Map) Info() MapInfo {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.info
}

// Lookup sets what value points to from the value of a key; of a per-CPU map, value points to a
// slice, such as *[]uint64.
func (m *Map) Lookup(key, value any) error {
	return m.with("look up in", func(e entries) error {
		k, err := m.keyBytes(key)
		if err != nil {
			return err
		}
		v, err := e.get(k)
		if err != nil {
			return err
		}
		return m.fillValue(value, v)
	})
}

// Put sets the value of a key, which is added where it is not there. The map has to be granted for
// Write. Of a per-CPU map, value is a slice with an element for each possible CPU.
func (m *Map) Put(key, value any) error { return m.Update(key, value, ebpf.UpdateAny) }

// Update is Put with flags: ebpf.UpdateNoExist fails with ebpf.ErrKeyExist for a key that is there,
// and ebpf.UpdateExist with ebpf.ErrKeyNotExist for one that is not.
func (m *Map) Update(key, value any, flags ebpf.MapUpdateFlags) error {
	return m.with("write to", func(e entries) error {
		k, err := m.keyBytes(key)
		if err != nil {
			return err
		}
		if err := m.check(value, theValue); err != nil {
			return err
		}
		var v []byte
		if cpus, perCPU := m.cpus(); perCPU {
			v, err = bytesOfAll(value, int(m.info.ValueSize), cpus)
		} else {
			v, err = bytesOf(value, int(m.info.ValueSize), theValue)
		}
		if err != nil {
			return err
		}
		return e.put(k, v, flags)
	})
}

// Delete deletes a key. The map has to be granted for Write.
func (m *Map) Delete(key any) error {
	return m.with("delete from", func(e entries) error {
		k, err := m.keyBytes(key)
		if err != nil {
			return err
		}
		return e.del(k)
	})
}

// with runs a function with the entries. Where the agent answers that the map is another one by now,
// it reads the listing and tries once more.
func (m *Map) with(verb string, do func(entries) error) error {
	err := m.once(do)
	if changed := new(protocol.Error); errors.As(err, &changed) && changed.Code == protocol.Changed {
		m.folder.reload()
		err = m.once(do)
	}
	if err != nil {
		return fmt.Errorf("%s map %s: %w", verb, m.name, err)
	}
	return nil
}

func (m *Map) once(do func(entries) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.entries == nil {
		return m.failed
	}
	return do(m.entries)
}

func (m *Map) keyBytes(key any) ([]byte, error) {
	if err := m.check(key, theKey); err != nil {
		return nil, err
	}
	return bytesOf(key, int(m.info.KeySize), theKey)
}

// cpus is how many values an entry has, and false for one value.
func (m *Map) cpus() (int, bool) {
	if !m.info.IsPerCPU() {
		return 0, false
	}
	cpus, err := ebpf.PossibleCPU()
	return cpus, err == nil
}

// fillValue sets a value from the bytes of one, or of those of all CPUs.
func (m *Map) fillValue(value any, from []byte) error {
	if err := m.check(value, theValue); err != nil {
		return err
	}
	if _, perCPU := m.cpus(); perCPU {
		return fillAll(value, from, int(m.info.ValueSize))
	}
	return fill(value, from, theValue)
}

// check compares the type of a key or value with the BTF of the map, once for each type.
func (m *Map) check(v any, of side) error {
	type asked struct {
		t  reflect.Type
		of side
	}
	known, ok := m.checked.Load(asked{reflect.TypeOf(v), of})
	if !ok {
		t, one := m.types.key, v
		if of == theValue {
			t = m.types.value
			if _, perCPU := m.cpus(); perCPU {
				one = element(v)
			}
		}
		known = &checked{fits(one, t, of)}
		m.checked.Store(asked{reflect.TypeOf(v), of}, known)
	}
	return known.(*checked).err
}

// checked is the result of a comparison.
type checked struct{ err error }

// element is a value of the type that a slice, or a pointer to one, has elements of.
func element(v any) any {
	t := reflect.TypeOf(v)
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Slice {
		return nil
	}
	return reflect.Zero(t.Elem()).Interface()
}

// follow takes what a new listing has of the map.
func (m *Map) follow(info MapInfo, granted bool) {
	m.mu.RLock()
	same := granted && m.entries != nil && m.info == info
	m.mu.RUnlock()
	if same {
		return
	}
	reason := ErrReplaced
	if !granted {
		reason = ErrWithdrawn
	}
	end, _ := m.replace(info, granted)
	_ = end(reason)
}

// replace opens the map that the folder has now. The function that it returns ends what was open, for
// a reason: a reader of records that gets it finds the new map open.
func (m *Map) replace(info MapInfo, granted bool) (end func(reason error) error, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	end = m.leave()
	m.info, m.types, m.failed = info, types{}, ErrWithdrawn
	m.checked.Clear()
	if !granted {
		return end, m.failed
	}
	if m.types, m.failed = readTypes(m.folder.dir, info); m.failed != nil {
		return end, m.failed
	}
	m.entries, m.failed = m.open(info)
	return end, m.failed
}

// leave forgets what is open. The caller holds m.mu, and then ends it.
func (m *Map) leave() (end func(reason error) error) {
	e := m.entries
	m.entries = nil
	m.recordsMu.Lock()
	records := m.records
	m.records = map[*Records]struct{}{}
	m.recordsMu.Unlock()
	return func(reason error) error {
		var all []error
		for r := range records {
			all = append(all, r.end(reason))
		}
		if e != nil {
			all = append(all, e.close())
		}
		return errors.Join(all...)
	}
}

// open opens the pin, or else the socket: a seccomp profile answers EPERM to bpf(2), a pod with user
// namespaces has no pins, and a group may have none here.
func (m *Map) open(info MapInfo) (entries, error) {
	pin, err := openPin(m.folder.dir, m.name, info)
	if err == nil {
		return pin, nil
	}
	if path, there := m.folder.socket(); there {
		return &socket{path: path, name: m.name, generation: info.Generation}, nil
	}
	switch {
	case errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("%w, and there is no socket beside it: does a seccomp filter forbid bpf(2)? A unit of systemd may call it by "+
			"SystemCallFilter=@system-service bpf", err)
	case errors.Is(err, fs.ErrPermission) && info.Group != "":
		return nil, fmt.Errorf("%w: it was granted to the group %s, or to groups of the files %s; is this process in one?",
			err, info.Group, GroupPin(m.name, "GROUP"))
	}
	return nil, err
}

// close ends what is open, for a reason.
func (m *Map) close(reason error) error {
	m.mu.Lock()
	m.failed = reason
	end := m.leave()
	m.mu.Unlock()
	return end(reason)
}

// Iterator goes through all entries of a map, which it gets in batches. Entries that are added or
// deleted meanwhile may be in it or not. It is for one goroutine.
type Iterator struct {
	m            *Map
	of           entries
	batches      batches
	keys, values []byte
	ended        bool
	err          error
}

// Iterate begins to go through all entries. Close it, unless Next returned false.
func (m *Map) Iterate() *Iterator { return &Iterator{m: m} }

// Next sets what key and value point to from the next entry, as Lookup does. It reports false at the
// end, and for an error, which Err returns.
func (i *Iterator) Next(key, value any) bool {
	if i.err != nil || i.ended {
		return false
	}
	if len(i.keys) == 0 {
		err := i.m.with("iterate over", i.fetch)
		if err != nil || len(i.keys) == 0 {
			i.err = err
			i.Close()
			return false
		}
	}
	i.err = i.m.with("iterate over", func(entries) error {
		keySize := int(i.m.info.KeySize)
		valueSize := len(i.values) / (len(i.keys) / keySize)
		if err := i.m.check(key, theKey); err != nil {
			return err
		}
		err := fill(key, i.keys[:keySize], theKey)
		if err == nil {
			err = i.m.fillValue(value, i.values[:valueSize])
		}
		i.keys, i.values = i.keys[keySize:], i.values[valueSize:]
		return err
	})
	return i.err == nil
}

// fetch gets the next batch.
func (i *Iterator) fetch(e entries) error {
	if i.batches == nil {
		i.of, i.batches = e, e.scan()
	}
	if i.of != e {
		return errors.New("the map was replaced meanwhile; iterate again")
	}
	var err error
	i.keys, i.values, err = i.batches.next()
	return err
}

// Err is why Next returned false, and nil at the end of the map.
func (i *Iterator) Err() error { return i.err }

// Close ends the iteration.
func (i *Iterator) Close() {
	if i.batches != nil {
		_ = i.batches.close()
	}
	i.keys, i.values, i.ended = nil, nil, true
}
