package gate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
)

// shapeExports denies grants of a map that name nobody, or more than a namespace may grant.
func shapeExports(r *denials, id v1alpha1.Identity, at string, grants []v1alpha1.MapExport) {
	const rule = "shape/maps"
	if n := len(grants); n > v1alpha1.MaxExports {
		r.add(rule, at, fmt.Sprintf("list at most %d grants of one map", v1alpha1.MaxExports), "%d grants are listed", n)
	}
	consumers := 0
	for i, g := range grants {
		at := fmt.Sprintf("%s[%d]", at, i)
		if !slices.Contains([]v1alpha1.MapAccess{v1alpha1.MapRead, v1alpha1.MapWrite, v1alpha1.MapConsume}, g.Access) {
			r.add(rule, at+".access", fmt.Sprintf("use %s, %s or %s", v1alpha1.MapRead, v1alpha1.MapWrite, v1alpha1.MapConsume), "access %q is not known", g.Access)
		}
		if g.Access == v1alpha1.MapConsume {
			consumers++
		}
		for _, list := range []struct {
			field  string
			names  []string
			syntax *regexp.Regexp
		}{
			{"namespaces", g.Namespaces, labelSyntax}, {"serviceAccounts", g.ServiceAccounts, subdomainSyntax}, {"groups", g.Groups, groupSyntax},
		} {
			shapeNames(r, at+"."+list.field, list.names, list.syntax)
		}
		switch isNamespaced := id.Kind == v1alpha1.KindBpfApplication; {
		case isNamespaced && slices.ContainsFunc(g.Namespaces, func(n string) bool { return n != id.Namespace }):
			r.add(rule, at+".namespaces", "name "+id.Namespace+" alone, or leave the list out; or use a "+v1alpha1.KindClusterBpfApplication,
				"a %s grants its maps to pods of its own namespace alone", id.Kind)
		case !isNamespaced && len(g.Namespaces)+len(g.Groups) == 0:
			r.add(rule, at, "list the namespaces whose pods have it or, on a host, the groups", "the grant names nobody")
		case !isNamespaced && len(g.Namespaces) == 0 && len(g.ServiceAccounts) > 0:
			r.add(rule, at+".serviceAccounts", "list their namespaces in namespaces", "service accounts are named, and no namespace has them")
		}
	}
	if consumers > 1 {
		r.add(rule, at, "list one grant with Consume", "%d grants with Consume are listed, and a record has one reader", consumers)
	}
}

// The names that a grant may list.
var (
	labelSyntax     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	subdomainSyntax = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)
	groupSyntax     = regexp.MustCompile(`^([a-z_][a-z0-9_-]{0,31}|[0-9]{1,10})$`)
)

// shapeNames denies too many names, one twice, and what is no name.
func shapeNames(r *denials, at string, names []string, syntax *regexp.Regexp) {
	if n := len(names); n > v1alpha1.MaxExportNames {
		r.add("shape/maps", at, fmt.Sprintf("list at most %d", v1alpha1.MaxExportNames), "%d are listed", n)
	}
	for i, name := range names {
		if !syntax.MatchString(name) || slices.Contains(names[:i], name) {
			r.add("shape/maps", fmt.Sprintf("%s[%d]", at, i), "name each once", "%q is no such name, or is listed twice", name)
		}
	}
}

// The types of maps that each access is for: what is not listed cannot be granted.
var (
	tables = []ebpf.MapType{
		ebpf.Array, ebpf.PerCPUArray, ebpf.Hash, ebpf.PerCPUHash, ebpf.LRUHash, ebpf.LRUCPUHash, ebpf.LPMTrie,
	}
	exportable = map[v1alpha1.MapAccess][]ebpf.MapType{
		v1alpha1.MapRead:    append(slices.Clone(tables), ebpf.StackTrace),
		v1alpha1.MapWrite:   tables,
		v1alpha1.MapConsume: {ebpf.RingBuf},
	}
)

// fitExports denies grants that the type of the map has no sense for, or that its flags contradict.
func fitExports(r *denials, m bytecode.Map, grants []v1alpha1.MapExport) {
	for i, g := range grants {
		types, why, fix := exportable[g.Access], "", "remove the grant"
		switch {
		case strings.HasPrefix(m.Name, usdtMaps):
			why = "it has the arguments of this application's own probes"
		case !slices.ContainsFunc(types, func(t ebpf.MapType) bool { return t.String() == m.Type }):
			why, fix = "this access is for "+namesOf(types), "remove the grant, or grant an access that the type has"
		case g.Access != v1alpha1.MapRead && m.Flags&unix.BPF_F_RDONLY != 0:
			why, fix = "the object lets user space only read it (BPF_F_RDONLY)", "grant Read"
		case m.Flags&unix.BPF_F_WRONLY != 0:
			why = "the object lets user space only write it (BPF_F_WRONLY)"
		default:
			continue
		}
		r.add("inspect/map", fmt.Sprintf("spec.maps.%s.export[%d]", m.Name, i), fix, "map %s of type %s cannot be exported for %s: %s", m.Name, m.Type, g.Access, why)
	}
}

// namesOf lists types as the facts have them.
func namesOf(types []ebpf.MapType) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = t.String()
	}
	return strings.Join(names, ", ")
}
