package sharing_test

import (
	"errors"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// The tests below have two applications: owner counts packets of so0 in its map counts, and
// taker those of st0 in the same map.

// twoWays is a world with the interfaces of both.
func twoWays(t *testing.T) *world.World {
	t.Helper()
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "so0", "so1")
	world.Veth(t, "st0", "st1")
	return w
}

// both has the owner and the taker run, and returns their map.
func both(t *testing.T) (w *world.World, a *agent.Agent, stop func(), id ebpf.MapID) {
	t.Helper()
	w = twoWays(t)
	a, stop = w.Start()
	w.Must(a, ownerOf(w, "xdp_count", v1alpha1.Map{}, "taker"), takerOf(w, "xdp_count", "count_packets", "xdp"))
	return w, a, stop, sharesOneMap(w, a)
}

// ownerOf shares its map with the applications.
func ownerOf(w *world.World, object string, m v1alpha1.Map, with ...string) intent.Payload {
	p := w.Intent("owner", object, v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "so0")})
	m.SharedWith = with
	p.Maps = map[string]v1alpha1.Map{"counts": m}
	return p
}

// takerOf has the owner's map in place of its own.
func takerOf(w *world.World, object, program, hook string) intent.Payload {
	p := w.Intent("taker", object, v1alpha1.Program{Name: program, Attach: world.On(hook, "st0")})
	p.Maps = map[string]v1alpha1.Map{"counts": {From: &v1alpha1.MapSource{Application: "owner", Map: "counts"}}}
	return p
}

