package mapmetrics

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/bytecode/values/series"
)

// next reads a batch. ENOENT says that it is the last. The library would decode each value of each processor by reflection.
func (b *batch) next(m *ebpf.Map) (int, error) {
	// The part of union bpf_attr that is for batches (include/uapi/linux/bpf.h).
	attr := struct {
		from, to, keys, values unsafe.Pointer
		count, fd              uint32
		elementFlags, flags    uint64
	}{to: unsafe.Pointer(&b.to[0]), keys: unsafe.Pointer(&b.keys[0]), values: unsafe.Pointer(&b.values[0]), //nolint:gosec // the kernel writes them
		count: uint32(len(b.keys) / b.keySize), fd: uint32(m.FD())}
	if b.begun {
		attr.from = unsafe.Pointer(&b.from[0]) //nolint:gosec // the kernel reads it
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_LOOKUP_BATCH, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)) //nolint:gosec // union bpf_attr
	runtime.KeepAlive(m)
	if errno != 0 && errno != unix.ENOENT {
		return 0, errno
	}
	b.begun, b.from, b.to = true, b.to, b.from
	if errno != 0 {
		return int(attr.count), errno
	}
	return int(attr.count), nil
}

// newReader returns what reads a map that is loaded, by the types that the kernel has of it.
func newReader(m *ebpf.Map, metrics *v1alpha1.MapMetrics) (*series.Reader, error) {
	of := series.Map{Type: m.Type(), KeySize: m.KeySize(), ValueSize: m.ValueSize(), Order: binary.NativeEndian}
	var err error
	if of.Key, of.Value, err = typesOf(m); err != nil {
		return nil, err
	}
	r, misfits := series.New(metrics, of)
	var errs []error
	for _, misfit := range misfits {
		errs = append(errs, misfit)
	}
	return r, errors.Join(errs...)
}

// typesOf returns the types of a map's key and value; nil where the kernel has none.
func typesOf(m *ebpf.Map) (key, value btf.Type, err error) {
	// struct bpf_map_info, up to the types (include/uapi/linux/bpf.h).
	info := struct {
		_                         [64]byte
		btfID, keyType, valueType uint32
		_                         uint32
	}{}
	attr := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{uint32(m.FD()), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)} //nolint:gosec // the kernel writes it
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET_INFO_BY_FD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)) //nolint:gosec // union bpf_attr
	runtime.KeepAlive(m)
	if errno != 0 {
		return nil, nil, fmt.Errorf("ask for the types of a map: %w", errno)
	}
	if info.btfID == 0 || info.keyType == 0 || info.valueType == 0 {
		return nil, nil, nil
	}
	handle, err := plain.Of(m.Handle())
	if err != nil {
		return nil, nil, fmt.Errorf("read BTF of map: %w", rights.ExplainLoad(err, []rights.Capability{rights.SysAdmin}))
	}
	spec, err := plain.Of(handle.Spec(nil))
	if err := errors.Join(err, handle.Close()); err != nil {
		return nil, nil, fmt.Errorf("read BTF of map: %w", err)
	}
	key, err = plain.Of(spec.TypeByID(btf.TypeID(info.keyType)))
	if err != nil {
		return nil, nil, fmt.Errorf("read type of keys: %w", err)
	}
	value, err = plain.Of(spec.TypeByID(btf.TypeID(info.valueType)))
	if err != nil {
		return nil, nil, fmt.Errorf("read type of values: %w", err)
	}
	return key, value, nil
}

// node has names of the node, for one scan at a time. They are read again once they are as old as fresh.
type node struct {
	read       time.Time
	interfaces map[uint32]string
	devices    map[[2]uint32]string
}

// refresh forgets names that are old.
func (n *node) refresh() {
	if now := time.Now(); now.Sub(n.read) >= fresh {
		n.interfaces, n.devices, n.read = nil, map[[2]uint32]string{}, now
	}
}

// Device implements series.Node.
func (n *node) Device(major, minor uint32) string {
	n.refresh()
	at := [2]uint32{major, minor}
	name, isKnown := n.devices[at]
	if !isKnown && len(n.devices) < mostDevices {
		// A link to the folder of the device. Without an answer labels are numbers.
		if folder, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", major, minor)); err == nil {
			name = filepath.Base(folder)
		}
		n.devices[at] = name
	}
	return name
}

// mostDevices bounds the names of devices that are looked up.
const mostDevices = 1024

// Interface implements series.Node.
func (n *node) Interface(index uint32) string {
	if n.refresh(); n.interfaces == nil {
		n.interfaces = map[uint32]string{}
		// Without an answer labels are numbers.
		all, _ := net.Interfaces()
		for _, i := range all {
			n.interfaces[uint32(i.Index)] = i.Name
		}
	}
	return n.interfaces[index]
}

// Errno implements series.Node.
func (*node) Errno(n uint64) string {
	if n > 4095 {
		return ""
	}
	return unix.ErrnoName(syscall.Errno(n))
}
