// Package serve answers readers of maps that may call no bpf(2), on the socket of their folder. It
// owns the server of package skepmap/protocol with its bounds, and must not decide who may what:
// it is given the grants.
package serve

import (
	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/skepmap"
)

// Granted is a map of a readers' folder.
type Granted struct {
	// Info is what the folder's listing has of the map.
	Info skepmap.MapInfo
	// Map is the map itself. The server takes it over, and closes it.
	Map *ebpf.Map
	// Groups are the further groups of a host and what each may do. A reader whose process is in
	// several groups may do what any of them may. Without groups at all, neither here nor in Info,
	// everyone who can connect may do what Info says: in the volume of a pod, that is the pod.
	Groups map[uint32]skepmap.Access
}
