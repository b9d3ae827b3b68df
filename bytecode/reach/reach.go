// Package reach finds which programs and maps of an object a definition has loaded: the programs that it
// lists, the maps that these refer to, what those maps hold when they are made, and the maps that it names.
//
// Gate and agent ask the same question of different views of an object: facts, and the object as it is
// loaded. It decides nothing else, and changes neither.
package reach

import (
	"encoding/json"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
)

// Set is what is loaded of an object, by name.
type Set struct{ Programs, Maps map[string]bool }

// view is what is known of an object.
type view struct {
	// uses lists the maps that a program refers to, also in functions that it calls or takes the address of.
	uses func(program string) []string
	// holds says of which type a map is, and what it holds when it is made: programs, or maps.
	holds func(name string) (kind string, held []string)
}

// walk gathers a Set.
type walk struct {
	view
	Set
}

// from returns what a definition has loaded that lists these programs and names these maps.
func (v view) from(programs []v1alpha1.Program, named map[string]v1alpha1.Map) Set {
	w := walk{v, Set{map[string]bool{}, map[string]bool{}}}
	for _, p := range programs {
		w.program(p.Name)
	}
	for name := range named {
		w.table(name)
	}
	return w.Set
}

func (w *walk) program(name string) {
	if w.Programs[name] {
		return
	}
	w.Programs[name] = true
	for _, m := range w.uses(name) {
		w.table(m)
	}
}

func (w *walk) table(name string) {
	if w.Maps[name] {
		return
	}
	w.Maps[name] = true
	kind, held := w.holds(name)
	for _, one := range held {
		switch kind {
		case ebpf.ProgramArray.String():
			w.program(one)
		case ebpf.ArrayOfMaps.String(), ebpf.HashOfMaps.String():
			w.table(one)
		}
	}
}

// Of returns what is loaded of an object whose maps have the contents of the definition already. Its programs
// are linked: each has the instructions of all functions that it reaches.
func Of(spec *ebpf.CollectionSpec, programs []v1alpha1.Program, named map[string]v1alpha1.Map) Set {
	set := view{
		uses: func(program string) []string { return references(spec.Programs[program]) },
		holds: func(name string) (kind string, held []string) {
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
	}.from(programs, named)
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

// Facts returns the facts of an object with the maps that a definition has loaded, and what these take. It has
// all programs of the object. An entry of the definition that takes the place of the object's own adds to what is
// loaded: here it is not known which have one key.
func Facts(f bytecode.Facts, programs []v1alpha1.Program, named map[string]v1alpha1.Map) bytecode.Facts {
	byName := map[string]bytecode.Map{}
	for _, m := range f.Maps {
		byName[m.Name] = m
	}
	set := view{
		uses: func(program string) []string {
			p, _ := f.Program(program)
			return p.Maps
		},
		holds: func(name string) (kind string, held []string) {
			m := byName[name]
			for _, c := range m.Contents {
				held = append(held, c.Name)
			}
			for _, entry := range named[name].Contents {
				var one string
				if json.Unmarshal(entry.Value.Raw, &one) == nil {
					held = append(held, one)
				}
			}
			return m.Type, held
		},
	}.from(programs, named)
	return f.WithMaps(func(name string) bool { return set.Maps[name] })
}