// mapOf returns the kernel's id of a pinned map; 0 where it is not there.
func mapOf(w *world.World, a *agent.Agent, name, escaped string) ebpf.MapID {
	w.T.Helper()
	s := world.StatusOf(a, name)
	if s == nil {
		return 0
	}
	m, err := ebpf.LoadPinnedMap(filepath.Join(w.BPFFS, s.UID, s.Revision, "m-"+escaped), nil)
	if err != nil {
		return 0
	}
	defer func() { _ = m.Close() }()
	info, err := m.Info()
	if err != nil {
		w.T.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

// sharesOneMap waits until both run with one map, and returns its id. A taker that had to keep another
// one has a map before its program runs.
func sharesOneMap(w *world.World, a *agent.Agent) ebpf.MapID {
	w.T.Helper()
	var id ebpf.MapID
	world.Until(w.T, "both to have one map", time.Minute, func() bool {
		id = mapOf(w, a, "owner", "counts")
		state, _ := conditionOf(a, "taker")
		return id != 0 && id == mapOf(w, a, "taker", "counts") && state == "True Deployed" && !world.StatusOf(a, "taker").KeepsMap() && runsWhatIsPinned(w, a,
			"taker")
	})
	return id
}

// runsWhatIsPinned reports whether the status is of the program that is pinned: pins with another map
// come before the program that uses it runs.
func runsWhatIsPinned(w *world.World, a *agent.Agent, name string) bool {
	w.T.Helper()
	s := world.StatusOf(a, name)
	if s == nil || len(s.Programs) != 1 {
		return false
	}
	p, err := ebpf.LoadPinnedProgram(filepath.Join(w.BPFFS, s.UID, s.Revision, "p-"+s.Programs[0].Name), nil)
	if err != nil {
		return false
	}
	defer func() { _ = p.Close() }()
	id, err := pins.ProgramID(p)
	return err == nil && uint32(id) == s.Programs[0].ID
}

// conditionOf is the status, reason and message of the condition Deployed.
func conditionOf(a *agent.Agent, name string) (state, message string) {
	s := world.StatusOf(a, name)
	if s == nil || len(s.Conditions) == 0 {
		return "", ""
	}
	c := s.Conditions[0]
	return string(c.Status) + " " + c.Reason, c.Message
}

// says waits until the condition Deployed of an application says something.
func says(t *testing.T, a *agent.Agent, name string, texts ...string) {
	t.Helper()
	var message string
	world.Until(t, name+" to say "+strings.Join(texts, " and "), time.Minute, func() bool {
		_, message = conditionOf(a, name)
		return !slices.ContainsFunc(texts, func(one string) bool { return !strings.Contains(message, one) })
	})
}

// bothCount sends packets to both, and holds that one map counts them all.
func bothCount(w *world.World, a *agent.Agent) {
	w.T.Helper()
	before := world.Count(w.T, world.Counts(w, a, "owner"))
	world.Send(w.T, "so1", 3)
	world.Send(w.T, "st1", 4)
	world.Until(w.T, "seven packets in the one map", time.Minute, func() bool { return world.Count(w.T, world.Counts(w, a, "owner")) == before+7 })
	if n := world.Count(w.T, world.Counts(w, a, "taker")); n != before+7 {
		w.T.Errorf("the taker reads %d, the owner %d", n, before+7)
	}
}

// keeps holds that the taker has the map still, and counts in it.
func keeps(w *world.World, a *agent.Agent, id ebpf.MapID) {
	w.T.Helper()
	if now := mapOf(w, a, "taker", "counts"); now != id {
		w.T.Errorf("the taker has map %d, and had %d", now, id)
	}
	before := world.Count(w.T, world.Counts(w, a, "taker"))
	world.Send(w.T, "st1", 2)
	world.Until(w.T, "the taker to count on", time.Minute, func() bool { return world.Count(w.T, world.Counts(w, a, "taker")) == before+2 })
}

// follows waits until both have another map than before.
func follows(w *world.World, a *agent.Agent, before ebpf.MapID) {
	w.T.Helper()
	world.Until(w.T, "another map", time.Minute, func() bool { return mapOf(w, a, "owner", "counts") != before })
	sharesOneMap(w, a)
}

// isWell holds that nothing is to be said of the taker.
func isWell(t *testing.T, a *agent.Agent) {
	t.Helper()
	if s := world.StatusOf(a, "taker"); s.Error != "" || s.KeepsMap() {
		t.Errorf("the taker: %+v", s)
	}
}

// TestTwoApplicationsUseOneMap starts them in both orders and at once, by XDP and by TCX. The
// agent hardly ever sweeps: no order takes a second look.
func TestTwoApplicationsUseOneMap(t *testing.T) {
	need.Kernel(t)
	for sentence, order := range map[string][][]string{
		"the owner first": {{"owner"}, {"taker"}},
		"the taker first": {{"taker"}, {"owner"}},
		"both at once":    {{"taker", "owner"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := twoWays(t)
			o := w.Options()
			o.SweepInterval = time.Hour
			a, stop := w.Run(o)
			for i, names := range order {
				var payloads []intent.Payload
				for _, name := range names {
					if name == "owner" {
						payloads = append(payloads, ownerOf(w, "xdp_count", v1alpha1.Map{}, "other", "taker"))
					} else {
						payloads = append(payloads, takerOf(w, "tcx_count", "count_ingress", "tcx/ingress"))
					}
				}
				w.Must(a, payloads...)
				if i == 0 && names[0] == "taker" && len(names) == 1 {
					says(t, a, "taker", "waits for map counts of application owner")
					if got, _ := conditionOf(a, "taker"); got != "False Waiting" {
						t.Errorf("deployed: %s", got)
					}
					stop()
					a, stop = w.Run(o)
					w.Must(a)
					says(t, a, "taker", "waits for map counts of application owner")
				}
			}
			id := sharesOneMap(w, a)
			bothCount(w, a)
			stop()
			a, _ = w.Run(o)
			w.Must(a)
			if again := sharesOneMap(w, a); again != id {
				t.Errorf("a restart made map %d of %d", again, id)
			}
			bothCount(w, a)
		})
	}
}

// TestTheTakerGoes: the owner's map stays where it is.
func TestTheTakerGoes(t *testing.T) {
	w, a, _, id := both(t)
	w.Must(a, w.Tombstone(takerOf(w, "xdp_count", "count_packets", "xdp")))
	if _, err := os.Stat(filepath.Join(w.BPFFS, "uid-taker")); !os.IsNotExist(err) {
		t.Errorf("left of the taker: %v", err)
	}
	if now := mapOf(w, a, "owner", "counts"); now != id {
		t.Errorf("the owner has map %d, and had %d", now, id)
	}
	world.Send(t, "so1", 2)
	world.Until(t, "the owner to count", time.Minute, func() bool { return world.Count(t, world.Counts(w, a, "owner")) == 2 })
}

// TestTheOwnerGoes: it is gone at once, and the taker counts on in the map that it has, also
// after a restart. The next owner of the name gives it its own.
func TestTheOwnerGoes(t *testing.T) {
	w, a, stop, id := both(t)
	bothCount(w, a)
	w.Must(a, w.Tombstone(ownerOf(w, "xdp_count", v1alpha1.Map{})))
	if _, err := os.Stat(filepath.Join(w.BPFFS, "uid-owner")); !os.IsNotExist(err) {
		t.Errorf("left of the owner: %v", err)
	}
	for range 2 {
		says(t, a, "taker", "every program runs", "application owner, which had map counts, is gone", "the map stays until")
		keeps(w, a, id)
		stop()
		a, stop = w.Start()
		w.Must(a)
	}

	next := ownerOf(w, "xdp_count", v1alpha1.Map{}, "taker")
	next.UID = "uid-owner-again"
	w.Must(a, next)
	if now := sharesOneMap(w, a); now == id {
		t.Error("the next owner has the map of the one before")
	}
	bothCount(w, a)
	isWell(t, a)
}

// TestTheOwnerIsUpdated: a map that stays is the same for both, and the taker follows to one
// that is made anew, under its link.
func TestTheOwnerIsUpdated(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct{ object, program, hook string }{
		"a chain":       {"xdp_count_v2", "count_packets", "xdp"},
		"a TCX program": {"tcx_count", "count_ingress", "tcx/ingress"},
		"a filter":      {"tcx_count", "count_ingress", "tc/ingress"},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := twoWays(t)
			o, drift := w.Options(), &drifts{}
			o.Observer = drift
			a := w.StartWith(o)
			w.Must(a, ownerOf(w, "xdp_count", v1alpha1.Map{}, "taker"), takerOf(w, c.object, c.program, c.hook))
			id := sharesOneMap(w, a)
			bothCount(w, a)
			links, own := world.StatusOf(a, "taker").Programs[0].Links, mapOf(w, a, "taker", "%2ebss")

			w.Must(a, ownerOf(w, "xdp_count_v2", v1alpha1.Map{}, "taker"))
			if now := sharesOneMap(w, a); now != id {
				t.Errorf("the owner kept the map: it was %d and is %d", id, now)
			}
			bothCount(w, a)

			w.Must(a, ownerOf(w, "xdp_count_v2", v1alpha1.Map{OnUpdate: v1alpha1.MapReset}, "taker"))
			follows(w, a, id)
			bothCount(w, a)
			s := world.StatusOf(a, "taker")
			if now := s.Programs[0].Links; len(now) != len(links) || now[0].ID != links[0].ID {
				t.Errorf("the link is another: %+v, was %+v", now, links)
			}
			isWell(t, a)
			if now := mapOf(w, a, "taker", "%2ebss"); now != own || (own == 0) != (c.hook != "xdp") {
				t.Errorf("its own .bss is map %d, and was %d", now, own)
			}
			if n := len(world.FiltersOf(t, "st0", false)); n > 1 {
				t.Errorf("st0 has %d filters", n)
			}
			if n := drift.healed.Load(); n != 0 {
				t.Errorf("%d updates of the agent's own count as drift", n)
			}
		})
	}
}

