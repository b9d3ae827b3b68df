package v1alpha1

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
)

// IsForReaders reports whether an entry of spec.maps says nothing but who reads the map. Such an
// entry has no map made, and makes no other version. A list that is empty says nothing: a sealed
// intent leaves it out.
func (m Map) IsForReaders() bool {
	rest := m
	rest.Export, rest.Metrics = nil, nil
	return (len(m.Export) > 0 || m.Metrics != nil) && equality.Semantic.DeepEqual(rest, Map{})
}

// WithoutReaders returns what a definition says of its maps, without readers outside of programs:
// what is loaded for it. It is nil where nothing is left.
func WithoutReaders(all map[string]Map) map[string]Map {
	var rest map[string]Map
	for name, m := range all {
		if m.IsForReaders() {
			continue
		}
		if rest == nil {
			rest = map[string]Map{}
		}
		m.Export, m.Metrics = nil, nil
		rest[name] = m
	}
	return rest
}

// NarrowExports returns of the grants of a map what others allow as well, and whether that is
// less. They are of one application.
func NarrowExports(id Identity, grants, others []MapExport) (narrowed []MapExport, isLess bool) {
	for _, g := range grants {
		var parts []MapExport
		for _, o := range others {
			if both, ok := intersect(id, g, o); ok {
				parts = join(parts, both, g.Namespaces)
			}
		}
		isWhole := func(p MapExport) bool { return equality.Semantic.DeepEqual(p, normalized(id, g)) }
		if slices.ContainsFunc(parts, isWhole) {
			parts = []MapExport{g}
		}
		for _, p := range parts {
			// Two grants that overlap may leave the same.
			if !slices.ContainsFunc(narrowed, func(o MapExport) bool { return equality.Semantic.DeepEqual(o, p) }) {
				narrowed = append(narrowed, p)
			}
		}
		isLess = isLess || len(parts) != 1 || !equality.Semantic.DeepEqual(parts[0], g)
	}
	return narrowed[:min(len(narrowed), MaxExports)], isLess
}

// join adds a part of a grant to others. Parts that differ in their namespaces alone are one, with these in the order of the grant.
func join(parts []MapExport, part MapExport, order []string) []MapExport {
	for i, p := range parts {
		of := slices.Concat(p.Namespaces, part.Namespaces)
		if p.Namespaces = part.Namespaces; equality.Semantic.DeepEqual(p, part) {
			if len(order) > 0 {
				parts[i].Namespaces = common(order, of)
			}
			return parts
		}
	}
	return append(parts, part)
}

// normalized is a grant with the namespace that it has where it lists none.
func normalized(id Identity, g MapExport) MapExport {
	if id.Kind == KindBpfApplication && len(g.Namespaces) == 0 {
		g.Namespaces = []string{id.Namespace}
	}
	return g
}

// intersect is what two grants both give; false where that is nothing.
func intersect(id Identity, a, b MapExport) (MapExport, bool) {
	a, b = normalized(id, a), normalized(id, b)
	both := MapExport{Access: a.Access, Namespaces: common(a.Namespaces, b.Namespaces), Groups: common(a.Groups, b.Groups)}
	switch {
	case a.Access == b.Access:
	case a.Access == MapConsume || b.Access == MapConsume:
		return both, false
	default:
		both.Access = MapRead
	}
	switch {
	case len(a.ServiceAccounts) == 0:
		both.ServiceAccounts = b.ServiceAccounts
	case len(b.ServiceAccounts) == 0:
		both.ServiceAccounts = a.ServiceAccounts
	default:
		if both.ServiceAccounts = common(a.ServiceAccounts, b.ServiceAccounts); len(both.ServiceAccounts) == 0 {
			both.Namespaces = nil
		}
	}
	if len(both.Namespaces) == 0 {
		both.ServiceAccounts = nil
	}
	// A grant of a namespace has that namespace where it lists none.
	isOfNamespace := id.Kind == KindBpfApplication
	return both, len(both.Namespaces) > 0 || !isOfNamespace && len(both.Groups) > 0
}

// common are the names that both lists have.
func common(a, b []string) []string {
	var both []string
	for _, name := range a {
		if slices.Contains(b, name) {
			both = append(both, name)
		}
	}
	return both
}
