package inventory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// devices are the interfaces of this network namespace, by index.
type devices map[uint32]netlink.Link

// readDevices reads them; without permission, or without a network, there are
// none, and places fall back to numbers.
func readDevices() devices {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil
	}
	found := devices{}
	for _, l := range links {
		found[uint32(l.Attrs().Index)] = l
	}
	return found
}

// goneTarget is the target of a link whose target went.
const goneTarget = "gone"

// place names an interface. An index means nothing outside its namespace, and
// the kernel does not tell a link's: the name is used only where this
// namespace's interface of that index does run the program.
func (d devices) place(hook string, attach ebpf.AttachType, index uint32, id ebpf.ProgramID) Place {
	device, ok := d[index]
	switch {
	case index == 0:
		return Place{Hook: hook, Target: goneTarget}
	case ok && d.runs(device, attach, id):
		return Place{Hook: hook, Target: device.Attrs().Name}
	}
	return Place{Hook: hook, Target: fmt.Sprintf("interface %d of another namespace", index)}
}

// runs reports whether an interface of this namespace has a program attached.
func (d devices) runs(device netlink.Link, attach ebpf.AttachType, id ebpf.ProgramID) bool {
	if attach == ebpf.AttachXDP {
		xdp := device.Attrs().Xdp
		// Programs in several modes at once are not told apart in one number.
		return xdp != nil && xdp.Attached && (xdp.ProgId == uint32(id) || xdp.AttachMode == xdpAttachedMulti)
	}
	return slices.Contains(queried(device.Attrs().Index, attach), uint32(id))
}

// xdpAttachedMulti is XDP_ATTACHED_MULTI of include/uapi/linux/if_link.h.
const xdpAttachedMulti = 4

// filters are the programs of the BPF filters at one side of an interface's
// clsact. An interface without one has none.
func filters(device netlink.Link, parent uint32) []uint32 {
	found, err := netlink.FilterList(device, parent)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil
	}
	var ids []uint32
	for _, f := range found {
		if bpf, ok := f.(*netlink.BpfFilter); ok {
			ids = append(ids, uint32(bpf.Id))
		}
	}
	return ids
}

// namespaces names network namespaces by their inode.
type namespaces struct {
	proc  string
	known map[uint64]string
}

// ownNetns is the network namespace of the calling thread, whose devices readDevices
// reads.
const ownNetns = "/proc/thread-self/ns/net"

// own is the name of that namespace.
func (n *namespaces) own() string {
	inode, _ := inodeOf(ownNetns)
	return n.name(inode)
}

// name is the path below /run/netns, "this" for the process's own, or the
// number.
func (n *namespaces) name(inode uint64) string {
	if n.known == nil {
		n.known = map[uint64]string{}
		paths, err := filepath.Glob("/run/netns/*")
		if err != nil {
			paths = nil
		}
		for _, path := range append(paths, filepath.Join(n.proc, "self/ns/net")) {
			if ino, ok := inodeOf(path); ok {
				n.known[ino] = path
			}
		}
	}
	if path, ok := n.known[inode]; ok {
		return path
	}
	return "net:[" + strconv.FormatUint(inode, 10) + "]"
}

func inodeOf(path string) (uint64, bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return stat.Ino, true
}