// TestATracingProgramFollowsTheOwner: its link is made anew, and the former program is gone.
func TestATracingProgramFollowsTheOwner(t *testing.T) {
	w := twoWays(t)
	a, _ := w.Start()
	taker := takerOf(w, "raw_tp_count", "raw_tp_count", "xdp")
	taker.Programs = []v1alpha1.Program{world.RawProgram()}
	w.Must(a, ownerOf(w, "xdp_count", v1alpha1.Map{}, "taker"), taker)
	id := sharesOneMap(w, a)
	before := world.StatusOf(a, "taker").Programs[0]
	w.Must(a, ownerOf(w, "xdp_count", v1alpha1.Map{OnUpdate: v1alpha1.MapReset}, "taker"))
	follows(w, a, id)
	world.Until(t, "system calls in it", time.Minute, func() bool { return world.Count(t, world.Counts(w, a, "owner")) > 0 })
	world.Until(t, "the former program to be gone", time.Minute, func() bool {
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(before.ID))
		if err == nil {
			_ = p.Close()
		}
		return errors.Is(err, os.ErrNotExist)
	})
	if now := world.StatusOf(a, "taker").Programs[0]; now.ID == before.ID || len(now.Links) != 1 {
		t.Errorf("the program is %+v, and was %+v", now, before)
	}
}

