package gate

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/bytecode/values"
	"github.com/skep-dev/skep/policies"
)

// incompatibleVariables denies values that the object's variables cannot take, by the same
// code that sets them on the node.
func incompatibleVariables(object []byte, variables map[string]apiextensionsv1.JSON) []policies.Reason {
	if len(variables) == 0 {
		return nil
	}
	var r denials
	read, err := objectfile.Read(object)
	if err != nil {
		r.add("inspect/variable", "spec.variables", "build the object anew", "the object cannot be read: %v", err)
		return r.reasons
	}
	for _, name := range sortedKeys(variables) {
		one := map[string]apiextensionsv1.JSON{name: variables[name]}
		if err := values.Apply(read.Spec, one); err != nil {
			r.add("inspect/variable", "spec.variables."+name, "see skep image inspect for the object's variables and their types", "%v", err)
		}
	}
	return r.reasons
}
