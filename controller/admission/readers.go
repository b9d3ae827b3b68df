package admission

import (
	"maps"
	"slices"
	"strings"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// maxGrantedMaps bounds the maps that groupsAlone names.
const maxGrantedMaps = 3

// groupsAlone warns, in one line, of maps that are granted to groups and to nothing else: groups are those of hosts, and
// no pod has such a map.
func groupsAlone(app v1alpha1.Application) []string {
	if app.Identity().Kind == v1alpha1.KindBpfApplication {
		// Its own namespace has each grant.
		return nil
	}
	all := app.Body().Maps
	var named []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		hasPods := func(g v1alpha1.MapExport) bool { return len(g.Namespaces) > 0 }
		if grants := all[name].Export; len(grants) > 0 && !slices.ContainsFunc(grants, hasPods) {
			named = append(named, name)
		}
	}
	if len(named) == 0 {
		return nil
	}
	if len(named) > maxGrantedMaps {
		named = append(named[:maxGrantedMaps], "…")
	}
	return []string{"export of maps names groups alone, which are those of hosts, so no pod reads them; list namespaces: " + strings.Join(named, ", ")}
}
