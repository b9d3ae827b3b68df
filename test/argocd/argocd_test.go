// Package argocd tests what examples/argocd has for users of Argo CD. The objects that its health
// is tested with were taken from the API server by the tests of test/integration.
package argocd_test

import (
	"cmp"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/argocd"
	"github.com/skep-dev/skep/test/harness/golden"
)

// root has what users of Argo CD take.
const root = "../../examples/argocd"

// customizations is the folder of the group in Argo CD's layout; _ stands for every kind.
const customizations = root + "/resource_customizations/" + v1alpha1.Group

func read(t *testing.T, elements ...string) string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// object reads a YAML file of one object.
func object(t *testing.T, elements ...string) map[string]any {
	t.Helper()
	var o map[string]any
	if err := yaml.UnmarshalStrict([]byte(read(t, elements...)), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestHealth does what Argo CD's own test does with each folder of a health.lua.
func TestHealth(t *testing.T) {
	script := read(t, customizations, "_/health.lua")
	var cases struct {
		Tests []struct {
			InputPath    string        `json:"inputPath"`
			HealthStatus argocd.Health `json:"healthStatus"`
		} `json:"tests"`
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, customizations, "_/health_test.yaml")), &cases); err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, c := range cases.Tests {
		tested[c.InputPath] = true
		t.Run(c.InputPath, func(t *testing.T) {
			got, err := argocd.HealthOf(script, object(t, customizations, "_", c.InputPath))
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(c.HealthStatus, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	files, err := filepath.Glob(customizations + "/_/testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if name := "testdata/" + filepath.Base(f); !tested[name] {
			t.Errorf("health_test.yaml does not have %s", name)
		}
	}
}

func TestHealthBeforeTheFirstStatus(t *testing.T) {
	script := read(t, customizations, "_/health.lua")
	healthy := func() map[string]any { return object(t, customizations, "_/testdata/healthy.yaml") }
	without, outdated, unlooked := healthy(), healthy(), healthy()
	delete(without, "status")
	outdated["metadata"].(map[string]any)["generation"] = 77
	unlooked["status"] = map[string]any{"observedGeneration": -1}
	for name, o := range map[string]any{"no status": without, "an older definition": outdated, "not looked at": unlooked} {
		if got, err := argocd.HealthOf(script, o); err != nil || got.Status != "Progressing" || got.Message == "" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestActions(t *testing.T) {
	discovery := read(t, customizations, "BpfApplication/actions/discovery.lua")
	for state, want := range map[string]struct {
		enabled string
		patches map[string]string
	}{
		"healthy":        {"suspend", map[string]string{"suspend": `{"spec":{"suspend":true}}`}},
		"progressing":    {"suspend undo", map[string]string{"undo": `{"metadata":{"annotations":{"skep.dev/rollout-undo":"6"}}}`}},
		"suspended":      {"resume", map[string]string{"resume": `{"spec":{"suspend":null}}`}},
		"rollout-paused": {"resume suspend undo", map[string]string{"resume": `{"metadata":{"annotations":{"skep.dev/rollout-resume":"1767323045000"}}}`}},
		"degraded-by-node": {"suspend undo", map[string]string{
			"undo": `{"metadata":{"annotations":{"skep.dev/rollout-undo":"6"}}}`}},
		"rolled-back": {"resume suspend", map[string]string{
			"resume": `{"metadata":{"annotations":{"skep.dev/rollout-undo":""}}}`}},
		"degraded-by-denial": {"suspend", nil},
	} {
		t.Run(state, func(t *testing.T) {
			o := object(t, customizations, "_/testdata", state+".yaml")
			offered, err := argocd.ActionsOf(discovery, o)
			if err != nil {
				t.Fatal(err)
			}
			var enabled []string
			for _, a := range offered {
				if !a.Disabled {
					enabled = append(enabled, a.Name)
				}
			}
			if got := strings.Join(enabled, " "); got != want.enabled {
				t.Errorf("enabled are %s, want %s", got, want.enabled)
			}
			for name, patch := range want.patches {
				got, err := argocd.PatchOf(read(t, customizations, "BpfApplication/actions", name, "action.lua"), o)
				if err != nil {
					t.Fatal(err)
				}
				if string(got) != patch {
					t.Errorf("%s sends %s, want %s", name, got, patch)
				}
			}
		})
	}
}

// kinds are those that users write and that have conditions, and those that nobody writes.
func kinds(t *testing.T) (written, internal []string) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for kind, typ := range scheme.KnownTypes(v1alpha1.GroupVersion()) {
		o, isObject := reflect.TypeAssert[metav1.Object](reflect.New(typ))
		if !isObject {
			continue
		}
		if _, has := o.(interface{ GetConditions() []metav1.Condition }); has {
			written = append(written, kind)
		} else {
			internal = append(internal, kind)
		}
	}
	slices.Sort(written)
	slices.Sort(internal)
	return written, internal
}

// actionScripts are the actions of a kind in the form that argocd-cm has; empty where it has none.
func actionScripts(t *testing.T, kind string) string {
	t.Helper()
	type definition struct {
		Name   string `json:"name"`
		Script string `json:"action.lua"`
	}
	var actions struct {
		Discovery   string       `json:"discovery.lua"`
		Definitions []definition `json:"definitions"`
	}
	folder := filepath.Join(customizations, kind, "actions")
	// A folder that is a link is read behind it.
	entries, err := os.ReadDir(folder + "/.")
	if os.IsNotExist(err) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	actions.Discovery = read(t, folder, "discovery.lua")
	for _, e := range entries {
		if e.IsDir() {
			actions.Definitions = append(actions.Definitions, definition{e.Name(), read(t, folder, e.Name(), "action.lua")})
		}
	}
	slices.SortFunc(actions.Definitions, func(a, b definition) int { return cmp.Compare(a.Name, b.Name) })
	body, err := yaml.Marshal(actions)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestTheConfigMapHasTheScriptsOfEveryKind(t *testing.T) {
	written, internal := kinds(t)
	data := map[string]string{}
	for _, kind := range written {
		key := v1alpha1.Group + "_" + kind
		data["resource.customizations.health."+key] = read(t, customizations, "_/health.lua")
		if actions := actionScripts(t, kind); actions != "" {
			data["resource.customizations.actions."+key] = actions
		}
	}
	body, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": data,
		"metadata": map[string]any{"name": "argocd-cm", "namespace": "argocd", "labels": map[string]string{"app.kubernetes.io/part-of": "argocd"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "# Made from resource_customizations by go test ./test/argocd -update. DO NOT EDIT.\n" + string(body)
	name := filepath.Join(root, "argocd-cm.yaml")
	golden.File(t, name, want, "go test ./test/argocd -update")

	var exclusions []struct{ APIGroups, Kinds, Clusters []string }
	if err := yaml.UnmarshalStrict([]byte(read(t, root, "exclusions.yaml")), &exclusions); err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(internal, exclusions[0].Kinds); diff != "" {
		t.Errorf("exclusions.yaml has other kinds than those that nobody writes (-want +got):\n%s", diff)
	}
}
