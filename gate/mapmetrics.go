package gate

import (
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/access"
	"github.com/skep-dev/skep/bytecode/values"
	"github.com/skep-dev/skep/bytecode/values/series"
)

// shapeMetrics denies metrics that no map could have, and series of one name from two maps: a series has one source.
func shapeMetrics(r *denials, maps map[string]v1alpha1.Map) {
	of := map[string]string{}
	for _, name := range sortedKeys(maps) {
		m := maps[name].Metrics
		if m == nil {
			continue
		}
		addMisfits(r, "shape/maps", name, series.Shape(m))
		names := series.Names(m)
		for _, one := range sortedKeys(names) {
			if other, isTaken := of[one]; isTaken {
				r.add("shape/maps", "spec.maps."+name+".metrics.name", "give each map of the application another name", "map %s has series %q already", other, one)
			}
			of[one] = name
		}
	}
}

// fitMetrics denies metrics that ask for what the types of their map do not have, by the code that reads it on the node.
func fitMetrics(r *denials, spec *ebpf.CollectionSpec, maps map[string]v1alpha1.Map) {
	for _, name := range sortedKeys(maps) {
		if m := maps[name]; m.Metrics != nil && m.From == nil {
			ms := spec.Maps[name]
			_, misfits := series.New(m.Metrics, series.Map{Type: ms.Type, Key: ms.Key, Value: ms.Value, KeySize: ms.KeySize, ValueSize: ms.ValueSize,
				Order: spec.ByteOrder})
			addMisfits(r, "inspect/map", name, misfits)
		}
	}
}

// fitMetered denies metrics of a map that user space may not read, and of one that no node makes. Metrics make no map, as grants do not.
func fitMetered(r *denials, name string, override v1alpha1.Map, object, loaded []bytecode.Map) {
	isIt := func(m bytecode.Map) bool { return m.Name == name }
	i := slices.IndexFunc(object, isIt)
	if i < 0 || override.Metrics == nil {
		return
	}
	at := "spec.maps." + name + ".metrics"
	if !slices.ContainsFunc(loaded, isIt) {
		r.add("inspect/map", at, "list a program that uses it, or set spec.maps."+name+".onUpdate to "+string(v1alpha1.MapKeep)+", which has it made",
			"map %s is not made: no listed program refers to it", name)
	}
	if !slices.ContainsFunc(series.Readable(), func(t ebpf.MapType) bool { return t.String() == object[i].Type }) {
		return // fitMetrics names the types that have metrics.
	}
	if why, _ := access.Denied(v1alpha1.MapRead, access.Map{Name: name, Type: object[i].Type, Flags: object[i].Flags}); why != "" {
		r.add("inspect/map", at, "remove metrics", "map %s of type %s has no metrics: %s", name, object[i].Type, why)
	}
}

// addMisfits adds what is wrong with the metrics of a map.
func addMisfits(r *denials, rule, name string, misfits []*values.FieldError) {
	for _, misfit := range misfits {
		at := "spec.maps." + name + ".metrics"
		if misfit.Field != "" {
			at += "." + misfit.Field
		}
		r.add(rule, at, misfit.Fix, "%s", misfit.Reason)
	}
}
