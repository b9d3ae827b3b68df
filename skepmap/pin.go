package skepmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/skepmap/protocol"
	"github.com/skep-dev/skep/skepmap/raw"
)

// pin are the entries of a map by its pin.
type pin struct {
	m   *ebpf.Map
	raw raw.Map
	// none is why a map has no entries that have keys.
	none error
}

// openPin opens the pin of a map: the pin with the map's name, or the pin of a further group.
func openPin(dir, name string, info MapInfo) (*pin, error) {
	m, err := openAny(dir, name, info.Access == Read)
	if err != nil {
		return nil, err
	}
	if m.KeySize() != info.KeySize || m.ValueSize() != info.ValueSize || m.Type().String() != info.Type {
		_ = m.Close()
		return nil, fmt.Errorf("its pin is another map than the one in %s; it is being replaced", ListingFile)
	}
	p := &pin{m: m}
	p.raw, p.none = raw.New(m)
	return p, nil
}

// openAny opens a pin that this process can write, or else one that it can read: one of its groups may have
// a grant for Read, and another one for Write.
func openAny(dir, name string, readOnly bool) (*ebpf.Map, error) {
	others := groupPins(dir, name)
	if readOnly {
		for _, other := range others {
			if m, err := loadPin(filepath.Join(dir, other), false); err == nil {
				return m, nil
			}
		}
	}
	m, err := loadPin(filepath.Join(dir, name), readOnly)
	if !errors.Is(err, unix.EACCES) {
		return m, err
	}
	for _, readOnly := range []bool{false, true} {
		for _, other := range others {
			if m, err := loadPin(filepath.Join(dir, other), readOnly); err == nil {
				return m, nil
			}
		}
	}
	return nil, err
}

func loadPin(path string, readOnly bool) (*ebpf.Map, error) {
	return ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: readOnly})
}

// groupPins are the pins of a map for further groups.
func groupPins(dir, name string) []string {
	all, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var found []string
	for _, file := range all {
		if strings.HasPrefix(file.Name(), GroupPin(name, "")) {
			found = append(found, file.Name())
		}
	}
	return found
}

func (p *pin) get(key []byte) ([]byte, error) {
	if p.none != nil {
		return nil, p.none
	}
	return p.raw.Get(key)
}

func (p *pin) put(key, value []byte, flags ebpf.MapUpdateFlags) error {
	if p.none != nil {
		return p.none
	}
	return p.raw.Put(key, value, flags)
}

func (p *pin) del(key []byte) error {
	if p.none != nil {
		return p.none
	}
	return p.raw.Delete(key)
}

func (p *pin) scan() batches {
	if p.none != nil {
		return pinScan{none: p.none}
	}
	return pinScan{scan: p.raw.Scan(protocol.Batch)}
}

func (p *pin) ring(context.Context) (int, *protocol.Conn, error) {
	fd, err := unix.FcntlInt(uintptr(p.m.FD()), unix.F_DUPFD_CLOEXEC, 0)
	return fd, nil, err
}

func (p *pin) close() error { return p.m.Close() }

type pinScan struct {
	scan *raw.Scan
	none error
}

func (s pinScan) next() (keys, values []byte, err error) {
	if s.none != nil {
		return nil, nil, s.none
	}
	return s.scan.Next()
}

func (pinScan) close() error { return nil }
