package schemas

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cuelang.org/go/cue"
	"github.com/google/go-cmp/cmp"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// newTestScope builds the schema as the renderer does.
func newTestScope(t *testing.T) *scope {
	t.Helper()
	inst, err := schemaInstance()
	if err != nil {
		t.Fatal(err)
	}
	r := newRenderer(nil, nil, &bytes.Buffer{})
	r.schema = inst
	s := r.newScope()
	if err := s.schema.Validate(); err != nil {
		t.Fatal(err)
	}
	return s
}

// render renders files in this process.
func render(t *testing.T, files map[string][]byte, units ...unit) outcome {
	t.Helper()
	var out bytes.Buffer
	if err := newRenderer(files, nil, &out).run(units); err != nil {
		t.Fatal(err)
	}
	got, err := readOutcome(&out, units)
	if err != nil || got.done != len(units) {
		t.Fatalf("%d of %d units, %v", got.done, len(units), err)
	}
	return got
}

func TestSchemaHasTheHooksOfTheTable(t *testing.T) {
	s := newTestScope(t)
	var all, namespaced, verdicts []string
	for _, h := range hook.All() {
		all = append(all, h.Name)
		if h.Namespaceable {
			namespaced = append(namespaced, h.Name)
		}
	}
	for _, v := range hook.XDPVerdicts() {
		verdicts = append(verdicts, v.Name)
	}
	for def, want := range map[string][]string{"#Hook": all, "#NamespacedHook": namespaced, "#Verdict": verdicts} {
		if diff := cmp.Diff(want, alternatives([]cue.Value{s.schema.LookupPath(cue.ParsePath(def))})); diff != "" {
			t.Errorf("%s (-table +schema), run go generate ./schemas:\n%s", def, diff)
		}
	}
	rows := fieldNames([]cue.Value{s.schema.LookupPath(cue.ParsePath("#Hooks"))})
	slices.Sort(all)
	if diff := cmp.Diff(all, rows); diff != "" {
		t.Errorf("#Hooks (-table +schema):\n%s", diff)
	}
}

// shapeField is the field that each shape of target has, told apart from what
// the schema and the gate say.
var shapeField = map[hook.Shape]string{
	hook.NetworkDevice: "interfaces", hook.KernelFunction: "functions", hook.Tracepoint: "tracepoint",
	hook.Cgroup: "cgroup", hook.UserBinary: "binary", hook.NetworkNamespace: "networkNamespace",
	hook.PerfEvent: "perfEvent",
}

func TestEveryHookTakesTheFieldsOfItsRowAndNoOthers(t *testing.T) {
	values := map[string]string{
		"interfaces": "{primary: true}", "functions": "{names: [f]}", "tracepoint": "a", "cgroup": "/", "binary": "{path: /b, symbol: s}",
		"networkNamespace": "/run/netns/x", "netfilter": "{family: IPv4, hook: LocalIn}", "perfEvent": "{event: cpu-clock, frequency: 99}", "priority": "1",
		"proceedOn": "[Pass]", "afterNamespaces": "true", "position": "First", "xdpMode": "Native", "pods": "{}",
	}
	type combination struct {
		hook, field, kind string
	}
	want, files := map[combination]bool{}, map[string][]byte{}
	var units []unit
	for _, h := range hook.All() {
		var docs strings.Builder
		for field, value := range values {
			takes := shapeField[h.Shape] == field || field == "functions" && h.Name == "lsm_cgroup" ||
				(field == "priority" || field == "afterNamespaces") && h.Sharing == hook.Ordered && h.Name != "netfilter" || field == "netfilter" && h.Name == field ||
				field == "position" && strings.HasPrefix(h.Name, "tcx/") || (field == "proceedOn" || field == "xdpMode") && h.Name == "xdp" ||
				field == "pods" && h.Namespaceable
			if field == "binary" && strings.HasSuffix(h.Name, ".multi") {
				value = "{path: /b, symbols: {names: [s]}}"
			} else if field == "binary" && h.Name == "usdt" {
				value = "{path: /b, usdt: {provider: p, name: m}}"
			}
			attach := "hook: " + h.Name + ", " + field + ": " + value
			if h.Name == "tracepoint" && field == "tracepoint" {
				attach += "/b"
			}
			if own := shapeField[h.Shape]; own != field && (field != "pods" && (own == "interfaces" || own == "cgroup") || own == "perfEvent") {
				attach += ", " + own + ": " + values[own]
			}
			if h.Name == "netfilter" && field != "netfilter" {
				attach += ", netfilter: " + values["netfilter"]
			}
			for _, kind := range []string{v1alpha1.KindBpfApplication, v1alpha1.KindClusterBpfApplication} {
				fmt.Fprintf(&docs, "---\napiVersion: skep.dev/v1alpha1\nkind: %s\nmetadata: {name: %s}\nspec: {bytecode: {image: x}, programs: [{name: f, attach: "+
					"[{%s}]}]}\n",
					kind, escape(h.Name+" "+field), attach)
				isHeld := field == "pods" || h.ReachesNode() && field != "position" && field != "afterNamespaces"
				want[combination{escape(h.Name), escape(field), kind}] = takes && (isHeld || kind == v1alpha1.KindClusterBpfApplication)
			}
		}
		name := escape(h.Name) + ".yaml"
		files[name], units = []byte(docs.String()), append(units, unit{name, dataFile})
	}
	accepted := map[combination]bool{}
	for _, o := range render(t, files, units...).objects {
		h, field, _ := strings.Cut(o.Identity.Name, "0")
		accepted[combination{h, field, o.Identity.Kind}] = true
	}
	for c, takes := range want {
		if accepted[c] != takes {
			t.Errorf("%s with %s in a %s: accepted is %v", c.hook, c.field, c.kind, accepted[c])
		}
	}
}

