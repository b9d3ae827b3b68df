package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// reserved is a field named by one of CEL's reserved words without the escape
// that API servers ask for (__function__), which those before 1.31 insist on: the
// CRD could not be installed.
var reserved = regexp.
	MustCompile(`\.\s*(as|break|const|continue|else|false|for|function|if|import|in|let|loop|namespace|null|package|return|true|var|void|while)\b`)

func TestRulesOfCRDsEscapeReservedWords(t *testing.T) {
	files, err := filepath.Glob("../../charts/skep/files/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d CRDs, %v", len(files), err)
	}
	rules := 0
	for _, file := range files {
		var crd apiextensionsv1.CustomResourceDefinition
		body, err := os.ReadFile(file)
		if err == nil {
			err = yaml.UnmarshalStrict(body, &crd)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range crd.Spec.Versions {
			walk(v.Schema.OpenAPIV3Schema, func(s *apiextensionsv1.JSONSchemaProps) {
				for _, rule := range s.XValidations {
					rules++
					if word := reserved.FindStringSubmatch(rule.Rule); word != nil {
						t.Errorf("%s: %q names a field by a reserved word: write __%s__", filepath.Base(file), rule.Rule, word[1])
					}
				}
			})
		}
	}
	if rules == 0 {
		t.Error("no rule was looked at")
	}
}

// walk visits a schema and all that is in it.
func walk(s *apiextensionsv1.JSONSchemaProps, visit func(*apiextensionsv1.JSONSchemaProps)) {
	if s == nil {
		return
	}
	visit(s)
	for _, p := range s.Properties {
		walk(&p, visit)
	}
	if s.Items != nil {
		walk(s.Items.Schema, visit)
	}
	if s.AdditionalProperties != nil {
		walk(s.AdditionalProperties.Schema, visit)
	}
}
