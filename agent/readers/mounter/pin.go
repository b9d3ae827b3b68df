package mounter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/plain"
)

// unnamed is where a pin is made before it gets its name. No pin has that name.
const unnamed = "+"

// The modes of pins.
const (
	modeRead  = 0o440
	modeWrite = 0o660
)

// pin has a volume contain exactly these pins, and returns a descriptor of its folder for plain files.
func (p pods) pin(v Volume, pins []Pin) (int, error) {
	at, err := p.find(v, false)
	defer at.close()
	if errors.Is(err, unix.ENOENT) || err == nil && !at.mounted {
		return -1, ErrNotMounted
	}
	switch {
	case err == nil && p.pins:
		err = at.pin(pins)
	case err == nil:
		err = at.bare()
	}
	if err != nil {
		return -1, err
	}
	var kept handles
	return kept.writable(at.root)
}

// pin has the volume contain exactly these pins. Those of a map that is pinned with the same right already stay.
func (at *place) pin(pins []Pin) error {
	return at.each(pins, func(name string, some []Pin) error { return at.pinAt(name, some, compared) })
}

// each calls a function with each folder of pins, and the pins that are for it.
func (at *place) each(pins []Pin, do func(name string, some []Pin) error) error {
	for _, name := range []string{Writable, ReadOnly} {
		var some []Pin
		for _, p := range pins {
			if p.Write == (name == Writable) {
				some = append(some, p)
			}
		}
		if err := do(name, some); err != nil {
			return fmt.Errorf("pin in %s: %w", name, err)
		}
	}
	return nil
}

// narrow removes the pins of a volume but some, which it may not have.
func (p pods) narrow(v Volume, keep []Pin) error {
	at, err := p.find(v, false)
	defer at.close()
	if errors.Is(err, unix.ENOENT) || err == nil && !at.mounted {
		return ErrNotMounted
	}
	if err != nil {
		return err
	}
	return at.each(keep, func(name string, some []Pin) error { return at.pinAt(name, some, excess) })
}

// bare takes the BPF file systems of a volume away that an earlier mounter made. First the pins go: a container keeps its mounts. With
// the folder that one is mounted on, it goes from the containers, too.
func (at *place) bare() error {
	for _, name := range []string{Writable, ReadOnly} {
		on, err := at.open(at.root, name, 0)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = at.pinAt(name, nil, excess)
		}
		if err == nil {
			err = at.strip(name, on)
		}
		if err != nil {
			return fmt.Errorf("take %s away: %w", name, err)
		}
	}
	return nil
}

// strip unmounts what is mounted on a folder of the volume, and removes the folder.
func (at *place) strip(name string, on int) error {
	same, err := sameMount(at.root, on)
	if err == nil && !same {
		err = unix.Unmount(procPath(on), unix.MNT_DETACH)
	}
	if err != nil {
		return err
	}
	w, err := at.writable(at.root)
	if err != nil {
		return err
	}
	return unix.Unlinkat(w, name, unix.AT_REMOVEDIR)
}

// change is what makes a folder of pins what it should be.
type change struct {
	remove []string
	add    []Pin
	mode   uint32
}

// pinAt changes the pins of one of the volume's BPF file systems by how they differ from these.
func (at *place) pinAt(name string, pins []Pin, differ func(w int, pins []Pin) (change, error)) error {
	root, err := at.open(at.root, name, 0)
	if errors.Is(err, unix.ENOENT) {
		// It was mounted without pins, and its containers would not see what is mounted now.
		return nil
	}
	if err != nil {
		return err
	}
	if is, err := isType(root, unix.BPF_FS_MAGIC); err != nil || !is {
		// A mount that was cut short, which has no pins yet.
		if err == nil && len(pins) > 0 {
			err = errors.New("no BPF file system is mounted there; delete the pod")
		}
		return err
	}
	w, err := at.writable(root)
	if err != nil {
		return err
	}
	c, err := differ(w, pins)
	switch {
	case err != nil:
		return err
	case name == Writable:
		c.mode = modeWrite
		return c.make(w)
	case len(c.remove)+len(c.add) == 0:
		// An earlier mounter may have been stopped before that.
		return at.reconfigure(w, "ro")
	}
	c.mode = modeRead
	if err := at.reconfigure(w, "rw"); err != nil {
		return err
	}
	return errors.Join(c.make(w), at.reconfigure(w, "ro"))
}

