package live

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestWhatIsSwitchedOffRunsAgainWhereItIsAskedForAlone follows two members of one chain.
func TestWhatIsSwitchedOffRunsAgainWhereItIsAskedForAlone(t *testing.T) {
	need.Kernel(t)
	counters, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 2 * 8 * 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = counters.Close() })
	a, b, device := plan.Member{UID: "a", Revision: "1", Program: "f"}, plan.Member{UID: "b", Revision: "1", Program: "f"}, plan.Device{Index: 2}
	newer := a
	newer.Revision = "2"
	v := &pins.ChainVersion{Members: []plan.Member{a, b}, Counters: counters}
	s := &Set{}
	s.PutChain(&pins.Chain{Device: device, Version: v})
	for _, step := range []struct {
		sentence string
		do       func() map[string]error
		off      []plan.Member
	}{
		{"nothing is gone", func() map[string]error { return s.SwitchOff(nil) }, nil},
		{"one is gone", func() map[string]error { return s.SwitchOff([]string{"a"}) }, []plan.Member{a}},
		{"nothing is known of it any more", func() map[string]error { return s.SwitchOff(nil) }, []plan.Member{a}},
		{"it is asked for nowhere", func() map[string]error { return s.SwitchOn(map[plan.Device][]plan.Member{device: {b}}) }, []plan.Member{a}},
		{"another version of it is asked for", func() map[string]error { return s.SwitchOn(map[plan.Device][]plan.Member{device: {newer, b}}) }, []plan.Member{a}},
		{"it is asked for on another interface", func() map[string]error { return s.SwitchOn(map[plan.Device][]plan.Member{{Index: 3}: {a}}) }, []plan.Member{a}},
		{"it is asked for", func() map[string]error { return s.SwitchOn(map[plan.Device][]plan.Member{device: {a, b}}) }, nil},
	} {
		if failed := step.do(); len(failed) > 0 {
			t.Fatalf("%s: %v", step.sentence, failed)
		}
		// What the next agent reads.
		next := &pins.ChainVersion{Members: v.Members, Counters: counters}
		if err := next.ReadSwitches(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(v.Off(), step.off) || !slices.Equal(next.Off(), step.off) || s.IsOff(device, a) != (step.off != nil) {
			t.Errorf("%s: off are %v, and %v in the map, want %v", step.sentence, v.Off(), next.Off(), step.off)
		}
	}
}
