package schemas_test

import (
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// mutate returns the document once for each of its structs, with a field in it
// that no kind knows. Structs below the free fields take any field.
func mutate(t *testing.T, doc string, free []string) []string {
	t.Helper()
	var docs []string
	for at := 0; ; at++ {
		var v any
		if err := yaml.Unmarshal([]byte(doc), &v); err != nil {
			t.Fatal(err)
		}
		n := at
		if !inject(v, free, &n) {
			return docs
		}
		data, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, string(data))
	}
}

// inject puts the field into the n-th struct of v, and reports whether there is
// one.
func inject(v any, free []string, n *int) bool {
	switch v := v.(type) {
	case map[string]any:
		if *n == 0 {
			v["unheardOf"] = "x"
			return true
		}
		*n--
		for _, key := range sortedKeys(v) {
			if !slices.Contains(free, key) && inject(v[key], free, n) {
				return true
			}
		}
	case []any:
		for _, e := range v {
			if inject(e, free, n) {
				return true
			}
		}
	}
	return false
}

// sortedKeys are the keys of m in order, so that the n-th struct is the same
// at every call.
func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
