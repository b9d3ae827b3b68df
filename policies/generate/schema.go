package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skep-dev/skep/policies"
)

// schema describes policies.Input as it is marshalled. No object may have a
// field that the Go types do not have, which is what lets opa check find a
// misspelt one.
func schema() ([]byte, error) {
	root, err := describe(reflect.TypeFor[policies.Input]())
	if err != nil {
		return nil, err
	}
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["$id"] = "https://skep.dev/schemas/policy-input/" + policies.InputVersion + ".json"
	root["title"] = "What a Skep policy sees as input"
	return indent(root)
}

// describe returns the schema of one type.
func describe(t reflect.Type) (map[string]any, error) {
	switch t {
	case reflect.TypeFor[json.RawMessage](), reflect.TypeFor[apiextensionsv1.JSON]():
		return map[string]any{}, nil
	case reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}, nil
	case reflect.TypeFor[metav1.Duration]():
		return map[string]any{"type": "string"}, nil
	case reflect.TypeFor[intstr.IntOrString]():
		return map[string]any{"anyOf": []any{map[string]any{"type": "integer"}, map[string]any{"type": "string"}}}, nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return describe(t.Elem())
	case reflect.String:
		return map[string]any{"type": "string"}, nil
	case reflect.Bool:
		return map[string]any{"type": "boolean"}, nil
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer"}, nil
	case reflect.Slice:
		items, err := describe(t.Elem())
		return map[string]any{"type": "array", "items": items}, err
	case reflect.Map:
		values, err := describe(t.Elem())
		return map[string]any{"type": "object", "additionalProperties": values}, err
	case reflect.Struct:
		return describeStruct(t)
	}
	return nil, fmt.Errorf("no schema for %s", t)
}

// describeStruct lists the fields by their JSON names, without those that JSON does not have; those
// that are never left out are required.
func describeStruct(t reflect.Type) (map[string]any, error) {
	properties, required := map[string]any{}, []string{}
	for field := range fields(t) {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if name == "" {
			return nil, fmt.Errorf("%s.%s has no name in JSON", t, field.Name)
		}
		property, err := describe(field.Type)
		if err != nil {
			return nil, fmt.Errorf("%s.%s: %w", t, field.Name, err)
		}
		properties[name] = property
		if !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	return map[string]any{"type": "object", "properties": properties, "required": required, "additionalProperties": false}, nil
}

// fields ranges over the exported fields of a struct.
func fields(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && !yield(f) {
				return
			}
		}
	}
}
