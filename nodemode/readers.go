package nodemode

import (
	"maps"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/policies"
)

// noGroups warns of each map that is granted to pods and to nothing else: a host has none.
func noGroups(all map[string]v1alpha1.Map) (warnings []policies.Reason) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		hasGroups := func(g v1alpha1.MapExport) bool { return len(g.Groups) > 0 }
		if grants := all[name].Export; len(grants) > 0 && !slices.ContainsFunc(grants, hasGroups) {
			warnings = append(warnings, policies.Reason{Rule: "maps/readers", Path: "spec.maps." + name + ".export",
				Message: "on a host, map " + name + " has readers by their groups, and none is listed: nothing but root reads it",
				Fix:     "list groups in export, or use the definition in a cluster"})
		}
	}
	return warnings
}
