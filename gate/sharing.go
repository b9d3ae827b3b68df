package gate

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/access"
	"github.com/skep-dev/skep/policies"
)

// shapeSharing denies maps that are shared with nobody in particular, and what a
// definition says of a map that is another application's. Whether the two applications
// agree is seen on each node, which has both intents.
func shapeSharing(r *denials, id v1alpha1.Identity, maps map[string]v1alpha1.Map) {
	const rule = "shape/maps"
	shapeMetrics(r, maps)
	for _, name := range sortedKeys(maps) {
		m, at := maps[name], "spec.maps."+name
		if n := len(m.SharedWith); n > v1alpha1.MaxSharedWith {
			r.add(rule, at+".sharedWith", fmt.Sprintf("list at most %d applications", v1alpha1.MaxSharedWith), "%d applications are listed", n)
		}
		seen := map[string]bool{}
		for i, other := range m.SharedWith {
			if other == "" || other == id.Name || seen[other] {
				r.add(rule, fmt.Sprintf("%s.sharedWith[%d]", at, i), "name each other application once", "%q is no other application, or is listed twice", other)
			}
			seen[other] = true
		}
		shapeExports(r, id, at+".export", m.Export)
		if m.From == nil {
			continue
		}
		switch {
		case m.From.Application == "" || m.From.Map == "":
			r.add(rule, at+".from", "name the application and its map", "%q and %q do not name a map of an application", m.From.Application, m.From.Map)
		case m.From.Application == id.Name:
			r.add(rule, at+".from.application", "name another application, or remove from", "it is this application itself")
		}
		if other := besideFrom(m); other != "" {
			r.add(rule, at+"."+other, "remove "+other+", or set it there",
				"the map belongs to application %s, and only its definition has %s", m.From.Application, other)
		}
	}
}

// besideFrom names a field that a map of another application does not have; empty where
// none is set.
func besideFrom(m v1alpha1.Map) string {
	switch {
	case m.MaxEntries != nil:
		return "maxEntries"
	case m.ValueSize != nil:
		return "valueSize"
	case len(m.Contents) > 0:
		return "contents"
	case m.OnUpdate != "":
		return "onUpdate"
	case len(m.SharedWith) > 0:
		return "sharedWith"
	case len(m.Export) > 0:
		return "export"
	case m.Metrics != nil:
		return "metrics"
	}
	return ""
}

// pinnedWarnings say of each map that the object has pinned by its name that libbpf would share it with
// every object which pins the same name, and that Skep makes one for this application alone.
func pinnedWarnings(i Inspected) []policies.Reason {
	var r denials
	maps := i.req.Application.Body().Maps
	for _, m := range i.facts.Maps {
		if said := maps[m.Name]; !m.Pinned || said.From != nil || len(said.SharedWith) > 0 {
			continue
		}
		at := "spec.maps." + m.Name
		r.add("maps/pinned", at, fmt.Sprintf("to share it, list the other applications in %[1]s.sharedWith here and name this one in their maps by from; "+
			"else take pinning out of the map", at),
			"the object pins map %s by its name (LIBBPF_PIN_BY_NAME), so that other objects find it: Skep pins it for this application alone, and shares what "+
				"definitions say", m.Name)
	}
	return r.reasons
}

// fitSharing denies to share what belongs to the programs of one application.
func fitSharing(r *denials, m bytecode.Map, override v1alpha1.Map) {
	var field string
	switch {
	case override.From != nil:
		field = "from"
	case len(override.SharedWith) > 0:
		field = "sharedWith"
	default:
		return
	}
	why := ""
	switch {
	case strings.HasPrefix(m.Name, access.USDT):
		why = "it has the arguments of this application's own probes"
	case m.Type == ebpf.ProgramArray.String():
		why = "it has the programs of one version, and is made anew for every version"
	case m.Type == ebpf.ArrayOfMaps.String() || m.Type == ebpf.HashOfMaps.String():
		why = "it has maps of its own application; share those"
	case m.Type == ebpf.StructOpsMap.String():
		why = "it is a set of functions for the kernel"
	}
	if why != "" {
		r.add("inspect/map", "spec.maps."+m.Name+"."+field, "remove "+field, "map %s of type %s cannot be shared: %s", m.Name, m.Type, why)
	}
}
