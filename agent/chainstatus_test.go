package agent_test

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestAChainThatCannotBeReadHidesNoOther: it has its members, and says what is not known of it.
func TestAChainThatCannotBeReadHidesNoOther(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	world.Veth(t, "mo0", "mo1")
	a, _ := w.Start()
	w.Must(a, world.Member(w, "a", "xdp_count", "count_packets", 500), world.Member(w, "b", "xdp_pass", "xdp_pass", 600), world.InMode(w, "c", "mo0",
		v1alpha1.XDPGeneric, 1))
	world.Must(t, a.LoseCounters(world.Index(t, "cn0")))
	chains, err := a.Chains()
	if err != nil || len(chains) != 2 {
		t.Fatalf("chains = %+v, %v", chains, err)
	}
	for _, c := range chains {
		lost := c.Interface == "cn0"
		if strings.Contains(c.Error, "counted") != lost || (c.Error == "") == lost || c.LinkID == 0 {
			t.Errorf("the chain of %s says %q: %+v", c.Interface, c.Error, c)
		}
		if want := map[string]int{"cn0": 2, "mo0": 1}[c.Interface]; len(c.Members) != want {
			t.Errorf("the chain of %s has %d members", c.Interface, len(c.Members))
		}
	}
}
