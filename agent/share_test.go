package agent_test

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
	"github.com/skep-dev/skep/test/harness/need"
)

// The tests below have two applications: owner counts packets of so0 in its map counts, and
// taker those of st0 in the same map.

// twoWays is a world with the interfaces of both.
func twoWays(t *testing.T) *world {
	t.Helper()
	need.Kernel(t)
	quiet(t)
	w := newWorld(t)
	veth(t, "so0", "so1")
	veth(t, "st0", "st1")
	return w
}

// both has the owner and the taker run, and returns their map.
func both(t *testing.T) (w *world, a *agent.Agent, stop func(), id ebpf.MapID) {
	t.Helper()
	w = twoWays(t)
	a, stop = w.start()
	w.must(a, w.owner("xdp_count", v1alpha1.Map{}, "taker"), w.taker("xdp_count", "count_packets", "xdp"))
	return w, a, stop, w.shared(a)
}

// owner shares its map with the applications.
func (w *world) owner(object string, m v1alpha1.Map, with ...string) intent.Payload {
	p := w.intent("owner", object, v1alpha1.Program{Name: "count_packets", Attach: on("xdp", "so0")})
	m.SharedWith = with
	p.Maps = map[string]v1alpha1.Map{"counts": m}
	return p
}

// taker has the owner's map in place of its own.
func (w *world) taker(object, program, hook string) intent.Payload {
	p := w.intent("taker", object, v1alpha1.Program{Name: program, Attach: on(hook, "st0")})
	p.Maps = map[string]v1alpha1.Map{"counts": {From: &v1alpha1.MapSource{Application: "owner", Map: "counts"}}}
	return p
}

// mapOf returns the kernel's id of a pinned map; 0 where it is not there.
func (w *world) mapOf(a *agent.Agent, name, escaped string) ebpf.MapID {
	w.t.Helper()
	s := statusOf(a, name)
	if s == nil {
		return 0
	}
	m, err := ebpf.LoadPinnedMap(filepath.Join(w.bpffs, s.UID, s.Revision, "m-"+escaped), nil)
	if err != nil {
		return 0
	}
	defer func() { _ = m.Close() }()
	info, err := m.Info()
	if err != nil {
		w.t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

// shared waits until both run with one map, and returns its id. A taker that had to keep another
// one has a map before its program runs.
func (w *world) shared(a *agent.Agent) ebpf.MapID {
	w.t.Helper()
	var id ebpf.MapID
	until(w.t, "both to have one map", time.Minute, func() bool {
		id = w.mapOf(a, "owner", "counts")
		state, _ := conditionOf(a, "taker")
		return id != 0 && id == w.mapOf(a, "taker", "counts") && state == "True Deployed" && !statusOf(a, "taker").KeepsMap() && w.runsWhatIsPinned(a, "taker")
	})
	return id
}

// runsWhatIsPinned reports whether the status is of the program that is pinned: pins with another map
// come before the program that uses it runs.
func (w *world) runsWhatIsPinned(a *agent.Agent, name string) bool {
	w.t.Helper()
	s := statusOf(a, name)
	if s == nil || len(s.Programs) != 1 {
		return false
	}
	p, err := ebpf.LoadPinnedProgram(filepath.Join(w.bpffs, s.UID, s.Revision, "p-"+s.Programs[0].Name), nil)
	if err != nil {
		return false
	}
	defer func() { _ = p.Close() }()
	id, err := pins.ProgramID(p)
	return err == nil && uint32(id) == s.Programs[0].ID
}

// conditionOf is the status, reason and message of the condition Deployed.
func conditionOf(a *agent.Agent, name string) (state, message string) {
	s := statusOf(a, name)
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
	until(t, name+" to say "+strings.Join(texts, " and "), time.Minute, func() bool {
		_, message = conditionOf(a, name)
		return !slices.ContainsFunc(texts, func(one string) bool { return !strings.Contains(message, one) })
	})
}

// bothCount sends packets to both, and holds that one map counts them all.
func (w *world) bothCount(a *agent.Agent) {
	w.t.Helper()
	before := count(w.t, w.counts(a, "owner"))
	send(w.t, "so1", 3)
	send(w.t, "st1", 4)
	until(w.t, "seven packets in the one map", time.Minute, func() bool { return count(w.t, w.counts(a, "owner")) == before+7 })
	if n := count(w.t, w.counts(a, "taker")); n != before+7 {
		w.t.Errorf("the taker reads %d, the owner %d", n, before+7)
	}
}

// keeps holds that the taker has the map still, and counts in it.
func (w *world) keeps(a *agent.Agent, id ebpf.MapID) {
	w.t.Helper()
	if now := w.mapOf(a, "taker", "counts"); now != id {
		w.t.Errorf("the taker has map %d, and had %d", now, id)
	}
	before := count(w.t, w.counts(a, "taker"))
	send(w.t, "st1", 2)
	until(w.t, "the taker to count on", time.Minute, func() bool { return count(w.t, w.counts(a, "taker")) == before+2 })
}

// follows waits until both have another map than before.
func (w *world) follows(a *agent.Agent, before ebpf.MapID) {
	w.t.Helper()
	until(w.t, "another map", time.Minute, func() bool { return w.mapOf(a, "owner", "counts") != before })
	w.shared(a)
}

// isWell holds that nothing is to be said of the taker.
func isWell(t *testing.T, a *agent.Agent) {
	t.Helper()
	if s := statusOf(a, "taker"); s.Error != "" || s.KeepsMap() {
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
			o := w.options()
			o.SweepInterval = time.Hour
			a, stop := w.run(o)
			for i, names := range order {
				var payloads []intent.Payload
				for _, name := range names {
					if name == "owner" {
						payloads = append(payloads, w.owner("xdp_count", v1alpha1.Map{}, "other", "taker"))
					} else {
						payloads = append(payloads, w.taker("tcx_count", "count_ingress", "tcx/ingress"))
					}
				}
				w.must(a, payloads...)
				if i == 0 && names[0] == "taker" && len(names) == 1 {
					says(t, a, "taker", "waits for map counts of application owner")
					if got, _ := conditionOf(a, "taker"); got != "False Waiting" {
						t.Errorf("deployed: %s", got)
					}
					stop()
					a, stop = w.run(o)
					w.must(a)
					says(t, a, "taker", "waits for map counts of application owner")
				}
			}
			id := w.shared(a)
			w.bothCount(a)
			stop()
			a, _ = w.run(o)
			w.must(a)
			if again := w.shared(a); again != id {
				t.Errorf("a restart made map %d of %d", again, id)
			}
			w.bothCount(a)
		})
	}
}

