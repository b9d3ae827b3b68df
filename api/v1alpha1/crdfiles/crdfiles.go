// Package crdfiles reads the CRDs of a folder for the programs that make a page and a schema of them. It must not change them.
package crdfiles

import (
	"fmt"
	"os"
	"path/filepath"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// Read returns the CRDs of a folder, in the order of their files. Each has one version.
func Read(dir string) (all []apiextensionsv1.CustomResourceDefinition, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("there is no CRD in %s", dir)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &crd); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if n := len(crd.Spec.Versions); n != 1 {
			return nil, fmt.Errorf("%s has %d versions: one is expected", crd.Spec.Names.Kind, n)
		}
		all = append(all, crd)
	}
	return all, nil
}
