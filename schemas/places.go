package schemas

import (
	"fmt"
	"strings"

	"cuelang.org/go/cue"
)

// maxPlaces bounds how many fields of one source have their places told. The others have
// that of what they are in.
const maxPlaces = 32_768

// At is where the author wrote the field that a reason names, such as
// spec.programs[0].attach[1].hook, or else the nearest thing that it is in. Without
// Options.Places it is where the definition begins.
func (d Definition) At(path string) Position {
	for path != "" {
		if at, known := d.places[path]; known {
			return at
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return d.Source
}

// placesOf are the places of the fields below v, by path, as long as there is room for
// them.
func (r *renderer) placesOf(v cue.Value) map[string]Position {
	if r.places == 0 {
		return nil
	}
	found := map[string]Position{}
	var look func(v cue.Value, path string)
	look = func(v cue.Value, path string) {
		if at := r.position(v); path != "" && at.File != "" && r.places > 0 {
			found[path] = at
			r.places--
		}
		if r.places == 0 {
			return
		}
		if fields, err := v.Fields(); err == nil {
			for fields.Next() {
				look(fields.Value(), strings.TrimPrefix(path+"."+fields.Selector().Unquoted(), "."))
			}
			return
		}
		if list, err := v.List(); err == nil {
			for i := 0; list.Next(); i++ {
				look(list.Value(), fmt.Sprintf("%s[%d]", path, i))
			}
		}
	}
	look(v, "")
	return found
}
