// Package grants decides which maps of an application readers outside of programs have on a node: the grants of its
// newest intent, applied to the maps that are loaded. It is pure: it opens no map, and makes no reader's folder.
package grants

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/access"
	"github.com/skep-dev/skep/intent"
)

// Loaded is a map that is pinned for an application now, as the kernel has it.
type Loaded struct {
	Name string
	Type ebpf.MapType
	// Flags are the kernel's, with BPF_F_RDONLY and BPF_F_WRONLY of the object that runs: the kernel
	// does not keep these two.
	Flags uint32
	// IsFrozen: user space may not write it any more.
	IsFrozen bool
	// IsTaken: it is another application's, which grants it itself.
	IsTaken bool
}

// Map is a map that readers have.
type Map struct {
	Name string
	// Grants are those that apply to what is loaded, in the order of the definition. There is at least one.
	Grants []Grant
}

// Grant is one access to a map, and who has it.
type Grant struct {
	Access v1alpha1.MapAccess
	// Namespaces are those whose pods have it; of an application of a namespace, that namespace alone.
	Namespaces []string
	// ServiceAccounts are those that such pods run as; all where none is listed.
	ServiceAccounts []string
	// Groups are those of a host whose members have it.
	Groups []string
}

// Refused is a grant that does not apply to what is loaded.
type Refused struct {
	Map    string
	Access v1alpha1.MapAccess
	// Reason is a sentence for a user.
	Reason string
}

// Of applies the grants of the newest intent of an application to what is loaded of the version that runs. Where that is an
// older one, it gets what its own intent says as well and no more: its maps were evaluated with no other grants. What the newest
// intent says of that version beside its own was evaluated since. The results are ordered by map.
func Of(newest, runs intent.Payload, loaded []Loaded) (granted []Map, refused []Refused) {
	if newest.Tombstone {
		return nil, nil
	}
	isOlder := !newest.SameVersion(&runs)
	runs = asOf(newest, runs)
	for _, name := range slices.Sorted(maps.Keys(newest.Maps)) {
		m := Map{Name: name}
		at := slices.IndexFunc(loaded, func(l Loaded) bool { return l.Name == name })
		for _, g := range newest.Maps[name].Export {
			given, why := []v1alpha1.MapExport{g}, reason(g.Access, loaded, at)
			if isOlder {
				given, _ = v1alpha1.NarrowExports(newest.Application, given, runs.Maps[name].Export)
			}
			if len(given) == 0 {
				why = cmp.Or(why, "the version that is loaded was allowed without it")
			}
			if why != "" {
				refused = append(refused, Refused{Map: name, Access: g.Access, Reason: why})
				continue
			}
			m.Grants = append(m.Grants, ofApplication(newest.Application, given)...)
		}
		if len(m.Grants) > 0 {
			granted = append(granted, m)
		}
	}
	return granted, refused
}

// asOf is an older version that runs, without the readers that the newest intent does not name of it any more.
func asOf(newest, runs intent.Payload) intent.Payload {
	for _, v := range newest.Beside() {
		if v.SameVersion(&runs) {
			runs, _ = runs.Narrowed(v.Maps)
		}
	}
	return runs
}

// Metrics are those of maps by the newest intent of an application, of the version that runs. An older one has those that its own intent
// has as well: what its maps hold was evaluated with no others.
func Metrics(newest, runs intent.Payload) map[string]*v1alpha1.MapMetrics {
	all := map[string]*v1alpha1.MapMetrics{}
	if newest.Tombstone {
		return all
	}
	isOlder := !newest.SameVersion(&runs)
	runs = asOf(newest, runs)
	for name, m := range newest.Maps {
		if m.Metrics != nil && (!isOlder || reflect.DeepEqual(m.Metrics, runs.Maps[name].Metrics)) {
			all[name] = m.Metrics
		}
	}
	return all
}

// reason is why an access to the loaded map at an index cannot be had; empty where it can.
func reason(to v1alpha1.MapAccess, loaded []Loaded, at int) string {
	if at < 0 {
		return "the version that is loaded has no such map"
	}
	m := loaded[at]
	if m.IsTaken {
		return "the map that is loaded is another application's, which grants it itself"
	}
	why, _ := access.Denied(to, access.Map{Name: m.Name, Type: m.Type.String(), Flags: m.Flags, IsFrozen: m.IsFrozen})
	if why != "" {
		return "the map that is loaded is of type " + m.Type.String() + ": " + why
	}
	why, _ = access.DeniedName(m.Name)
	return why
}

// ofApplication are grants of an application. One of a namespace has its own namespace, and grants to no other one.
func ofApplication(id v1alpha1.Identity, given []v1alpha1.MapExport) (all []Grant) {
	isOther := func(n string) bool { return n != id.Namespace }
	for _, g := range given {
		switch {
		case id.Kind != v1alpha1.KindBpfApplication:
		case len(g.Namespaces) == 0:
			g.Namespaces = []string{id.Namespace}
		default:
			if g.Namespaces = slices.DeleteFunc(slices.Clone(g.Namespaces), isOther); len(g.Namespaces) == 0 {
				g.ServiceAccounts = nil
			}
		}
		if len(g.Namespaces)+len(g.Groups) > 0 {
			all = append(all, Grant(g))
		}
	}
	return all
}
