package intent_test

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/golden"
)

// TestAFormatIsItsFields fails where a field comes, goes or changes its name or
// type: agents of the format would reject such a payload, or read it wrongly.
func TestAFormatIsItsFields(t *testing.T) {
	file := filepath.Join("testdata", fmt.Sprintf("format-%d", intent.FormatVersion))
	lines := map[string]bool{}
	fields(reflect.TypeFor[intent.Payload](), "", lines, nil)
	var all []string
	for line := range lines {
		all = append(all, line)
	}
	slices.Sort(all)
	got := strings.Join(all, "\n") + "\n"
	golden.File(t, file, got, fmt.Sprintf("agents in the field read format %d and no other field: raise FormatVersion and see docs/adr/0018",
		intent.FormatVersion))
}

// fields lists what JSON has of a type: a line for each path to a value, with the
// value's kind. A type within itself is listed once.
func fields(typ reflect.Type, path string, lines map[string]bool, above []reflect.Type) {
	switch typ.Kind() {
	case reflect.Pointer:
		fields(typ.Elem(), path, lines, above)
	case reflect.Slice, reflect.Array:
		fields(typ.Elem(), path+"[]", lines, above)
	case reflect.Map:
		fields(typ.Elem(), path+"{}", lines, above)
	case reflect.Struct:
		seen := structFields(typ)
		if slices.Contains(above, typ) || len(seen) == 0 {
			lines[path+" "+typ.Name()] = true
			return
		}
		for _, f := range seen {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			below := path
			if name != "" {
				below = strings.TrimPrefix(path+"."+name, ".")
			}
			fields(f.Type, below, lines, append(slices.Clip(above), typ))
		}
	default:
		lines[path+" "+typ.Kind().String()] = true
	}
}

// structFields are those that JSON looks at.
func structFields(typ reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(typ), func(f reflect.StructField) bool {
		return !f.IsExported() || len(f.Index) > 1 || f.Tag.Get("json") == "-"
	})
}