// drifts counts what was put back.
type drifts struct {
	world.Revisions
	healed atomic.Int32
}

// Healed implements agent.Observer.
func (d *drifts) Healed(agent.Drift) { d.healed.Add(1) }

// TestAChainOfBothFollowsTheOwner: owner and taker are members of one chain.
func TestAChainOfBothFollowsTheOwner(t *testing.T) {
	w := twoWays(t)
	a, stop := w.Start()
	taker := takerOf(w, "xdp_count", "count_packets", "xdp")
	taker.Programs[0].Attach = world.On("xdp", "so0")
	w.Must(a, ownerOf(w, "xdp_count", v1alpha1.Map{OnUpdate: v1alpha1.MapReset}, "taker"), taker)
	id := sharesOneMap(w, a)
	w.Must(a, ownerOf(w, "xdp_count_v2", v1alpha1.Map{OnUpdate: v1alpha1.MapReset}, "taker"))
	follows(w, a, id)
	counts := func() {
		t.Helper()
		before := world.Count(t, world.Counts(w, a, "owner"))
		world.Until(t, "both members to count in it", time.Minute, func() bool {
			world.Send(t, "so1", 1)
			now := world.Count(t, world.Counts(w, a, "owner"))
			was := before
			before = now
			return now == was+2
		})
	}
	counts()
	stop()
	a, _ = w.Start()
	w.Must(a)
	counts()
}

// TestTheOwnersMapIsOfAnotherShape: the taker is not loaded with it, and one that runs stays
// as it is.
func TestTheOwnersMapIsOfAnotherShape(t *testing.T) {
	w := twoWays(t)
	a, stop := w.Start()
	err := w.Accept(a, ownerOf(w, "xdp_count_v3", v1alpha1.Map{}, "taker"), takerOf(w, "xdp_count", "count_packets", "xdp"))
	if err == nil || !strings.Contains(err.Error(), "map counts of application taker is not like map counts of owner: ") {
		t.Errorf("accepted: %v", err)
	}
	// An owner whose map is alike is taken at once, and not after a back-off.
	w.Give(a, ownerOf(w, "xdp_count", v1alpha1.Map{}, "taker"))
	id := sharesOneMap(w, a)
	bothCount(w, a)

	w.Must(a, ownerOf(w, "xdp_count_v3", v1alpha1.Map{}, "taker"))
	for range 2 {
		says(t, a, "taker", "every program runs", "map counts of application taker is not like map counts of owner")
		keeps(w, a, id)
		stop()
		a, stop = w.Start()
		w.Must(a)
	}
	w.Must(a, ownerOf(w, "xdp_count", v1alpha1.Map{}, "taker"))
	sharesOneMap(w, a)
	bothCount(w, a)
	isWell(t, a)
}

// TestNobodyReachesAMapAlone: an owner that does not list the taker, and one of another kind
// or namespace.
func TestNobodyReachesAMapAlone(t *testing.T) {
	w := twoWays(t)
	a, _ := w.Start()
	err := w.Accept(a, ownerOf(w, "xdp_count", v1alpha1.Map{}, "other"), takerOf(w, "xdp_count", "count_packets", "xdp"))
	if err == nil ||
		!strings.Contains(err.Error(), "application owner does not share its map counts with taker; add taker to spec.maps.counts.sharedWith of owner") {
		t.Errorf("accepted: %v", err)
	}
	owner := world.StatusOf(a, "owner").Revision
	w.Must(a, ownerOf(w, "xdp_count", v1alpha1.Map{}, "other", "taker"))
	id := sharesOneMap(w, a)
	if now := world.StatusOf(a, "owner").Revision; now != owner {
		t.Errorf("sharing a map loaded the owner anew: %s, was %s", now, owner)
	}

	// What is not shared any more stays where it runs, and is loaded nowhere anew.
	w.Must(a, ownerOf(w, "xdp_count", v1alpha1.Map{}))
	says(t, a, "taker", "every program runs", "application owner does not share its map counts with taker")
	keeps(w, a, id)
	if err := w.Accept(a, takerOf(w, "xdp_count_v2", "count_packets", "xdp")); err == nil || !strings.Contains(err.Error(), "does not share") {
		t.Errorf("another version is accepted: %v", err)
	}
}

