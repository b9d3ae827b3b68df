package plan_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// claim is one of an application uid/namespace, created at a time.
func claim(uid, namespace string, s plan.Seniority, created int64, need plan.Need) plan.Claim {
	return plan.Claim{UID: uid, Seniority: s, Created: created, Need: need,
		Identity: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: uid}}
}

func TestClaimsAreOrderedByStandingAgeAndName(t *testing.T) {
	want := []plan.Claim{
		claim("young-but-running", "z", plan.Running, 9, plan.Need{}),
		claim("remembered", "z", plan.Remembered, 8, plan.Need{}),
		claim("another-version", "z", plan.Replacing, 7, plan.Need{}),
		claim("older", "z", plan.Arriving, 1, plan.Need{}),
		claim("b", "a", plan.Arriving, 2, plan.Need{}),
		claim("a", "b", plan.Arriving, 2, plan.Need{}),
		claim("c", "b", plan.Arriving, 2, plan.Need{}),
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, func(x, y plan.Claim) int { return x.Precedes(&y) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestLimitsAreGrantedInOrder(t *testing.T) {
	maps64 := plan.Limits{Maps: 64, Functions: 256, Dispatcher: true}
	need := func(maps int) plan.Need { return plan.Need{Maps: maps, Functions: 1, Programs: 1} }
	held := func(c plan.Claim, held plan.Need) plan.Claim {
		c.Held = held
		return c
	}
	memory := func(mebibytes int) plan.Need { return plan.Need{Memory: mebibytes << 20} }
	loads := func(translated, moves int) plan.Need {
		return plan.Need{Programs: 1, Translated: translated, Moves: moves}
	}
	seconds := plan.Limits{LoadCost: 96_000_000, SharePercent: 50}
	shared := maps64
	shared.SharePercent = 50
	for sentence, c := range map[string]struct {
		claims []plan.Claim
		limits plan.Limits
		// rejected are parts of the errors, by UID.
		refused map[string]string
	}{
		"one program alone has all maps, since nothing dispatches it": {
			[]plan.Claim{claim("a", "x", plan.Arriving, 1, need(64))}, maps64, nil},
		"two leave the dispatcher one map": {
			[]plan.Claim{claim("a", "x", plan.Arriving, 1, need(32)), claim("b", "x", plan.Arriving, 2, need(31))}, maps64, nil},
		"two do not take the dispatcher's": {
			[]plan.Claim{claim("a", "x", plan.Arriving, 1, need(32)), claim("b", "x", plan.Arriving, 2, need(32))}, maps64,
			map[string]string{"b": "maps: it takes 32, and of the 64 that the kernel allows 33 are held: 32 by namespace x, 0 by others, 1 by the dispatcher"}},
		"what runs goes first, whatever its age": {
			[]plan.Claim{claim("old", "x", plan.Arriving, 1, need(62)), claim("runs", "y", plan.Running, 9, need(5))}, maps64,
			map[string]string{"old": "0 by namespace x, 5 by others"}},
		"what ran goes before who never did": {
			[]plan.Claim{claim("old", "x", plan.Arriving, 1, need(62)), claim("ran", "y", plan.Remembered, 9, need(5))}, maps64,
			map[string]string{"old": "maps: "}},
		"another version goes after what ran in this one": {
			[]plan.Claim{claim("next", "x", plan.Replacing, 1, need(62)), claim("ran", "y", plan.Remembered, 9, need(5))}, maps64,
			map[string]string{"next": "maps: "}},
		"what runs is never refused": {
			[]plan.Claim{claim("a", "x", plan.Running, 1, need(64)), claim("b", "y", plan.Running, 2, need(64))}, maps64, nil},
		"who does not fit takes nothing from those after": {
			[]plan.Claim{claim("a", "x", plan.Arriving, 1, need(10)), claim("b", "x", plan.Arriving, 2, need(60)), claim("c", "x", plan.Arriving, 3, need(50))}, maps64,
			map[string]string{"b": "maps: "}},
		"who takes none of what is full fits": {
			[]plan.Claim{claim("a", "x", plan.Running, 1, need(64)), claim("b", "x", plan.Arriving, 2, plan.Need{Functions: 1, Programs: 1})}, maps64, nil},
		"functions are counted": {
			[]plan.Claim{
				claim("a", "x", plan.Arriving, 1, plan.Need{Functions: 200, Programs: 1}), claim("b", "x", plan.Arriving, 2, plan.Need{Functions: 56, Programs: 1}),
			}, maps64,
			map[string]string{"b": "functions: it takes 56, and of the 256"}},
		"a closed licence comes after who needs the GPL": {
			[]plan.Claim{
				claim("a", "x", plan.Arriving, 1, plan.Need{GPLOnly: true}), claim("b", "y", plan.Arriving, 2, plan.Need{Closed: true}),
				claim("c", "y", plan.Arriving, 3, plan.Need{}),
			}, maps64,
			map[string]string{"b": "licence: its licence is not GPL compatible"}},
		"who needs the GPL comes after a closed licence": {
			[]plan.Claim{claim("a", "x", plan.Arriving, 2, plan.Need{GPLOnly: true}), claim("b", "y", plan.Arriving, 1, plan.Need{Closed: true})}, maps64,
			map[string]string{"a": "licence: it calls helpers"}},
		"a namespace has its share, by all of its applications": {
			[]plan.Claim{
				claim("a", "x", plan.Arriving, 1, need(20)), claim("b", "x", plan.Arriving, 2, need(12)), claim("c", "x", plan.Arriving, 3, need(1)),
				claim("d", "y", plan.Arriving, 4, need(30)),
			}, shared,
			map[string]string{"c": "maps: it takes 1, namespace x holds 32, and one namespace may have 32 of the 64 (50 %)"}},
		"the cluster's own have no share": {
			[]plan.Claim{claim("a", "", plan.Arriving, 1, need(40)), claim("b", "", plan.Arriving, 2, need(20))}, shared, nil},
		"what ran is not refused for the share": {
			[]plan.Claim{claim("a", "x", plan.Remembered, 1, need(40))}, shared, nil},
		"an update that takes no more is not": {
			[]plan.Claim{held(claim("a", "x", plan.Replacing, 1, need(40)), need(40))}, shared, nil},
		"an update that takes more is": {
			[]plan.Claim{held(claim("a", "x", plan.Replacing, 1, need(41)), need(40))}, shared,
			map[string]string{"a": "one namespace may have 32"}},
		"programs have a limit of their own": {
			[]plan.Claim{claim("a", "x", plan.Arriving, 1, plan.Need{Programs: 63}), claim("b", "y", plan.Arriving, 2, plan.Need{Programs: 1})},
			plan.Limits{Programs: 63},
			map[string]string{"b": "programs: it takes 1, and of the 63 that the kernel allows 63 are held: 0 by namespace y, 63 by others"}},
		"memory of maps is counted, and what runs and ran has it first": {
			[]plan.Claim{claim("a", "x", plan.Running, 9, memory(2048)), claim("b", "x", plan.Remembered, 8, memory(512)),
				claim("c", "y", plan.Arriving, 1, memory(513)), claim("d", "y", plan.Arriving, 2, memory(512))}, plan.Limits{Memory: 3 << 30},
			map[string]string{"c": "memory: it takes 513 MiB, and of the 3072 MiB that this node has for maps and programs 2560 MiB are held: " +
				"0 MiB by namespace y, 2560 MiB by others; use smaller maps (spec.maps.NAME.maxEntries) or smaller or fewer programs, " +
				"or have an administrator raise --map-memory"}},
		"what runs beyond the memory keeps running, and nothing joins it": {
			[]plan.Claim{claim("a", "x", plan.Running, 1, memory(4096)), claim("b", "x", plan.Remembered, 1, memory(1)), claim("c", "x", plan.Arriving, 1, plan.Need{})},
			plan.Limits{Memory: 3 << 30}, map[string]string{
				"b": "memory: it takes 1 MiB, and of the 3072 MiB that this node has for maps and programs 4096 MiB are held",
			}},
		"a namespace has its share of the memory": {
			[]plan.Claim{claim("a", "x", plan.Arriving, 1, memory(1536)), claim("b", "x", plan.Arriving, 2, memory(1)), claim("c", "", plan.Arriving, 3, memory(1535))},
			plan.Limits{Memory: 3 << 30, SharePercent: 50},
			map[string]string{"b": "memory: it takes 1 MiB, namespace x holds 1536 MiB, and one namespace may have 1536 MiB of the 3072 MiB (50 %)"}},
		"who is within a share joins, whatever others have": {
			[]plan.Claim{claim("a", "y", plan.Arriving, 1, loads(16_000, 1000)), claim("long", "z", plan.Running, 2, loads(400_000, 10)),
				claim("b", "x", plan.Arriving, 3, loads(16_000, 750))}, seconds,
			map[string]string{"a": "load time: with it and what is kept for other namespaces the kernel may take up to "}},
		"one that is long takes no share of others": {
			[]plan.Claim{claim("a", "y", plan.Arriving, 1, loads(47_000, 100)), claim("b", "x", plan.Arriving, 2, loads(16_000, 750))}, seconds, nil},
		"alone, too, one may not take what is kept for others": {
			[]plan.Claim{claim("a", "x", plan.Arriving, 1, loads(100_000, 100))}, seconds,
			map[string]string{"a": "load time: with it and what is kept for other namespaces the kernel may take up to 9.7s"}},
		"many small ones of a namespace count together": {
			[]plan.Claim{claim("a", "x", plan.Arriving, 1, loads(16_000, 700)), claim("b", "x", plan.Arriving, 2, loads(16_000, 700)),
				claim("c", "x", plan.Arriving, 3, loads(16_000, 700)), claim("d", "y", plan.Arriving, 4, loads(16_000, 700))}, seconds,
			map[string]string{"b": "load time: ", "c": "load time: "}},
		"more namespaces than have shares fit as far as all together do": {
			[]plan.Claim{claim("a", "v", plan.Arriving, 1, loads(16_000, 700)), claim("b", "w", plan.Arriving, 2, loads(16_000, 700)),
				claim("c", "x", plan.Arriving, 3, loads(16_000, 700)), claim("d", "y", plan.Arriving, 4, loads(16_000, 700)),
				claim("e", "z", plan.Arriving, 5, loads(1000, 10))}, seconds,
			map[string]string{"c": "load time: ", "d": "load time: "}},
		"the cluster's own are not bounded, and a small one joins them": {
			[]plan.Claim{claim("a", "", plan.Arriving, 1, loads(100_000, 10_000)), claim("b", "x", plan.Arriving, 2, loads(1000, 100))}, seconds, nil},
		"a large one next to a large one of the cluster": {
			[]plan.Claim{claim("a", "", plan.Arriving, 1, loads(100_000, 10_000)), claim("b", "x", plan.Arriving, 2, loads(10_000, 500)),
				claim("c", "x", plan.Arriving, 3, loads(1000, 100))}, seconds,
			map[string]string{"b": "load time: " +
				"next to those of the cluster the programs of namespace x may take the kernel up to 8.3s to load, at most 2.6s are allowed (50 %)"}},
		"those of all namespaces next to large ones of the cluster": {
			[]plan.Claim{claim("a", "", plan.Arriving, 1, loads(100_000, 100)), claim("b", "s", plan.Arriving, 2, loads(3_500, 340)),
				claim("c", "t", plan.Arriving, 3, loads(3_500, 340)), claim("d", "u", plan.Arriving, 4, loads(3_500, 340))}, seconds,
			map[string]string{"d": "load time: next to those of the cluster the programs of all namespaces may take the kernel up to "}},
		"an update that loads as fast as what it replaces": {
			[]plan.Claim{held(claim("a", "x", plan.Replacing, 1, loads(100_000, 2000)), loads(100_000, 2000))}, seconds, nil},
		"an update that loads slower": {
			[]plan.Claim{held(claim("a", "x", plan.Replacing, 1, loads(100_000, 2001)), loads(100_000, 2000))}, seconds,
			map[string]string{"a": "load time: "}},
	} {
		t.Run(sentence, func(t *testing.T) {
			place := plan.Place{Hook: "xdp", Device: plan.Device{Index: 3}, Interface: "eth0"}
			for _, order := range []string{"as given", "the other way round"} {
				claims := slices.Clone(c.claims)
				if order != "as given" {
					slices.Reverse(claims)
				}
				got := plan.Admit(place, claims, c.limits)
				if diff := cmp.Diff(slices.Sorted(maps.Keys(c.refused)), slices.Sorted(maps.Keys(got))); diff != "" {
					t.Fatalf("%s, refused (-want +got):\n%s%v", order, diff, got)
				}
				for uid, err := range got {
					if !strings.HasPrefix(err.Error(), "place programs on xdp of eth0: ") || !strings.Contains(err.Error(), c.refused[uid]) {
						t.Errorf("%s is told %q, want %q", uid, err, c.refused[uid])
					}
					for _, other := range c.claims {
						if other.Identity.Namespace != "x" && other.UID != uid && strings.Contains(err.Error(), "namespace "+other.Identity.Namespace+" ") {
							t.Errorf("%s is told of %s: %q", uid, other.UID, err)
						}
					}
				}
			}
		})
	}
}

func TestARefusalOfMapMemoryNamesNoInterface(t *testing.T) {
	got := plan.Admit(plan.MapMemory(), []plan.Claim{claim("a", "x", plan.Arriving, 1, plan.Need{Memory: 2})}, plan.Limits{Memory: 1})["a"]
	if got == nil || !strings.HasPrefix(got.Error(), "make maps and programs: memory: it takes 1 MiB, ") {
		t.Errorf("it is told %v", got)
	}
}
