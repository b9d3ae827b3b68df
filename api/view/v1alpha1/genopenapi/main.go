// Command genopenapi makes the OpenAPI document of view.skep.dev, which kubectl explain shows, from the comments of its types. Its
// standard input has schemas as controller-gen writes them for CRDs, which these types are not.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: genopenapi FILE")
		os.Exit(2)
	}
	if err := run(os.Stdin, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "genopenapi:", err)
		os.Exit(1)
	}
}

// object is a JSON object.
type object = map[string]any

// run writes the document of schemas.
func run(crds io.Reader, file string) error {
	written, err := io.ReadAll(crds)
	if err != nil {
		return err
	}
	paths, schemas := object{}, object{}
	for text := range bytes.SplitSeq(written, []byte("\n---\n")) {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			return err
		}
		kinds := map[string]string{crd.Spec.Names.Plural: crd.Spec.Names.Kind}
		switch crd.Spec.Names.Kind {
		case view.KindBpfAttachment, v1alpha1.KindBpfApplication:
			// Those of the cluster have the same fields.
			kinds["cluster"+crd.Spec.Names.Plural] = "Cluster" + crd.Spec.Names.Kind
		}
		if err := add(paths, schemas, crd.Spec.Names.Kind, kinds, crd.Spec.Versions[0].Schema.OpenAPIV3Schema); err != nil {
			return err
		}
	}
	out, err := json.MarshalIndent(object{"openapi": "3.0.0", "info": object{"title": "Skep", "version": view.Version}, "paths": paths,
		"components": object{"schemas": schemas}}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(out, '\n'), 0o644) //nolint:gosec // a file of the source tree
}

// add adds a schema, and a path for each of its resources, by which kubectl finds it.
func add(paths, schemas object, name string, kinds map[string]string, schema *apiextensionsv1.JSONSchemaProps) error {
	data, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	var plain object
	if err := json.Unmarshal(data, &plain); err != nil {
		return err
	}
	full := "dev.skep.view." + view.Version + "." + name
	var all []object
	for _, resource := range slices.Sorted(maps.Keys(kinds)) {
		of := object{"group": view.Group, "version": view.Version, "kind": kinds[resource]}
		all = append(all, of)
		paths["/apis/"+view.GroupVersion+"/"+resource] = object{"get": object{
			"x-kubernetes-action": "list", "x-kubernetes-group-version-kind": of,
			"responses": object{"200": object{"description": "OK", "content": object{"application/json": object{
				"schema": object{"type": "object", "properties": object{"items": object{"type": "array", "items": object{"$ref": "#/components/schemas/" + full}}}},
			}}}},
		}}
	}
	plain["x-kubernetes-group-version-kind"] = all
	schemas[full] = plain
	return nil
}
