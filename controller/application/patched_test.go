package application

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestPatchesAreKeptUntilTheCacheShowsThem(t *testing.T) {
	at := func(version string, serial int64) *v1alpha1.BpfApplication {
		app := &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "app", UID: "u", ResourceVersion: version}}
		app.Spec.Bytecode.Image = "registry.example.com/a:v1"
		app.Status.Serial = serial
		return app
	}
	var p patched
	p.keep(at("5", 7))
	if got := p.newest(at("4", 1)); got.GetResourceVersion() != "5" || got.Report().Serial != 7 || got.Body().Bytecode.Image == "" {
		t.Errorf("while the cache is behind: %+v", got)
	}
	seen := p.observed()
	event5 := func(version string) event.UpdateEvent {
		return event.UpdateEvent{ObjectOld: client.Object(at("3", 0)), ObjectNew: at(version, 0)}
	}
	seen.Update(t.Context(), event5("4"), nil)
	if len(p.last) != 1 {
		t.Error("an older event has it forgotten")
	}
	seen.Update(t.Context(), event5("5"), nil)
	if len(p.last) != 0 {
		t.Error("it is kept although the cache shows it")
	}
	if got := p.newest(at("5", 7)); got.GetResourceVersion() != "5" {
		t.Errorf("once the cache shows it: %+v", got)
	}
	p.keep(at("6", 8))
	seen.Delete(t.Context(), event.DeleteEvent{Object: at("5", 7)}, nil)
	if len(p.last) != 0 {
		t.Error("it is kept although it is gone")
	}
}

// TestPatchesAreBounded has a cache that shows nothing any more.
func TestPatchesAreBounded(t *testing.T) {
	var p patched
	for i := range 3 * maxPatched {
		name := fmt.Sprint("app-", i)
		p.keep(&v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name), ResourceVersion: "1"}})
	}
	if len(p.last) > maxPatched {
		t.Errorf("%d are kept", len(p.last))
	}
}