// TestTheTakerGoes: the owner's map stays where it is.
func TestTheTakerGoes(t *testing.T) {
	w, a, _, id := both(t)
	w.must(a, w.tombstone(w.taker("xdp_count", "count_packets", "xdp")))
	if _, err := os.Stat(filepath.Join(w.bpffs, "uid-taker")); !os.IsNotExist(err) {
		t.Errorf("left of the taker: %v", err)
	}
	if now := w.mapOf(a, "owner", "counts"); now != id {
		t.Errorf("the owner has map %d, and had %d", now, id)
	}
	send(t, "so1", 2)
	until(t, "the owner to count", time.Minute, func() bool { return count(t, w.counts(a, "owner")) == 2 })
}

// TestTheOwnerGoes: it is gone at once, and the taker counts on in the map that it has, also
// after a restart. The next owner of the name gives it its own.
func TestTheOwnerGoes(t *testing.T) {
	w, a, stop, id := both(t)
	w.bothCount(a)
	w.must(a, w.tombstone(w.owner("xdp_count", v1alpha1.Map{})))
	if _, err := os.Stat(filepath.Join(w.bpffs, "uid-owner")); !os.IsNotExist(err) {
		t.Errorf("left of the owner: %v", err)
	}
	for range 2 {
		says(t, a, "taker", "every program runs", "application owner, which had map counts, is gone", "the map stays until")
		w.keeps(a, id)
		stop()
		a, stop = w.start()
		w.must(a)
	}

	next := w.owner("xdp_count", v1alpha1.Map{}, "taker")
	next.UID = "uid-owner-again"
	w.must(a, next)
	if now := w.shared(a); now == id {
		t.Error("the next owner has the map of the one before")
	}
	w.bothCount(a)
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
			o, drift := w.options(), &drifts{}
			o.Observer = drift
			a := w.startWith(o)
			w.must(a, w.owner("xdp_count", v1alpha1.Map{}, "taker"), w.taker(c.object, c.program, c.hook))
			id := w.shared(a)
			w.bothCount(a)
			links, own := statusOf(a, "taker").Programs[0].Links, w.mapOf(a, "taker", "%2ebss")

			w.must(a, w.owner("xdp_count_v2", v1alpha1.Map{}, "taker"))
			if now := w.shared(a); now != id {
				t.Errorf("the owner kept the map: it was %d and is %d", id, now)
			}
			w.bothCount(a)

			w.must(a, w.owner("xdp_count_v2", v1alpha1.Map{OnUpdate: v1alpha1.MapReset}, "taker"))
			w.follows(a, id)
			w.bothCount(a)
			s := statusOf(a, "taker")
			if now := s.Programs[0].Links; len(now) != len(links) || now[0].ID != links[0].ID {
				t.Errorf("the link is another: %+v, was %+v", now, links)
			}
			isWell(t, a)
			if now := w.mapOf(a, "taker", "%2ebss"); now != own || (own == 0) != (c.hook != "xdp") {
				t.Errorf("its own .bss is map %d, and was %d", now, own)
			}
			if n := len(filtersOf(t, "st0", false)); n > 1 {
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
	a, _ := w.start()
	taker := w.taker("raw_tp_count", "raw_tp_count", "xdp")
	taker.Programs = []v1alpha1.Program{rawProgram()}
	w.must(a, w.owner("xdp_count", v1alpha1.Map{}, "taker"), taker)
	id := w.shared(a)
	before := statusOf(a, "taker").Programs[0]
	w.must(a, w.owner("xdp_count", v1alpha1.Map{OnUpdate: v1alpha1.MapReset}, "taker"))
	w.follows(a, id)
	until(t, "system calls in it", time.Minute, func() bool { return count(t, w.counts(a, "owner")) > 0 })
	until(t, "the former program to be gone", time.Minute, func() bool {
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(before.ID))
		if err == nil {
			_ = p.Close()
		}
		return errors.Is(err, os.ErrNotExist)
	})
	if now := statusOf(a, "taker").Programs[0]; now.ID == before.ID || len(now.Links) != 1 {
		t.Errorf("the program is %+v, and was %+v", now, before)
	}
}

