package volumes

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/readers/folder"
	"github.com/skep-dev/skep/agent/readers/serve"
	"github.com/skep-dev/skep/skepmap"
)

// Check is check, with the defaults where a bound is not given.
func (b Bounds) Check(namespace string, has, all int) error {
	return b.orDefaults().check(namespace, has, all)
}

// Asking is how many requests to the mounter wait for an answer, but for withdrawals.
func (k *Keeper) Asking() int { return len(k.asks) }

// IsLoaded is what the server of sockets asks of maps that readers hold.
func (k *Keeper) IsLoaded(id ebpf.MapID) bool { return k.isLoaded(id) }

// WriteTypes writes the files of a volume with so many maps, whose names begin with a text and whose types have so many bytes.
func WriteTypes(dir, prefix string, maps, bytes int) (written int, err error) {
	all := map[string]folder.Fact{}
	for i := range maps {
		all[fmt.Sprint(prefix, i)] = folder.Fact{Types: folder.Types{BTF: make([]byte, bytes)}}
	}
	bound(all, func(string, error) {})
	c := content{application: skepmap.Application{Kind: "ClusterBpfApplication", Name: "counter"}}
	for name, f := range all {
		e := entry{access: access{name, skepmap.Read}, of: &serve.Map{}, info: skepmap.MapInfo{Type: "Hash", Access: skepmap.Read}, btf: f.BTF}
		if f.BTF != nil {
			e.info.BTF = skepmap.BTFFile(name)
			written++
		}
		c.maps = append(c.maps, e)
	}
	_, err = c.write(dir)
	return written, err
}