// excess is what a folder has and others than these do not name.
func excess(w int, pins []Pin) (c change, err error) {
	has, err := os.ReadDir(procPath(w))
	if err != nil {
		return c, fmt.Errorf("list pins: %w", err)
	}
	for _, e := range has {
		if !slices.ContainsFunc(pins, func(p Pin) bool { return p.Name == e.Name() }) {
			c.remove = append(c.remove, e.Name())
		}
	}
	return c, nil
}

// compared is what a folder lacks, and has too much.
func compared(w int, pins []Pin) (change, error) {
	c, err := excess(w, pins)
	if err != nil {
		return c, err
	}
	for _, p := range pins {
		same, err := isPinned(w, p)
		if err != nil {
			return change{}, fmt.Errorf("compare pin %s: %w", p.Name, err)
		}
		if !same {
			c.add = append(c.add, p)
		}
	}
	return c, nil
}

// isPinned reports whether there is a pin of the name, of the same map.
func isPinned(w int, p Pin) (bool, error) {
	old, err := plain.Of(ebpf.LoadPinnedMap(procPath(w)+"/"+p.Name, &ebpf.LoadPinOptions{ReadOnly: true}))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = old.Close() }()
	now, err := mapOf(p.Map)
	if err != nil {
		return false, err
	}
	defer func() { _ = now.Close() }()
	one, err := idOf(old)
	if err != nil {
		return false, err
	}
	other, err := idOf(now)
	return one == other, err
}

func idOf(m *ebpf.Map) (ebpf.MapID, error) {
	info, err := plain.Of(m.Info())
	if err != nil {
		return 0, err
	}
	id, is := info.ID()
	if !is {
		return 0, errors.New("the kernel does not number maps")
	}
	return id, nil
}

// mapOf is the map of a descriptor, by another one.
func mapOf(fd int) (*ebpf.Map, error) {
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return plain.Of(ebpf.NewMapFromFD(other))
}

// make makes the change. A pin that replaces one does so at once.
func (c change) make(w int) error {
	for _, name := range c.remove {
		if err := unix.Unlinkat(w, name, 0); err != nil {
			return fmt.Errorf("remove pin %s: %w", name, err)
		}
	}
	for _, p := range c.add {
		if err := c.pin(w, p); err != nil {
			return fmt.Errorf("make pin %s: %w", p.Name, err)
		}
	}
	return nil
}

func (c change) pin(w int, p Pin) error {
	m, err := mapOf(p.Map)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	path := procPath(w) + "/" + unnamed
	if err := plain.Error(m.Pin(path)); err != nil {
		return err
	}
	err = os.Chmod(path, fs.FileMode(c.mode))
	if err == nil {
		err = unix.Renameat(w, unnamed, w, p.Name)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(w, unnamed, 0))
	}
	return nil
}

// protect makes the pins that are only read so again, where that was not finished, or takes pins away where volumes have none.
func (p pods) protect(v Volume) error {
	at, err := p.find(v, false)
	defer at.close()
	if err != nil || !at.mounted {
		// Of others, or going.
		return nil
	}
	if !p.pins {
		return at.bare()
	}
	root, err := at.open(at.root, ReadOnly, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s of %s: %w", ReadOnly, v, err)
	}
	if is, err := isType(root, unix.BPF_FS_MAGIC); err != nil || !is {
		return err
	}
	return at.reconfigure(root, "ro")
}
