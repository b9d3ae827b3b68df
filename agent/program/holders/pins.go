package holders

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/pin"
)

// Pins finds the paths of every object below a directory of the BPF file
// system. Pins are opened to learn what they are; one that goes meanwhile, or
// that is no object, is passed over. A directory that does not exist has none.
func Pins(ctx context.Context, root string) (map[Object][]string, error) {
	found := map[Object][]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !entry.Type().IsRegular():
			return nil
		}
		if o, ok := openPin(path); ok {
			found[o] = append(found[o], path)
		}
		return nil
	})
	return found, err
}

// openPin tells which object a pin is of.
func openPin(path string) (Object, bool) {
	pinned, err := pin.Load(path, nil)
	if err != nil {
		return Object{}, false
	}
	defer pinned.Close()
	switch p := pinned.(type) {
	case *ebpf.Program:
		if info, err := p.Info(); err == nil {
			id, ok := info.ID()
			return Object{OfProgram, uint32(id)}, ok
		}
	case *ebpf.Map:
		if info, err := p.Info(); err == nil {
			id, ok := info.ID()
			return Object{OfMap, uint32(id)}, ok
		}
	case link.Link:
		if info, err := p.Info(); err == nil {
			return Object{OfLink, uint32(info.ID)}, true
		}
	}
	return Object{}, false
}
