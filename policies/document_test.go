package policies_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/policies"
)

// filled returns a value whose every field is set, lists and maps with one
// member each.
func filled(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	switch t {
	case reflect.TypeFor[time.Time]():
		return reflect.ValueOf(time.Unix(1, 0))
	case reflect.TypeFor[json.RawMessage]():
		return reflect.ValueOf(json.RawMessage(`{"any": 1}`))
	case reflect.TypeFor[apiextensionsv1.JSON]():
		return reflect.ValueOf(apiextensionsv1.JSON{Raw: []byte(`{"any": 1}`)})
	}
	switch t.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		v.Elem().Set(filled(t.Elem()))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Slice:
		v.Set(reflect.Append(v, filled(t.Elem())))
	case reflect.Map:
		v.Set(reflect.MakeMap(t))
		v.SetMapIndex(filled(t.Key()), filled(t.Elem()))
	case reflect.Struct:
		for i := range t.NumField() {
			if t.Field(i).IsExported() {
				v.Field(i).Set(filled(t.Field(i).Type))
			}
		}
	}
	return v
}

// document is the input as Rego sees it, decoded.
func document(t *testing.T, in policies.Input) any {
	t.Helper()
	body, err := in.Document()
	if err != nil {
		t.Fatal(err)
	}
	return decoded(t, body)
}

func decoded(t *testing.T, body []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// problems compares a document with a schema: fields that the schema does not
// have, required ones that are missing, values of another type, and fields of
// the schema that the document never shows, where it is to show all.
func problems(path string, schema map[string]any, value any, whole bool) []string {
	var found []string
	switch want := schema["type"]; v := value.(type) {
	case map[string]any:
		if want == nil {
			return nil
		}
		if want != "object" {
			return []string{fmt.Sprintf("%s is an object, want %v", path, want)}
		}
		properties, _ := schema["properties"].(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			sub, ok := properties[key].(map[string]any)
			if !ok {
				sub, ok = schema["additionalProperties"].(map[string]any)
			}
			if !ok {
				found = append(found, fmt.Sprintf("%s.%s is not in the schema", path, key))
				continue
			}
			found = append(found, problems(path+"."+key, sub, v[key], whole)...)
		}
		required, _ := schema["required"].([]any)
		for key := range properties {
			_, has := v[key]
			if !has && (whole || slices.Contains(required, any(key))) {
				found = append(found, fmt.Sprintf("%s.%s is not in the document", path, key))
			}
		}
	case []any:
		if want != "array" {
			return []string{fmt.Sprintf("%s is an array, want %v", path, want)}
		}
		for i, item := range v {
			found = append(found, problems(fmt.Sprintf("%s[%d]", path, i), schema["items"].(map[string]any), item, whole)...)
		}
	case nil:
		return []string{path + " is null"}
	default:
		kinds := map[string]any{"string": "string", "float64": "integer", "bool": "boolean"}
		if got := kinds[fmt.Sprintf("%T", v)]; want != nil && got != want {
			return []string{fmt.Sprintf("%s is %v, want %v", path, got, want)}
		}
	}
	return found
}

func TestTheSchemaIsThatOfTheDocument(t *testing.T) {
	schema := decoded(t, policies.InputSchema()).(map[string]any)
	full := filled(reflect.TypeFor[policies.Input]()).Interface().(policies.Input)
	full.Image.Labels["io.ebpf.programs"] = "no JSON"
	for _, p := range problems("input", schema, document(t, full), true) {
		t.Error("with everything set:", p)
	}
	for _, p := range problems("input", schema, document(t, policies.Input{}), false) {
		t.Error("with nothing set:", p)
	}
	sparse := policies.Input{Bytecode: bytecode.Facts{Programs: make([]bytecode.Program, 1), Maps: make([]bytecode.Map, 1)}}
	for _, p := range problems("input", schema, document(t, sparse), false) {
		t.Error("with empty facts:", p)
	}
}

func TestTheSchemaLeavesNothingOpen(t *testing.T) {
	if n := bytes.Count(policies.InputSchema(), []byte(`"properties"`)); n < 15 ||
		n != bytes.Count(policies.InputSchema(), []byte(`"additionalProperties": false`)) {
		t.Errorf("%d objects list their fields, and not all of them forbid others", n)
	}
}

func TestDocumentSetsWhatIsItsOwn(t *testing.T) {
	in := input(func(in *policies.Input) {
		in.Version, in.Namespace.Name = "v0", ""
		in.Image.Labels = map[string]string{"io.ebpf.programs": `{"other": "xdp"}`}
		in.Image.Mismatches = []bytecode.Mismatch{{Message: "forged"}}
	})
	body, err := in.Document()
	if err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]bool{
		`"version":"v1","app`: true, "forged": false, `io.ebpf.programs[\"other\"]`: true, `"parameters":{}`: true, `"namespace":{"name":"team-a",`: true,
	} {
		if strings.Contains(string(body), part) != want {
			t.Errorf("the document having %s is not %v: %s", part, want, body)
		}
	}
	if in.Version != "v0" || in.Image.Mismatches[0].Message != "forged" {
		t.Error("the input itself was changed")
	}
}

func TestLabelsThatLieAreRefused(t *testing.T) {
	set := compile(t)
	for labels, want := range map[string]string{
		"":                               "",
		`{"count": "xdp"}`:               "",
		`{"count": "kprobe"}`:            "baseline/labels",
		`{"count": "xdp", "more": "tc"}`: "baseline/labels",
		`{}`:                             "",
		`xdp`:                            "baseline/labels",
	} {
		d := decide(t, set, input(func(in *policies.Input) {
			if labels != "" {
				in.Image.Labels = map[string]string{"io.ebpf.programs": labels}
			}
		}))
		if got := ids(d.Denied); got != want {
			t.Errorf("label %s is denied by %q, want %q", labels, got, want)
		}
	}
}
