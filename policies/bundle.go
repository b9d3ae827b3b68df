package policies

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
)

// Bundles returns the names that Bundle takes: the profiles, and library for what policies
// import alone.
func Bundles() []string { return append(Profiles(), "library") }

// Bundle returns the shipped Rego as an OPA bundle, .tar.gz, of a revision: for a profile
// what it is compiled with in Skep, and for library data.skep.lib and data.skep.evidence.
// The tables that all of them read are in it as data. Rego and data stand as they are in
// the binary; the same revision gives the same bytes.
func Bundle(name, revision string) ([]byte, error) {
	if !slices.Contains(Bundles(), name) {
		return nil, fmt.Errorf("make bundle %q: there are %v", name, Bundles())
	}
	data, err := baseData()
	if err != nil {
		return nil, err
	}
	roots := append(sortedKeys(data), "skep")
	b := bundle.Bundle{Data: data, Manifest: bundle.Manifest{Revision: revision, Roots: &roots}}
	b.Manifest.SetRegoVersion(ast.RegoV1)
	sources := Library()
	maps.Copy(sources, profileSources(name))
	for _, file := range sortedKeys(sources) {
		b.Modules = append(b.Modules, bundle.ModuleFile{URL: file, Path: file, Raw: []byte(sources[file])})
	}
	var out bytes.Buffer
	if err := bundle.NewWriter(&out).DisableFormat(true).Write(b); err != nil {
		return nil, fmt.Errorf("make bundle %s: %w", name, err)
	}
	return out.Bytes(), nil
}
