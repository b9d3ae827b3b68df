package inventory

import (
	"cmp"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/holders"
	"github.com/skep-dev/skep/agent/state/pins"
)

// join brings together what the kernel, the processes and the file system know
// about each object.
func (inv *Inventory) join(managed string, held map[holders.Object][]Process, pinned map[holders.Object][]string, unlinked map[uint32][]Place) {
	ours := map[holders.Object]bool{}
	for o, paths := range pinned {
		if slices.ContainsFunc(paths, func(p string) bool { return pins.Owns(managed, p) }) {
			ours[o] = true
		}
	}
	types := map[uint32]string{}
	for _, p := range inv.Programs {
		types[p.ID] = p.Type
	}
	users := inv.users()
	for i := range inv.Links {
		l := &inv.Links[i]
		o := holders.Link(l.ID)
		if l.Place.Hook == "raw_tp" {
			// The kernel ties typed and writing programs to tracepoints by links of
			// the same type as the others.
			l.Place.Hook = cmp.Or(tracepointHook(types[l.Program]), l.Place.Hook)
		}
		l.Holders, l.Pins, l.Managed = list(held[o]), list(pinned[o]), ours[o]
		if l.Managed {
			ours[holders.Program(l.Program)] = true
		}
	}
	attached := inv.attached(unlinked)
	for i := range inv.Programs {
		p := &inv.Programs[i]
		o := holders.Program(p.ID)
		p.Holders, p.Pins, p.Managed = list(held[o]), list(pinned[o]), ours[o]
		p.Attached = list(attached[p.ID])
	}
	for i := range inv.Maps {
		m := &inv.Maps[i]
		o := holders.Map(m.ID)
		m.Holders, m.Pins, m.Programs = list(held[o]), list(pinned[o]), list(users[m.ID])
		m.Managed = ours[o] || slices.ContainsFunc(m.Programs, func(id uint32) bool { return ours[holders.Program(id)] })
	}
}

// tracepointHook names the hook of programs of a type that a raw tracepoint's link
// runs, where that type has one of its own.
func tracepointHook(programType string) string {
	switch programType {
	case ebpf.Tracing.String():
		return "tp_btf"
	case ebpf.RawTracepointWritable.String():
		return "raw_tp.w"
	}
	return ""
}

// users are the programs of each map.
func (inv *Inventory) users() map[uint32][]uint32 {
	users := map[uint32][]uint32{}
	for _, p := range inv.Programs {
		for _, m := range p.Maps {
			users[m] = append(users[m], p.ID)
		}
	}
	return users
}

// attached are the places of each program: those of links, and those found
// without one that no link accounts for.
func (inv *Inventory) attached(unlinked map[uint32][]Place) map[uint32][]Place {
	type at struct {
		program uint32
		place   Place
	}
	seen := map[at]bool{}
	attached := map[uint32][]Place{}
	for _, l := range inv.Links {
		place := l.Place
		seen[at{l.Program, place}] = true
		place.Link = l.ID
		attached[l.Program] = append(attached[l.Program], place)
	}
	for id, places := range unlinked {
		for _, place := range places {
			if !seen[at{id, place}] {
				attached[id] = append(attached[id], place)
			}
		}
	}
	for _, places := range attached {
		slices.SortFunc(places, func(a, b Place) int {
			return cmp.Or(cmp.Compare(a.Hook, b.Hook), cmp.Compare(a.Target, b.Target), cmp.Compare(a.Link, b.Link))
		})
	}
	return attached
}

// list makes an absent list an empty one, which JSON shows as such.
func list[T any](values []T) []T {
	if values == nil {
		return []T{}
	}
	return values
}
