package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// granting has an application grant its map counts to groups, for reading.
func granting(p intent.Payload, groups ...string) intent.Payload {
	p.Maps = map[string]v1alpha1.Map{"counts": {Export: []v1alpha1.MapExport{{Access: v1alpha1.MapRead, Groups: groups}}}}
	return p
}

// TestMapsAreTakenBackWhereTheNodeCannotBeLookedAt has every look at the interfaces fail. The first group loses a map, and then the other.
func TestMapsAreTakenBackWhereTheNodeCannotBeLookedAt(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	w.MapsDir = filepath.Join(t.TempDir(), "maps")
	t.Cleanup(func() { world.Must(t, agent.RemoveReaders(w.MapsDir)) })
	world.Veth(t, "cn0", "cn1")
	a, _ := w.Start()
	version := func() intent.Payload {
		return w.Intent("counter", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "cn0")})
	}
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(w.MapsDir, "counter", name))
		return err == nil
	}
	world.Must(t, w.Accept(a, granting(version(), "990", "991")))
	world.Until(t, "the maps to be there", time.Minute, func() bool { return has("counts") && has("counts@991") })
	a.FailLooks(errors.New("dump interfaces: no buffer space available"))
	narrowed := granting(version(), "990")
	w.Give(a, narrowed)
	world.Until(t, "the map of the second group to go", time.Minute, func() bool { return !has("counts@991") })
	if !has("counts") {
		t.Error("the map of the first group is gone, too")
	}
	w.Give(a, w.Tombstone(narrowed))
	world.Until(t, "the folder to go", time.Minute, func() bool { return !has(".") })
	a.FailLooks(nil)
	world.Until(t, "the application to be gone", time.Minute, func() bool { return world.StatusOf(a, "counter") == nil })
}
