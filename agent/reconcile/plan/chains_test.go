package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestChainsThatFollowAreThoseThatAreWanted changes what is wanted again and again: chains that followed are those of
// one who looks at all anew, and no other chain changed than Follow says.
func TestChainsThatFollowAreThoseThatAreWanted(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const devices, applications = 4, 6
	device := func(i int) plan.Device { return plan.Device{Index: i + 1} }
	uid := func(i int) string { return fmt.Sprint("u", i) }
	member := func(i int, revision string) plan.Member {
		return plan.Member{UID: uid(i), Identity: v1alpha1.Identity{Name: uid(i)}, Revision: revision, Program: "f"}
	}
	var have plan.State
	for d := range devices {
		have.Interfaces = append(have.Interfaces, plan.Interface{Device: device(d), Name: fmt.Sprint("eth", d)})
		c := plan.Chain{Device: device(d), Members: []plan.Member{member(d, "r0"), member(d+1, "r0")}}
		if d == 1 {
			c.Off = c.Members[:1]
		}
		have.Chains = append(have.Chains, c)
	}
	want := plan.Want{Left: map[plan.Device]bool{}, Out: map[plan.Device][]string{}, Interim: map[plan.Device][]plan.Member{}}
	chains := plan.NewChains(&want, have)
	for turn := range 500 {
		before := plan.WantedChains(want, have)
		one := random.IntN(applications)
		isOne := func(name string) bool { return name == uid(one) }
		want.Applications = slices.DeleteFunc(want.Applications, func(app plan.Application) bool { return isOne(app.UID) })
		want.Frozen = slices.DeleteFunc(want.Frozen, isOne)
		var app *plan.Application
		isFrozen := false
		switch random.IntN(3) {
		case 0:
			made := plan.Application{UID: uid(one), Identity: v1alpha1.Identity{Name: uid(one)}, Revision: fmt.Sprint("r", turn)}
			for range random.IntN(4) {
				made.Attachments = append(made.Attachments, plan.Attachment{Hook: plan.XDP, Program: "f", Target: plan.Target{Ifindex: 1 + random.IntN(devices)},
					Priority: int32(random.IntN(3))})
			}
			want.Applications = append(want.Applications, made)
			app = &want.Applications[len(want.Applications)-1]
		case 1:
			want.Frozen, isFrozen = append(want.Frozen, uid(one)), true
		}
		changed := chains.Follow(uid(one), app, isFrozen)
		for i, wanted := range plan.WantedChains(want, have) {
			if got := chains.Of(wanted.Device); !slices.Equal(got.Members, wanted.Members) {
				t.Fatalf("turn %d: (-anew +followed):\n%s", turn, cmp.Diff(wanted, got))
			}
			if !slices.Equal(wanted.Members, before[i].Members) && !slices.Contains(changed, wanted.Device) {
				t.Fatalf("turn %d: the chain of %v changed, and Follow names %v", turn, wanted.Device, changed)
			}
		}
		switch d := device(random.IntN(devices)); random.IntN(4) {
		case 0:
			want.Left[d] = !want.Left[d]
		case 1:
			want.Out[d] = []string{uid(random.IntN(applications))}
		case 2:
			want.Interim[d] = []plan.Member{member(random.IntN(applications), "interim")}
		}
		if random.IntN(4) == 0 {
			clear(want.Interim)
		}
	}
}