// drifts counts what was put back.
type drifts struct {
	revisions
	healed atomic.Int32
}

// Healed implements agent.Observer.
func (d *drifts) Healed(agent.Drift) { d.healed.Add(1) }

// TestAChainOfBothFollowsTheOwner: owner and taker are members of one chain.
func TestAChainOfBothFollowsTheOwner(t *testing.T) {
	w := twoWays(t)
	a, stop := w.start()
	taker := w.taker("xdp_count", "count_packets", "xdp")
	taker.Programs[0].Attach = on("xdp", "so0")
	w.must(a, w.owner("xdp_count", v1alpha1.Map{OnUpdate: v1alpha1.MapReset}, "taker"), taker)
	id := w.shared(a)
	w.must(a, w.owner("xdp_count_v2", v1alpha1.Map{OnUpdate: v1alpha1.MapReset}, "taker"))
	w.follows(a, id)
	counts := func() {
		t.Helper()
		before := count(t, w.counts(a, "owner"))
		until(t, "both members to count in it", time.Minute, func() bool {
			send(t, "so1", 1)
			now := count(t, w.counts(a, "owner"))
			was := before
			before = now
			return now == was+2
		})
	}
	counts()
	stop()
	a, _ = w.start()
	w.must(a)
	counts()
}

// TestTheOwnersMapIsOfAnotherShape: the taker is not loaded with it, and one that runs stays
// as it is.
func TestTheOwnersMapIsOfAnotherShape(t *testing.T) {
	w := twoWays(t)
	a, stop := w.start()
	err := w.accept(a, w.owner("xdp_count_v3", v1alpha1.Map{}, "taker"), w.taker("xdp_count", "count_packets", "xdp"))
	if err == nil || !strings.Contains(err.Error(), "map counts of application taker is not like map counts of owner: ") {
		t.Errorf("accepted: %v", err)
	}
	// An owner whose map is alike is taken at once, and not after a back-off.
	w.give(a, w.owner("xdp_count", v1alpha1.Map{}, "taker"))
	id := w.shared(a)
	w.bothCount(a)

	w.must(a, w.owner("xdp_count_v3", v1alpha1.Map{}, "taker"))
	for range 2 {
		says(t, a, "taker", "every program runs", "map counts of application taker is not like map counts of owner")
		w.keeps(a, id)
		stop()
		a, stop = w.start()
		w.must(a)
	}
	w.must(a, w.owner("xdp_count", v1alpha1.Map{}, "taker"))
	w.shared(a)
	w.bothCount(a)
	isWell(t, a)
}

