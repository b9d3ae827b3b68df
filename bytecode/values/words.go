package values

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// fail is a rejection about the part of a variable that the path leads to.
func fail(path, format string, args ...any) error {
	msg := fmt.Sprintf(format, args...)
	if path != "" {
		msg = strings.TrimPrefix(path, ".") + ": " + msg
	}
	return fmt.Errorf("%s", msg)
}

func mismatch(path, what, want string, value any) error {
	return fail(path, "%s is not %s; write %s", show(value), what, want)
}

// show quotes a value, shortened.
func show(value any) string {
	body, err := json.Marshal(value)
	if err != nil {
		return "the value"
	}
	if len(body) > 40 {
		return string(body[:37]) + "..."
	}
	return string(body)
}

// describe names a type as C does, near enough for a message.
func describe(t btf.Type) string {
	switch u := t.(type) {
	case *btf.Array:
		return fmt.Sprintf("%s[%d]", describe(u.Type), u.Nelems)
	case *btf.Struct:
		return strings.TrimSpace("struct " + u.Name)
	case *btf.Union:
		return strings.TrimSpace("union " + u.Name)
	case *btf.Enum:
		return strings.TrimSpace("enum " + u.Name)
	case *btf.Pointer:
		return describe(u.Target) + " *"
	case *btf.Const:
		return describe(u.Type)
	case *btf.Volatile:
		return describe(u.Type)
	case *btf.Void:
		return "void"
	}
	if name := t.TypeName(); name != "" {
		return name
	}
	return fmt.Sprintf("%T", t)
}

// fieldNames are the names that members and those without a name have.
func fieldNames(all []btf.Member) string {
	var names []string
	for _, m := range members(all) {
		names = append(names, m.Name)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// isChar reports whether an array of the type is text.
func isChar(t btf.Type) bool {
	i, ok := btf.UnderlyingType(t).(*btf.Int)
	return ok && i.Size == 1 && (i.Encoding == btf.Char || i.Name == "char")
}
