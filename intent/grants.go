package intent

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// The lines of LogGrants.
const (
	granted   = "a map is granted to readers"
	withdrawn = "a grant of a map is withdrawn"
)

// LogGrants says who may read the maps of an application now and could not before, and who may not any more: by its own version, and by each
// beside it that was sealed before. Either payload may be nil.
func LogGrants(before, after *Payload, info func(message string, fields ...any)) {
	logGrants(before, after, info)
	if before == nil || after == nil {
		return
	}
	was := map[int64]Payload{}
	for _, v := range before.Versions() {
		was[v.VersionSerial()] = v
	}
	for _, v := range after.Beside() {
		if old, isKnown := was[v.VersionSerial()]; isKnown {
			logGrants(&old, v, info)
		}
	}
}

// logGrants compares two payloads of one version, or the own versions of two.
func logGrants(before, after *Payload, info func(message string, fields ...any)) {
	had, has := grantsOf(before), grantsOf(after)
	say := func(message string, by *Payload, all, others map[string][]any) {
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if _, isBoth := others[key]; !isBoth {
				info(message, append([]any{"application", by.Application.String(), "version", by.VersionSerial()}, all[key]...)...)
			}
		}
	}
	say(withdrawn, before, had, has)
	say(granted, after, has, had)
}

// grantsOf are the grants of a payload as fields of a log, by what they are compared by.
func grantsOf(p *Payload) map[string][]any {
	all := map[string][]any{}
	if p == nil || p.Tombstone {
		return all
	}
	add := func(name, access string, g v1alpha1.MapExport) {
		key, _ := json.Marshal([]any{name, access, g})
		all[string(key)] = []any{"object", p.ObjectDigest, "map", name, "access", access, "namespaces", g.Namespaces, "serviceAccounts", g.ServiceAccounts,
			"groups", g.Groups}
	}
	for name, m := range p.Maps {
		for _, g := range m.Export {
			add(name, string(g.Access), g)
		}
		if m.Metrics != nil {
			add(name, "Metrics", v1alpha1.MapExport{})
		}
	}
	return all
}
