package observe

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/reconcile/changes"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// choosing is an intent that chooses interfaces so.
func choosing(t *testing.T, uid string, s v1alpha1.Interfaces) intent.Opened {
	t.Helper()
	return seals.New(t).Open(t, intent.Payload{
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: uid}, UID: uid, Serial: 1,
		ObjectDigest: "sha256:object",
		Programs:     []v1alpha1.Program{{Name: "f", Attach: []v1alpha1.Attachment{{Hook: "xdp", Interfaces: &s}, {Hook: "raw_tp", Tracepoint: "sys_enter"}}}},
	})
}

func TestWhatRunsAsPrimaryIsToldFromWhatRunsByName(t *testing.T) {
	eth0 := plan.Interface{Device: plan.Device{Index: 2}, Name: "eth0"}
	for sentence, tc := range map[string]struct {
		chooses         v1alpha1.Interfaces
		asPrimary, asks bool
	}{
		"as primary alone":                {v1alpha1.Interfaces{Primary: true}, true, true},
		"by name":                         {v1alpha1.Interfaces{Names: []string{"eth*"}}, false, false},
		"by name as well":                 {v1alpha1.Interfaces{Primary: true, Names: []string{"eth*"}}, false, true},
		"as primary, and another by name": {v1alpha1.Interfaces{Primary: true, Names: []string{"lan0"}}, true, true},
		"as primary, with an odd exclude": {v1alpha1.Interfaces{Primary: true, Exclude: []string{"lo"}}, true, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			known := []version.Known{{Newest: choosing(t, "a", tc.chooses)}}
			r := New(Options{Changes: changes.New()}).Begin(known, &live.Open{}, true)
			if got := r.asPrimary("a", eth0); got != tc.asPrimary {
				t.Errorf("asPrimary = %v", got)
			}
			if r.asPrimary("b", eth0) {
				t.Error("another application runs there as primary")
			}
			if got := wantsPrimary(known); got != tc.asks {
				t.Errorf("wantsPrimary = %v", got)
			}
		})
	}
}

func TestWhatRunsIsToldByInterface(t *testing.T) {
	set := &live.Set{}
	for _, index := range []int{2, 0} {
		set.PutLink(&pins.Link{UID: "a", Attachment: plan.Attachment{Target: plan.Target{Ifindex: index}}})
	}
	set.PutChain(&pins.Chain{Device: plan.Device{Index: 3}, Version: &pins.ChainVersion{Members: []plan.Member{{UID: "b"}, {UID: "c"}, {UID: "b"}}}})
	set.PutChain(&pins.Chain{Device: plan.Device{Index: 4}})
	r := &Round{open: &set.Open}
	want := map[plan.Device][]string{{Index: 2}: {"a"}, {Index: 3}: {"b", "c"}, {Index: 4}: {}}
	if diff := cmp.Diff(want, r.running().UIDs); diff != "" {
		t.Errorf("what runs (-want +got):\n%s", diff)
	}
}
