package hooks_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestAnUpdateMissesNoPacketAndCountersGoOn(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	for hook, object := range map[string][2]string{
		"xdp":         {"xdp_count", "xdp_count_v2"},
		"tcx/ingress": {"tcx_count", "tcx_count_v2"},
		"tc/ingress":  {"tcx_count", "tcx_count_v2"},
	} {
		for _, neighbour := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s with a neighbour %v", hook, neighbour), func(t *testing.T) {
				world.NeedHook(t, hook)
				w := world.New(t)
				world.Veth(t, "up0", "up1")
				a, _ := w.Start()
				app := func(version int) intent.Payload {
					return w.Intent("counter", object[version%2], v1alpha1.Program{Name: world.FunctionOf(hook), Attach: world.On(hook, "up0")})
				}
				if err := w.Accept(a, app(0)); err != nil {
					t.Fatal(err)
				}
				if neighbour {
					at := world.On(hook, "up0")
					at[0].Priority = new(int32)
					if err := w.Accept(a, w.Intent("neighbour", object[0], v1alpha1.Program{Name: world.FunctionOf(hook), Attach: at})); err != nil {
						t.Fatal(err)
					}
				}
				before := world.Count(t, world.Counts(w, a, "counter"))
				stop := world.Traffic(t, "up1", 20000)
				for version := range 10 {
					if err := w.Accept(a, app(version+1)); err != nil {
						t.Fatal(err)
					}
				}
				sent := stop()
				world.Until(t, "the last packet", time.Minute, func() bool { return world.Count(t, world.Counts(w, a, "counter"))-before >= sent })
				if got := world.Count(t, world.Counts(w, a, "counter")) - before; got != sent {
					t.Errorf("%d packets sent, %d counted", sent, got)
				}
				t.Logf("%d packets through 10 updates, none lost", sent)
				if s := a.Status()[0]; !slices.ContainsFunc(s.Maps, func(m loader.MapReport) bool { return m.Map == "counts" && m.Kept }) {
					t.Errorf("maps = %+v", s.Maps)
				}
			})
		}
	}
}