// escape makes a DNS-1123 label of a hook and a field: a blank becomes 0.
func escape(s string) string {
	return strings.NewReplacer("/", "1", ".", "1", "_", "2", " ", "0").Replace(strings.ToLower(s))
}

func TestSchemaAndTypesHaveTheSameFields(t *testing.T) {
	s := newTestScope(t)
	for def, of := range map[string]any{
		"#BpfApplicationSpec":   v1alpha1.BpfApplicationSpec{},
		"#BpfPolicySpec":        v1alpha1.BpfPolicySpec{},
		"#ClusterBpfPolicySpec": v1alpha1.ClusterBpfPolicySpec{},
		"#BpfSignerSpec":        v1alpha1.BpfSignerSpec{},
	} {
		compareFields(t, def, reflect.TypeOf(of), []cue.Value{s.schema.LookupPath(cue.ParsePath(def))})
	}
}

// compareFields compares the fields of a Go type with those of the schema, and
// goes on into the types of the fields.
func compareFields(t *testing.T, at string, of reflect.Type, nodes []cue.Value) {
	t.Helper()
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch {
	case of == reflect.TypeFor[apiextensionsv1.JSON](), of == reflect.TypeFor[metav1.Duration](), of == reflect.TypeFor[metav1.Time](),
		of == reflect.TypeFor[intstr.IntOrString]():
		return // one value in JSON, whatever Go makes of it
	case of.Kind() == reflect.Slice:
		compareFields(t, at+"[]", of.Elem(), below1(nodes, "0"))
		return
	case of.Kind() == reflect.Map:
		compareFields(t, at+"{}", of.Elem(), below1(nodes, "anything"))
		return
	case of.Kind() != reflect.Struct:
		return
	}
	var want []string
	for _, field := range reflect.VisibleFields(of) {
		if field.Anonymous {
			continue // its own fields follow
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		want = append(want, name)
		compareFields(t, at+"."+name, field.Type, below1(nodes, name))
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, fieldNames(nodes)); diff != "" {
		t.Errorf("%s (-Go +CUE):\n%s", at, diff)
	}
}

// below1 is every node one step below the nodes.
func below1(nodes []cue.Value, field string) []cue.Value {
	var next []cue.Value
	for _, n := range nodes {
		next = append(next, step(n, field)...)
	}
	return next
}

func TestEveryFieldOfTheSchemaHasAFix(t *testing.T) {
	s := newTestScope(t)
	defs, err := s.schema.Fields(cue.Definitions(true))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for defs.Next() {
		name := defs.Selector().String()
		if name == "#Hooks" || name == "#Count" || defs.Value().IncompleteKind() != cue.StructKind {
			continue
		}
		fields, err := defs.Value().Fields(cue.Optional(true))
		if err != nil {
			t.Fatal(err)
		}
		for fields.Next() {
			field := fields.Selector().Unquoted()
			if field == "apiVersion" || field == "kind" {
				continue
			}
			n++
			if _, doc := lookup(defs.Value(), []string{field}); doc == "" {
				t.Errorf("%s.%s has no comment to fix it by", name, field)
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d fields were looked at", n)
	}
}