// TestNobodyReachesAMapAlone: an owner that does not list the taker, and one of another kind
// or namespace.
func TestNobodyReachesAMapAlone(t *testing.T) {
	w := twoWays(t)
	a, _ := w.start()
	err := w.accept(a, w.owner("xdp_count", v1alpha1.Map{}, "other"), w.taker("xdp_count", "count_packets", "xdp"))
	if err == nil ||
		!strings.Contains(err.Error(), "application owner does not share its map counts with taker; add taker to spec.maps.counts.sharedWith of owner") {
		t.Errorf("accepted: %v", err)
	}
	owner := statusOf(a, "owner").Revision
	w.must(a, w.owner("xdp_count", v1alpha1.Map{}, "other", "taker"))
	id := w.shared(a)
	if now := statusOf(a, "owner").Revision; now != owner {
		t.Errorf("sharing a map loaded the owner anew: %s, was %s", now, owner)
	}

	// What is not shared any more stays where it runs, and is loaded nowhere anew.
	w.must(a, w.owner("xdp_count", v1alpha1.Map{}))
	says(t, a, "taker", "every program runs", "application owner does not share its map counts with taker")
	w.keeps(a, id)
	if err := w.accept(a, w.taker("xdp_count_v2", "count_packets", "xdp")); err == nil || !strings.Contains(err.Error(), "does not share") {
		t.Errorf("another version is accepted: %v", err)
	}
}

// TestAMapOfAnotherNamespaceIsOutOfReach: the name is that of an application of the taker's
// own namespace and kind, whatever the others are called.
func TestAMapOfAnotherNamespaceIsOutOfReach(t *testing.T) {
	w := twoWays(t)
	a, _ := w.start()
	owner, taker := w.owner("xdp_count", v1alpha1.Map{}, "taker"), w.taker("xdp_count", "count_packets", "xdp")
	for i, other := range []v1alpha1.Identity{
		{Kind: v1alpha1.KindBpfApplication, Namespace: "red", Name: "owner"},
		{Kind: v1alpha1.KindClusterBpfApplication, Name: "owner"},
	} {
		one := owner
		one.Application, one.UID = other, "uid-owner-"+string(rune('a'+i))
		one.Programs = []v1alpha1.Program{{Name: "count_packets", Attach: on("xdp", "so0")}}
		w.must(a, one)
	}
	taker.Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "blue", Name: "taker"}
	w.must(a, taker)
	says(t, a, "taker", "waits for map counts of application owner", "no application of that name")
}

// TestApplicationsThatWaitForEachOtherAreTold: A takes a map of B, and B one of A.
func TestApplicationsThatWaitForEachOtherAreTold(t *testing.T) {
	w := twoWays(t)
	a, _ := w.start()
	crosswise := func(name, other, mine, theirs, iface string) intent.Payload {
		p := w.intent(name, "xdp_contents", v1alpha1.Program{Name: "xdp_contents", Attach: on("xdp", iface)})
		p.Maps = map[string]v1alpha1.Map{mine: {SharedWith: []string{other}}, theirs: {From: &v1alpha1.MapSource{Application: other, Map: theirs}}}
		return p
	}
	one, two := crosswise("one", "two", "limits", "recent", "so0"), crosswise("two", "one", "recent", "limits", "st0")
	err := w.accept(a, one, two)
	if err == nil || !strings.Contains(err.Error(), "wait for each other: one takes recent from two, two takes limits from one") ||
		!strings.Contains(err.Error(), "let one of them have both maps") {
		t.Errorf("accepted: %v", err)
	}
	// It is looked at again without a back-off.
	fixed := w.intent("two", "xdp_contents", v1alpha1.Program{Name: "xdp_contents", Attach: on("xdp", "st0")})
	fixed.Maps = map[string]v1alpha1.Map{"recent": {SharedWith: []string{"one"}}}
	w.must(a, fixed)
	until(t, "one to have the map of two", time.Minute, func() bool {
		id := w.mapOf(a, "two", "recent")
		return id != 0 && id == w.mapOf(a, "one", "recent")
	})
}

// TestAMapThatWasAnotherApplicationsIsNotKept: a version that declares the map itself has one
// of its own.
func TestAMapThatWasAnotherApplicationsIsNotKept(t *testing.T) {
	w, _, stop, id := both(t)
	stop()
	a, _ := w.start()
	own := w.taker("xdp_count", "count_packets", "xdp")
	own.Maps = nil
	w.must(a, own)
	until(t, "a map of its own", time.Minute, func() bool { now := w.mapOf(a, "taker", "counts"); return now != 0 && now != id })
	if s := statusOf(a, "taker"); len(s.TakenMaps) != 0 {
		t.Errorf("the taker: %+v", s)
	}
}

