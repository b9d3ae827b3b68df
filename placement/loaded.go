package placement

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/reach"
)

// Loaded returns the facts of an object with the maps that a definition has loaded, and what these take. It has
// all programs of the object. An entry of the definition that takes the place of the object's own adds to what is
// loaded: here it is not known which have one key.
func Loaded(f bytecode.Facts, programs []v1alpha1.Program, named map[string]v1alpha1.Map) bytecode.Facts {
	byName := map[string]bytecode.Map{}
	for _, m := range f.Maps {
		byName[m.Name] = m
	}
	var listed []string
	for _, p := range programs {
		listed = append(listed, p.Name)
	}
	set := reach.View{
		Uses: func(program string) []string {
			p, _ := f.Program(program)
			return p.Maps
		},
		Holds: func(name string) (kind string, held []string) {
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
	}.From(listed, slices.Collect(maps.Keys(v1alpha1.WithoutReaders(named))))
	return f.WithMaps(func(name string) bool { return set.Maps[name] })
}
