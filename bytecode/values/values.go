// Package values turns the plain values of a definition into the bytes of an
// object's global variables and of the entries of its maps, by the object's own BTF, and such
// bytes of variables into plain values.
//
// It is pure: it changes the parsed object it is given and touches neither
// kernel nor file. The gate calls it to reject early what the agent would
// reject late.
package values

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/bytecode/objectfile"
)

// Apply sets the variables in the object. It checks all of them and returns
// every rejection, each naming the variable, what is wrong and what would fix
// it; the object is then not to be used.
func Apply(spec *ebpf.CollectionSpec, variables map[string]apiextensionsv1.JSON) error {
	var errs []error
	for _, n := range sorted(variables) {
		if err := set(spec, n, variables[n].Raw); err != nil {
			errs = append(errs, fmt.Errorf("variables.%s: %w", n, err))
		}
	}
	return errors.Join(errs...)
}

func set(spec *ebpf.CollectionSpec, name string, raw []byte) error {
	v, ok := spec.Variables[name]
	if !ok {
		return unknown(spec, name)
	}
	if v.Type == nil {
		value, err := hexBytes(v.Size(), raw)
		if err != nil {
			return fmt.Errorf("%w; write its %d bytes as they are in memory as hex digits, or compile with -g", err, v.Size())
		}
		v.Value = value
		return nil
	}
	value, err := Encode(v.Type.Type, spec.ByteOrder, raw)
	if err != nil {
		return err
	}
	if len(value) != int(v.Size()) {
		return fmt.Errorf("its BTF says %d bytes and its symbol %d; compile the object anew", len(value), v.Size())
	}
	v.Value = value
	return nil
}

// unknown says why a name cannot be set: static variables have no symbol that
// others see, and the compiler may have taken them apart; the kernel sets those of
// __kconfig.
func unknown(spec *ebpf.CollectionSpec, name string) error {
	if isStatic(spec, name) {
		return errors.New("it is static, and the compiler may have folded it; declare it const volatile or volatile without static")
	}
	if ds := objectfile.Kconfig(spec); ds != nil && slices.ContainsFunc(ds.Vars, func(v btf.VarSecinfo) bool { return v.Type.TypeName() == name }) {
		return errors.New("it is a __kconfig variable, which has the value of each node's kernel; declare a variable of your own")
	}
	if len(spec.Variables) == 0 {
		return errors.New("the object has no variable of that name, nor any other")
	}
	return fmt.Errorf("the object has no variable of that name; it has %s", keys(spec.Variables))
}

// isStatic reports whether the object has a static variable of the name.
func isStatic(spec *ebpf.CollectionSpec, name string) bool {
	if spec.Types == nil {
		return false
	}
	for t, err := range spec.Types.All() {
		if err != nil {
			return false
		}
		if v, ok := t.(*btf.Var); ok && v.Name == name && v.Linkage == btf.StaticVar {
			return true
		}
	}
	return false
}
