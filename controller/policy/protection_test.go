package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// unloaded is a tombstone as it is stored.
func unloaded(t *testing.T, by seals.Key, id v1alpha1.Identity, uid string, at time.Time, reason string) v1alpha1.BpfIntent {
	t.Helper()
	envelope, err := gate.SealTombstone(by.Sealer, id, gate.Stamp{UID: uid, Serial: at.UnixMilli()}, reason)
	if err != nil {
		t.Fatal(err)
	}
	o := v1alpha1.BpfIntent{Spec: v1alpha1.BpfIntentSpec{Application: id, Tombstone: true, Serial: at.UnixMilli(), Envelope: envelope}}
	o.Name = uid
	return o
}

// TestAChangeOfLeaderKeepsTheCountOfUnloadProtection unloads two of twenty applications,
// which is what may go at once; then another replica leads.
func TestAChangeOfLeaderKeepsTheCountOfUnloadProtection(t *testing.T) {
	key, stranger := seals.New(t), seals.New(t)
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for sentence, c := range map[string]struct {
		by     seals.Key
		reason string
		later  time.Duration
		held   bool
	}{
		"a policy denied them":                      {key, lifecycle.UnloadedByPolicy, time.Minute, true},
		"a policy denied them long ago":             {key, lifecycle.UnloadedByPolicy, 2 * together, false},
		"a tombstone is sealed over an older one":   {key, lifecycle.UnloadedAgain(lifecycle.UnloadedByPolicy), time.Minute, false},
		"they were deleted":                         {key, "it was deleted", time.Minute, false},
		"no controller sealed that a policy denied": {stranger, lifecycle.UnloadedByPolicy, time.Minute, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			all := apps(20)
			in := &cluster{live: slices.Clone(all), keys: sealing.Keys{Sealer: key.Sealer, Trust: key.Trust}}
			now := start
			replica := func() *Keeper {
				k := in.keeper(t)
				k.Now = func() time.Time { return now }
				refresh(t, k, in)
				return k
			}
			follows := replica()
			in.live = slices.Clone(all[2:])
			for _, id := range all[:2] {
				in.sealed = append(in.sealed, unloaded(t, c.by, id, "uid-"+id.Name, now, c.reason))
			}
			// One that was made anew runs, whatever is said of the one before it.
			in.sealed = append(in.sealed, unloaded(t, key, all[3], "before", now, lifecycle.UnloadedByPolicy))
			now = now.Add(c.later)
			for who, k := range map[string]*Keeper{"a replica that followed": follows, "one that starts": replica()} {
				if _, held := holds(t, k, all[2]); held != c.held {
					t.Errorf("%s holds the third: %t", who, held)
				}
				if n := k.Protected(); (n == 1) != c.held || n > 1 {
					t.Errorf("%s says that it keeps %d", who, n)
				}
				if n := len(k.protection.unloads); c.held && n != 3 || !c.held && n != 1 {
					t.Errorf("%s counts %d", who, n)
				}
			}
		})
	}
}
