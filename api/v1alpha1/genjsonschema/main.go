// Command genjsonschema makes the JSON Schema of what people write, for editors of YAML, from the CRDs. Rules in CEL have no equal there:
// skep vet checks them.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/api/v1alpha1/crdfiles"
)

// written are the kinds that people write; Skep writes the others.
var written = []string{
	v1alpha1.KindBpfApplication, v1alpha1.KindClusterBpfApplication, v1alpha1.KindBpfPolicy, v1alpha1.KindClusterBpfPolicy, v1alpha1.KindBpfSigner,
	v1alpha1.KindCueArtifact,
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: genjsonschema DIR FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "genjsonschema:", err)
		os.Exit(1)
	}
}

// run writes the schema of the CRDs in dir.
func run(dir, file string) error {
	all, err := crdfiles.Read(dir)
	if err != nil {
		return err
	}
	definitions := map[string]any{}
	for _, crd := range all {
		kind := crd.Spec.Names.Kind
		if !slices.Contains(written, kind) {
			continue
		}
		if definitions[kind], err = definition(kind, crd.Spec.Versions[0].Schema.OpenAPIV3Schema); err != nil {
			return fmt.Errorf("read %s: %w", kind, err)
		}
	}
	out, err := json.MarshalIndent(document(definitions), "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(out, '\n'), 0o644) //nolint:gosec // a file of the source tree
}

// object is a JSON object.
type object = map[string]any

// document has a definition decide by its kind.
func document(definitions object) object {
	var each []object
	for _, kind := range written {
		each = append(each, object{"if": object{"properties": object{"kind": object{"const": kind}}}, "then": object{"$ref": "#/definitions/" + kind}})
	}
	return object{
		"$schema": "http://json-schema.org/draft-07/schema#", "title": "Definitions, policies and signers of Skep", "type": "object",
		"required":   []string{"apiVersion", "kind", "metadata"},
		"properties": object{"apiVersion": object{"const": v1alpha1.APIVersion}, "kind": object{"enum": written}},
		"allOf":      each, "definitions": definitions,
	}
}

// definition is the schema of one kind. Its status, which Skep writes, may be anything.
func definition(kind string, schema *apiextensionsv1.JSONSchemaProps) (any, error) {
	for _, free := range []string{"apiVersion", "kind", "status"} {
		schema.Properties[free] = apiextensionsv1.JSONSchemaProps{}
	}
	data, err := json.Marshal(schema)
	if err != nil {
		return nil, err
	}
	var plain object
	if err := json.Unmarshal(data, &plain); err != nil {
		return nil, err
	}
	if plain, is := convert(plain).(object); is {
		plain["title"] = kind
		return plain, nil
	}
	return nil, fmt.Errorf("%s is no object", kind)
}

// convert takes out what is Kubernetes' alone, and closes objects whose fields are listed: an API server drops unknown fields, and an editor
// should show them.
func convert(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = convert(v[i])
		}
	case object:
		open := v["x-kubernetes-preserve-unknown-fields"] == true
		for key, below := range v {
			if len(key) > 2 && key[:2] == "x-" {
				delete(v, key)
				continue
			}
			v[key] = convert(below)
		}
		if _, has := v["properties"]; has && !open && v["type"] == "object" && v["additionalProperties"] == nil {
			v["additionalProperties"] = false
		}
	}
	return v
}