// TestASharedMapCountsOnce: for its owner, and for the taker once the owner is gone.
func TestASharedMapCountsOnce(t *testing.T) {
	w := memoryWorld(t)
	a, _ := w.withMemory(4, nil)
	owner, taker, third := w.mapped("home", "owner", 1, 3), w.mapped("home", "taker", 2, 1), w.mapped("area", "third", 3, 2)
	owner.Maps["big"] = v1alpha1.Map{MaxEntries: owner.Maps["big"].MaxEntries, SharedWith: []string{"taker"}}
	taker.Maps["big"] = v1alpha1.Map{From: &v1alpha1.MapSource{Application: "owner", Map: "big"}}
	w.hand(a, owner, taker, third)
	if !isIn(a, owner) || !isIn(a, taker) {
		t.Fatalf("the owner is told %q, the taker %q", errorOf(a, owner), errorOf(a, taker))
	}
	held := "of the 4 MiB that this node has for maps and programs 3 MiB are held: "
	if got := errorOf(a, third); !strings.Contains(got, held) {
		t.Errorf("the third is told %q, want %q", got, held)
	}
	w.hand(a, w.tombstone(owner))
	if got := errorOf(a, third); !strings.Contains(got, held) || isIn(a, third) || !isIn(a, taker) {
		t.Errorf("with the owner gone the third is told %q, want %q", got, held)
	}
	w.hand(a, w.tombstone(taker))
	if !isIn(a, third) {
		t.Errorf("with both gone the third is told %q", errorOf(a, third))
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
		if err := os.MkdirAll(filepath.Join(w.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(p intent.Payload) {
		t.Helper()
		for path, body := range map[string][]byte{"inbox/" + p.Application.Name: w.seal(p), "objects/" + p.ObjectDigest: w.objects[p.ObjectDigest]} {
			if p.ObjectDigest == "" && strings.HasPrefix(path, "objects/") {
				continue
			}
			if err := os.WriteFile(filepath.Join(w.dir, path), body, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(w.taker("xdp_count", "count_packets", "xdp"))
	for round := range rounds {
		owner := w.owner([]string{"xdp_count", "xdp_count_v2"}[round%2], v1alpha1.Map{OnUpdate: v1alpha1.MapReset}, "taker")
		if mathrand.IntN(5) == 0 {
			owner = w.tombstone(owner)
		}
		write(owner)
		w.killAfter(time.Duration(mathrand.IntN(150)) * time.Millisecond)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	a, _ := w.start()
	w.must(a, w.owner("xdp_count", v1alpha1.Map{OnUpdate: v1alpha1.MapReset}, "taker"), w.taker("xdp_count", "count_packets", "xdp"))
	w.shared(a)
	w.bothCount(a)
	for _, name := range []string{"owner", "taker"} {
		if found, err := filepath.Glob(filepath.Join(w.bpffs, "uid-"+name, "*")); err != nil || len(found) != 1 {
			t.Errorf("%s has %v pinned, %v; want one revision", name, found, err)
		}
	}
}

// TestAMapThatNoProgramRefersToIsSharedAtOnce: to name it has it made.
func TestAMapThatNoProgramRefersToIsSharedAtOnce(t *testing.T) {
	w := twoWays(t)
	a, _ := w.start()
	application := func(name, iface string) intent.Payload {
		return w.intent(name, "tcx_reach", v1alpha1.Program{Name: "plain", Attach: on("tcx/ingress", iface)})
	}
	w.must(a, application("owner", "so0"))
	if w.mapOf(a, "owner", "named") != 0 {
		t.Fatal("the map is made")
	}
	owner, taker := application("owner", "so0"), application("taker", "st0")
	owner.Maps = map[string]v1alpha1.Map{"named": {SharedWith: []string{"taker"}}}
	taker.Maps = map[string]v1alpha1.Map{"named": {From: &v1alpha1.MapSource{Application: "owner", Map: "named"}}}
	w.must(a, owner, taker)
	until(t, "both to have one map", time.Minute, func() bool {
		id := w.mapOf(a, "owner", "named")
		return id != 0 && id == w.mapOf(a, "taker", "named")
	})
}
