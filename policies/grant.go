package policies

import (
	"encoding/json"
	"path"
)

// paramSharedTargets is the parameter of baseline that grants: SharedTargets by each glob of namespaces.
const paramSharedTargets = "sharedTargets"

// SharedTargets is what the applications of a namespace may have together beyond the settings of nodes; 0 grants nothing.
type SharedTargets struct {
	// Programs is how many programs at one target that tasks of others run, too, TextPages in how many pages of one file's text they
	// may have probes.
	Programs  int `json:"programs"`
	TextPages int `json:"textPages"`
}

// Granted returns what an admin grants a namespace. Only the object that sets the parameters of baseline grants anything, and
// only where baseline applies. Of several globs that match, the most counts.
func (s *Set) Granted(namespace string) (granted SharedTargets) {
	for _, c := range s.covering(Application{Metadata: Metadata{Namespace: namespace}}) {
		if !c.configures || c.broken || namespace == "" {
			continue
		}
		var all map[string]SharedTargets
		if json.Unmarshal(c.spec.Parameters[paramSharedTargets].Raw, &all) != nil {
			// The rule parameters of baseline denies everything then, if there is a parameter.
			continue
		}
		for glob, one := range all {
			if matches, err := path.Match(glob, namespace); err == nil && matches {
				granted.Programs, granted.TextPages = max(granted.Programs, one.Programs), max(granted.TextPages, one.TextPages)
			}
		}
	}
	return granted
}