// TestAMapOfAnotherNamespaceIsOutOfReach: the name is that of an application of the taker's
// own namespace and kind, whatever the others are called.
func TestAMapOfAnotherNamespaceIsOutOfReach(t *testing.T) {
	w := twoWays(t)
	a, _ := w.Start()
	owner, taker := ownerOf(w, "xdp_count", v1alpha1.Map{}, "taker"), takerOf(w, "xdp_count", "count_packets", "xdp")
	for i, other := range []v1alpha1.Identity{
		{Kind: v1alpha1.KindBpfApplication, Namespace: "red", Name: "owner"},
		{Kind: v1alpha1.KindClusterBpfApplication, Name: "owner"},
	} {
		one := owner
		one.Application, one.UID = other, "uid-owner-"+string(rune('a'+i))
		one.Programs = []v1alpha1.Program{{Name: "count_packets", Attach: world.On("xdp", "so0")}}
		w.Must(a, one)
	}
	taker.Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "blue", Name: "taker"}
	w.Must(a, taker)
	says(t, a, "taker", "waits for map counts of application owner", "no application of that name")
}

// TestApplicationsThatWaitForEachOtherAreTold: A takes a map of B, and B one of A.
func TestApplicationsThatWaitForEachOtherAreTold(t *testing.T) {
	w := twoWays(t)
	a, _ := w.Start()
	crosswise := func(name, other, mine, theirs, iface string) intent.Payload {
		p := w.Intent(name, "xdp_contents", v1alpha1.Program{Name: "xdp_contents", Attach: world.On("xdp", iface)})
		p.Maps = map[string]v1alpha1.Map{mine: {SharedWith: []string{other}}, theirs: {From: &v1alpha1.MapSource{Application: other, Map: theirs}}}
		return p
	}
	one, two := crosswise("one", "two", "limits", "recent", "so0"), crosswise("two", "one", "recent", "limits", "st0")
	err := w.Accept(a, one, two)
	if err == nil || !strings.Contains(err.Error(), "wait for each other: one takes recent from two, two takes limits from one") ||
		!strings.Contains(err.Error(), "let one of them have both maps") {
		t.Errorf("accepted: %v", err)
	}
	// It is looked at again without a back-off.
	fixed := w.Intent("two", "xdp_contents", v1alpha1.Program{Name: "xdp_contents", Attach: world.On("xdp", "st0")})
	fixed.Maps = map[string]v1alpha1.Map{"recent": {SharedWith: []string{"one"}}}
	w.Must(a, fixed)
	world.Until(t, "one to have the map of two", time.Minute, func() bool {
		id := mapOf(w, a, "two", "recent")
		return id != 0 && id == mapOf(w, a, "one", "recent")
	})
}

// TestAMapThatWasAnotherApplicationsIsNotKept: a version that declares the map itself has one
// of its own.
func TestAMapThatWasAnotherApplicationsIsNotKept(t *testing.T) {
	w, _, stop, id := both(t)
	stop()
	a, _ := w.Start()
	own := takerOf(w, "xdp_count", "count_packets", "xdp")
	own.Maps = nil
	w.Must(a, own)
	world.Until(t, "a map of its own", time.Minute, func() bool { now := mapOf(w, a, "taker", "counts"); return now != 0 && now != id })
	if s := world.StatusOf(a, "taker"); len(s.TakenMaps) != 0 {
		t.Errorf("the taker: %+v", s)
	}
}

