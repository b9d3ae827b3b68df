// Package reach finds which programs and maps of an object are loaded: listed programs, the maps that these refer to,
// what those maps hold when they are made, and maps that are named.
//
// Gate and agent ask the same question of different views of an object: facts, and the object as it is
// loaded. It decides nothing else, and changes neither.
package reach

import "github.com/cilium/ebpf"

// Set is what is loaded of an object, by name.
type Set struct{ Programs, Maps map[string]bool }

// View is what is known of an object.
type View struct {
	// Uses lists the maps that a program refers to, also in functions that it calls or takes the address of.
	Uses func(program string) []string
	// Holds says of which type a map is, in cilium/ebpf's words, and what it holds when it is made: programs, or maps.
	Holds func(name string) (kind string, held []string)
}

// walk gathers a Set.
type walk struct {
	View
	Set
}

// From returns what is loaded if these programs are listed and these maps are named. It may have names that the
// object does not have.
func (v View) From(programs, named []string) Set {
	w := walk{v, Set{map[string]bool{}, map[string]bool{}}}
	for _, name := range programs {
		w.program(name)
	}
	for _, name := range named {
		w.table(name)
	}
	return w.Set
}

func (w *walk) program(name string) {
	if w.Programs[name] {
		return
	}
	w.Programs[name] = true
	for _, m := range w.Uses(name) {
		w.table(m)
	}
}

func (w *walk) table(name string) {
	if w.Maps[name] {
		return
	}
	w.Maps[name] = true
	kind, held := w.Holds(name)
	for _, one := range held {
		switch kind {
		case ebpf.ProgramArray.String():
			w.program(one)
		case ebpf.ArrayOfMaps.String(), ebpf.HashOfMaps.String():
			w.table(one)
		}
	}
}

// Of returns what is loaded of an object whose maps have their contents. Its programs are linked: each has the
// instructions of all functions that it reaches.
func Of(spec *ebpf.CollectionSpec, programs, named []string) Set {
	set := View{
		Uses: func(program string) []string { return references(spec.Programs[program]) },
		Holds: func(name string) (kind string, held []string) {
			ms := spec.Maps[name]
			if ms == nil {
				return "", nil
			}
			for _, kv := range ms.Contents {
				if one, ok := kv.Value.(string); ok {
					held = append(held, one)
				}
			}
			return ms.Type.String(), held
		},
	}.From(programs, named)
	keepOnly(set.Programs, spec.Programs)
	keepOnly(set.Maps, spec.Maps)
	return set
}

// references lists the maps that the instructions of a program name, each as often as they do.
func references(ps *ebpf.ProgramSpec) []string {
	if ps == nil {
		return nil
	}
	var all []string
	for i := range ps.Instructions {
		if ins := &ps.Instructions[i]; ins.IsLoadFromMap() {
			all = append(all, ins.Reference())
		}
	}
	return all
}

// keepOnly takes out of a set what the object does not have.
func keepOnly[V any](set map[string]bool, has map[string]V) {
	for name := range set {
		if _, ok := has[name]; !ok {
			delete(set, name)
		}
	}
}
