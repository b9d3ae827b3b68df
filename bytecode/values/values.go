// Package values turns the plain values of a definition into the bytes of an
// object's global variables, by the object's own BTF.
//
// It is pure: it changes the parsed object it is given and touches neither
// kernel nor file. The gate calls it to reject early what the agent would
// reject late.
package values

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Apply sets the variables in the object. It checks all of them and returns
// every rejection, each naming the variable, what is wrong and what would fix
// it; the object is then not to be used.
func Apply(spec *ebpf.CollectionSpec, variables map[string]apiextensionsv1.JSON) error {
	names := make([]string, 0, len(variables))
	for n := range variables {
		names = append(names, n)
	}
	slices.Sort(names)
	var errs []error
	for _, n := range names {
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
		return errors.New("the object has no BTF for it, so its type is not known; compile with -g")
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
// others see, and the compiler may have taken them apart.
func unknown(spec *ebpf.CollectionSpec, name string) error {
	if spec.Types != nil {
		for t, err := range spec.Types.All() {
			if err != nil {
				break
			}
			if v, ok := t.(*btf.Var); ok && v.Name == name && v.Linkage == btf.StaticVar {
				return errors.New("it is static, and the compiler may have folded it; declare it const volatile or volatile without static")
			}
		}
	}
	if len(spec.Variables) == 0 {
		return errors.New("the object has no variable of that name, nor any other")
	}
	list := make([]string, 0, len(spec.Variables))
	for n := range spec.Variables {
		list = append(list, n)
	}
	slices.Sort(list)
	return fmt.Errorf("the object has no variable of that name; it has %s", strings.Join(list, ", "))
}