// TestASharedMapCountsOnce: for its owner, and for the taker once the owner is gone.
func TestASharedMapCountsOnce(t *testing.T) {
	w := world.MemoryWorld(t)
	a, _ := world.WithMemory(w, 4, nil)
	owner, taker, third := world.Mapped(w, "home", "owner", 1, 3), world.Mapped(w, "home", "taker", 2, 1), world.Mapped(w, "area", "third", 3, 2)
	owner.Maps["big"] = v1alpha1.Map{MaxEntries: owner.Maps["big"].MaxEntries, SharedWith: []string{"taker"}}
	taker.Maps["big"] = v1alpha1.Map{From: &v1alpha1.MapSource{Application: "owner", Map: "big"}}
	world.Hand(w, a, owner, taker, third)
	if !world.IsIn(a, owner) || !world.IsIn(a, taker) {
		t.Fatalf("the owner is told %q, the taker %q", world.ErrorOf(a, owner), world.ErrorOf(a, taker))
	}
	held := "of the 4 MiB that this node has for maps and programs 3 MiB are held: "
	if got := world.ErrorOf(a, third); !strings.Contains(got, held) {
		t.Errorf("the third is told %q, want %q", got, held)
	}
	world.Hand(w, a, w.Tombstone(owner))
	if got := world.ErrorOf(a, third); !strings.Contains(got, held) || world.IsIn(a, third) || !world.IsIn(a, taker) {
		t.Errorf("with the owner gone the third is told %q, want %q", got, held)
	}
	world.Hand(w, a, w.Tombstone(taker))
	if !world.IsIn(a, third) {
		t.Errorf("with both gone the third is told %q", world.ErrorOf(a, third))
	}
}

// TestKillingTheAgentLeavesBothWithOneMap kills an agent again and again while owners come, are
// updated and go, and then lets a fresh one finish.
func TestKillingTheAgentLeavesBothWithOneMap(t *testing.T) {
	need.Kernel(t)
	rounds := 24
	if testing.Short() {
		rounds = 6
	}
	w := twoWays(t)
	for _, dir := range []string{"inbox", "objects"} {
		if err := os.MkdirAll(filepath.Join(w.Dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(p intent.Payload) {
		t.Helper()
		for path, body := range map[string][]byte{"inbox/" + p.Application.Name: w.Seal(p), "objects/" + p.ObjectDigest: w.Objects[p.ObjectDigest]} {
			if p.ObjectDigest == "" && strings.HasPrefix(path, "objects/") {
				continue
			}
			if err := os.WriteFile(filepath.Join(w.Dir, path), body, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(takerOf(w, "xdp_count", "count_packets", "xdp"))
	for round := range rounds {
		owner := ownerOf(w, []string{"xdp_count", "xdp_count_v2"}[round%2], v1alpha1.Map{OnUpdate: v1alpha1.MapReset}, "taker")
		if mathrand.IntN(5) == 0 {
			owner = w.Tombstone(owner)
		}
		write(owner)
		w.KillAfter(time.Duration(mathrand.IntN(150)) * time.Millisecond)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	a, _ := w.Start()
	w.Must(a, ownerOf(w, "xdp_count", v1alpha1.Map{OnUpdate: v1alpha1.MapReset}, "taker"), takerOf(w, "xdp_count", "count_packets", "xdp"))
	sharesOneMap(w, a)
	bothCount(w, a)
	for _, name := range []string{"owner", "taker"} {
		if found, err := filepath.Glob(filepath.Join(w.BPFFS, "uid-"+name, "*")); err != nil || len(found) != 1 {
			t.Errorf("%s has %v pinned, %v; want one revision", name, found, err)
		}
	}
}

// TestAMapThatNoProgramRefersToIsSharedAtOnce: to name it has it made.
func TestAMapThatNoProgramRefersToIsSharedAtOnce(t *testing.T) {
	w := twoWays(t)
	a, _ := w.Start()
	application := func(name, iface string) intent.Payload {
		return w.Intent(name, "tcx_reach", v1alpha1.Program{Name: "plain", Attach: world.On("tcx/ingress", iface)})
	}
	w.Must(a, application("owner", "so0"))
	if mapOf(w, a, "owner", "named") != 0 {
		t.Fatal("the map is made")
	}
	owner, taker := application("owner", "so0"), application("taker", "st0")
	owner.Maps = map[string]v1alpha1.Map{"named": {SharedWith: []string{"taker"}}}
	taker.Maps = map[string]v1alpha1.Map{"named": {From: &v1alpha1.MapSource{Application: "owner", Map: "named"}}}
	w.Must(a, owner, taker)
	world.Until(t, "both to have one map", time.Minute, func() bool {
		id := mapOf(w, a, "owner", "named")
		return id != 0 && id == mapOf(w, a, "taker", "named")
	})
}
