package relocate

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// relocation is how the library writes a relocation, of which nothing is exported.
var relocation = regexp.MustCompile(`\[([\d:]+)\], local_id=(\d+)\)$`)

// nameOf is what a relocation refers to, such as task_struct.state; empty where it
// cannot be told.
func nameOf(types *btf.Spec, r *btf.CORERelocation) string {
	if r == nil || types == nil {
		return ""
	}
	said := relocation.FindStringSubmatch(r.String())
	if said == nil {
		return ""
	}
	id, err := strconv.ParseUint(said[2], 10, 32)
	if err != nil {
		return ""
	}
	t, err := types.TypeByID(btf.TypeID(id))
	if err != nil {
		return ""
	}
	var accessor []int
	for index := range strings.SplitSeq(said[1], ":") {
		one, err := strconv.Atoi(index)
		if err != nil {
			return ""
		}
		accessor = append(accessor, one)
	}
	return nameOfAccess(t, accessor)
}

// nameOfAccess is what indexes into a type lead to: those of members, elements or, of an
// enumeration, a constant. The first one is of an array of the type.
func nameOfAccess(t btf.Type, accessor []int) string {
	t = btf.UnderlyingType(t)
	// What follows three underscores tells several declarations of a type apart.
	name, _, _ := strings.Cut(t.TypeName(), "___")
	if e, ok := t.(*btf.Enum); ok && accessor[0] < len(e.Values) {
		return fmt.Sprintf("%s of enum %s", e.Values[accessor[0]].Name, name)
	}
	for _, index := range accessor[1:] {
		var members []btf.Member
		switch one := t.(type) {
		case *btf.Array:
			t = btf.UnderlyingType(one.Type)
			continue
		case *btf.Struct:
			members = one.Members
		case *btf.Union:
			members = one.Members
		}
		if index >= len(members) {
			return name
		}
		if members[index].Name != "" {
			name += "." + members[index].Name
		}
		t = btf.UnderlyingType(members[index].Type)
	}
	return name
}
