package agent_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/harness/need"
)

// places is how many places an application has that delays others.
const places = 100

// manyPlaces is an intent for a uprobe at each instruction of a function with so many.
func (w *world) manyPlaces(places int) intent.Payload {
	functions := []userbinary.Function{{Name: "f", Code: bytes.Repeat([]byte{0x90}, places)}}
	path, at := install(w.t, userbinary.Make(functions, userbinary.Options{})), userbinary.Offset(functions, 0)
	p := w.version("1", v1alpha1.Attachment{Hook: "uprobe"})
	p.UID, p.Application.Name = "uid-many", "many"
	p.Programs[0].Attach = nil
	for i := range places {
		p.Programs[0].Attach = append(p.Programs[0].Attach, v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: path, Offset: at + uint64(i)}})
	}
	return p
}

// links counts the links of an application that are attached.
func links(a *agent.Agent, name string) int {
	n := 0
	for _, s := range a.Status() {
		if s.Application.Name == name && len(s.Programs) > 0 {
			n = len(s.Programs[0].Links)
		}
	}
	return n
}

// TestManyPlacesDelayNobodyElse unloads an application with many places, each of which the
// kernel takes a while to end, and then another one.
func TestManyPlacesDelayNobodyElse(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	a, _ := w.start()
	tombstone := func(p intent.Payload) intent.Payload {
		w.serial++
		return intent.Payload{Application: p.Application, UID: p.UID, Serial: w.serial, Tombstone: true, Reason: "revoked"}
	}
	other := w.version("1", v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter"})
	other.UID, other.Application.Name = "uid-other", "other"
	if err := w.accept(a, other); err != nil {
		t.Fatal(err)
	}
	_, l := one(t, a)
	many, began := w.manyPlaces(places), time.Now()
	if err := w.accept(a, many); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s to attach to %d places", time.Since(began), links(a, "many"))
	began = time.Now()
	w.give(a, tombstone(many), tombstone(other))
	until(t, "the other application to be unloaded", time.Minute, func() bool { return runs(t, l.ID) == 0 })
	took, left := time.Since(began), links(a, "many")
	if err := w.accept(a); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s to unload the other application, %s to unload %d places", took, time.Since(began), places)
	if left == 0 && time.Since(began) > 2*time.Second {
		t.Errorf("the other application was unloaded after all %d places", places)
	}
	w.leavesNothing()
}
