package gate

import (
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestGenerationsTellSpecsApart(t *testing.T) {
	app := func(change func(*v1alpha1.ClusterBpfApplication)) int64 {
		a := &v1alpha1.ClusterBpfApplication{}
		a.Name, a.Spec.Bytecode.Image = "app", "registry.example.com/a:v1"
		change(a)
		g, err := Generation(a)
		if err != nil || g <= 0 {
			t.Fatalf("generation %d, %v", g, err)
		}
		return g
	}
	base := app(func(*v1alpha1.ClusterBpfApplication) {})
	for name, c := range map[string]struct {
		change func(*v1alpha1.ClusterBpfApplication)
		same   bool
	}{
		"nothing":         {func(*v1alpha1.ClusterBpfApplication) {}, true},
		"a label":         {func(a *v1alpha1.ClusterBpfApplication) { a.Labels = map[string]string{"a": "b"} }, true},
		"the image":       {func(a *v1alpha1.ClusterBpfApplication) { a.Spec.Bytecode.Image = "registry.example.com/a:v2" }, false},
		"being suspended": {func(a *v1alpha1.ClusterBpfApplication) { a.Spec.Suspend = true }, true},
		"who reads a map": {func(a *v1alpha1.ClusterBpfApplication) {
			a.Spec.Maps = map[string]v1alpha1.Map{"m": {Export: []v1alpha1.MapExport{{Access: v1alpha1.MapRead, Namespaces: []string{"web"}}}}}
		}, true},
		"its steps": {func(a *v1alpha1.ClusterBpfApplication) { a.Spec.Rollout = &v1alpha1.Rollout{} }, true},
		"requestedAt": {func(a *v1alpha1.ClusterBpfApplication) {
			a.Annotations = map[string]string{AnnotationRequestedAt: "2026-01-01T00:00:00Z"}
		}, false},
	} {
		if got := app(c.change) == base; got != c.same {
			t.Errorf("%s: same generation %v, want %v", name, got, c.same)
		}
	}
}
