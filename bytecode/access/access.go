// Package access owns the table of what readers outside of programs may do with which types of maps. Gate and agent
// ask it, of facts and of what is loaded; it opens no map, and knows no reader.
package access

import (
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/skepmap"
)

// The types of maps that each access is for: what is not listed cannot be granted.
var (
	tables  = []ebpf.MapType{ebpf.Array, ebpf.PerCPUArray, ebpf.Hash, ebpf.PerCPUHash, ebpf.LRUHash, ebpf.LRUCPUHash, ebpf.LPMTrie}
	allowed = map[v1alpha1.MapAccess][]ebpf.MapType{
		v1alpha1.MapRead:    append(slices.Clone(tables), ebpf.StackTrace),
		v1alpha1.MapWrite:   tables,
		v1alpha1.MapConsume: {ebpf.RingBuf},
	}
)

// Map is what is known of a map, in an object or in the kernel.
type Map struct {
	Name string
	// Type is the name of an ebpf.MapType.
	Type string
	// Flags are those that it was made with. The kernel keeps no BPF_F_RDONLY and no BPF_F_WRONLY:
	// only the object has these.
	Flags uint32
	// IsFrozen: user space may not write it any more.
	IsFrozen bool
}

// Denied returns why a map cannot be granted for an access, and what to do; empty where it can.
func Denied(to v1alpha1.MapAccess, m Map) (why, fix string) {
	const remove = "remove the grant"
	fits := func(t ebpf.MapType) bool { return t.String() == m.Type }
	switch {
	case strings.HasPrefix(m.Name, "."):
		return "it has the variables of the object", remove + ", and have the program keep in a map what others read"
	case strings.HasPrefix(m.Name, USDT):
		return "it has the arguments of this application's own probes", remove
	case !slices.ContainsFunc(allowed[to], fits):
		return "this access is for " + names(allowed[to]), remove + other(fits)
	case to != v1alpha1.MapRead && m.Flags&unix.BPF_F_RDONLY != 0:
		return "the object lets user space only read it (BPF_F_RDONLY)", "grant " + string(v1alpha1.MapRead)
	case to == v1alpha1.MapWrite && m.IsFrozen:
		return "it is frozen", "grant " + string(v1alpha1.MapRead)
	case m.Flags&unix.BPF_F_WRONLY != 0:
		return "the object lets user space only write it (BPF_F_WRONLY)", remove
	}
	return "", ""
}

// DeniedName returns why no reader can have a map of a name, and what to do; empty where one can. Metrics need no such name.
func DeniedName(name string) (why, fix string) {
	if skepmap.CheckName(name) == nil {
		return "", ""
	}
	return "its name is that of another file in a readers' folder (maps, socket, " + skepmap.ListingFile + ", *.btf), or has other characters than letters, " +
		"digits and _ . $ -", "rename the map in the object, or remove the grant"
}

// USDT begins the names of the maps that libbpf's USDT code has. The agent fills them for the probes of
// one application.
const USDT = "__bpf_usdt_"

// other names the access that a type is for.
func other(fits func(ebpf.MapType) bool) string {
	for _, to := range []v1alpha1.MapAccess{v1alpha1.MapRead, v1alpha1.MapConsume} {
		if slices.ContainsFunc(allowed[to], fits) {
			return ", or grant " + string(to)
		}
	}
	return ""
}

// names lists types as facts have them.
func names(types []ebpf.MapType) string {
	all := make([]string, len(types))
	for i, t := range types {
		all[i] = t.String()
	}
	return strings.Join(all, ", ")
}
