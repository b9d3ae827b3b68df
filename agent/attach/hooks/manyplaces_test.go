package hooks_test

import (
	"testing"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestManyPlacesDelayNobodyElse unloads an application with many places, each of which the
// kernel takes a while to end, and then another one.
func TestManyPlacesDelayNobodyElse(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	tombstone := func(p intent.Payload) intent.Payload {
		w.Serial++
		return intent.Payload{Application: p.Application, UID: p.UID, Serial: w.Serial, Tombstone: true, Reason: "revoked"}
	}
	other := world.Version(w, "1", v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter"})
	other.UID, other.Application.Name = "uid-other", "other"
	if err := w.Accept(a, other); err != nil {
		t.Fatal(err)
	}
	_, l := world.One(t, a)
	many, began := world.ManyPlaces(w, world.Places), time.Now()
	if err := w.Accept(a, many); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s to attach to %d places", time.Since(began), world.Links(a, "many"))
	began = time.Now()
	w.Give(a, tombstone(many), tombstone(other))
	world.Until(t, "the other application to be unloaded", time.Minute, func() bool { return world.Runs(t, l.ID) == 0 })
	took, left := time.Since(began), world.Links(a, "many")
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s to unload the other application, %s to unload %d places", took, time.Since(began), world.Places)
	if left == 0 && time.Since(began) > 2*time.Second {
		t.Errorf("the other application was unloaded after all %d places", world.Places)
	}
	w.LeavesNothing()
}
