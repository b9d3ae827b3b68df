package gate

import (
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/bytecode/values"
	"github.com/skep-dev/skep/policies"
)

// setsValues reports whether a definition has values that the object has to have a place
// for, so that the object is needed.
func setsValues(spec *v1alpha1.BpfApplicationSpec) bool {
	if len(spec.Variables) > 0 {
		return true
	}
	for _, m := range spec.Maps {
		if len(m.Contents) > 0 || m.Metrics != nil {
			return true
		}
	}
	return false
}

// incompatibleValues denies values that the object's variables and maps cannot take, by the
// same code that sets them on the node.
func incompatibleValues(object []byte, definition *v1alpha1.BpfApplicationSpec) []policies.Reason {
	if !setsValues(definition) {
		return nil
	}
	var r denials
	read, err := objectfile.Read(object)
	if err != nil {
		r.add("inspect/object", "spec.bytecode.image", "build the object anew", "the object cannot be read: %v", err)
		return r.reasons
	}
	for _, name := range sortedKeys(definition.Variables) {
		one := map[string]apiextensionsv1.JSON{name: definition.Variables[name]}
		if err := values.Apply(read.Spec, one); err != nil {
			r.add("inspect/variable", "spec.variables."+name,
				"see the object's variables and their types: `skep image inspect "+definition.Bytecode.Image+"`", "%v", err)
		}
	}
	has := map[string]v1alpha1.Map{}
	for name, m := range definition.Maps {
		// fitMaps denies those that the object lacks.
		if ms := read.Spec.Maps[name]; ms != nil && !strings.HasPrefix(name, ".") {
			values.Resize(ms, m)
			has[name] = m
		}
	}
	for _, misfit := range values.Contents(read.Spec, has, definition.Programs) {
		r.add("inspect/map", "spec."+misfit.Field, misfit.Fix, "%s", misfit.Reason)
	}
	fitMetrics(&r, read.Spec, has)
	return r.reasons
}
