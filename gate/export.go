package gate

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/access"
)

// shapeExports denies grants of a map that name no reader, or more than a namespace may grant.
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
			r.add(rule, at, "list the namespaces whose pods have it or, on a host, the groups", "the grant lists no reader")
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

// fitExports denies grants that the type of a map has no sense for, or that its flags contradict, and grants of maps
// that no node makes. A grant makes no map: programs would be replaced for it.
func fitExports(r *denials, name string, override v1alpha1.Map, object, loaded []bytecode.Map) {
	isIt := func(m bytecode.Map) bool { return m.Name == name }
	i := slices.IndexFunc(object, isIt)
	if i < 0 {
		return
	}
	m, at := object[i], fmt.Sprintf("spec.maps.%s.export", name)
	if len(override.Export) > 0 && !slices.ContainsFunc(loaded, isIt) {
		r.add("inspect/map", at, "list a program that uses it, or set spec.maps."+name+".onUpdate to "+string(v1alpha1.MapKeep)+", which has it made",
			"map %s is not made: no listed program refers to it", name)
	}
	if why, fix := access.DeniedName(name); why != "" && len(override.Export) > 0 {
		r.add("inspect/map", at, fix, "map %s cannot be exported: %s", name, why)
	}
	for i, g := range override.Export {
		if why, fix := access.Denied(g.Access, access.Map{Name: name, Type: m.Type, Flags: m.Flags}); why != "" {
			r.add("inspect/map", fmt.Sprintf("%s[%d]", at, i), fix, "map %s of type %s cannot be exported for %s: %s", name, m.Type, g.Access, why)
		}
	}
}
