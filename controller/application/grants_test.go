package application

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// readBy grants the map of the fleet's programs to the pods of some namespaces.
func readBy(namespaces ...string) func(*v1alpha1.BpfApplicationSpec) {
	return func(s *v1alpha1.BpfApplicationSpec) {
		s.Maps = map[string]v1alpha1.Map{"counts": {Export: []v1alpha1.MapExport{{Access: v1alpha1.MapRead, Namespaces: namespaces}}}}
	}
}

// readByNone grants it to none.
func readByNone(s *v1alpha1.BpfApplicationSpec) { s.Maps = nil }

// readersOn are who reads the map by the intent of a node.
func (f *fleet) readersOn(p *intent.Payload, node string) (all []string) {
	f.t.Helper()
	envelope, err := f.Intents.Keys().Sealer.Seal(*p)
	if err != nil {
		f.t.Fatal(err)
	}
	o, err := f.Intents.Keys().Trust.Open(envelope)
	if err != nil {
		f.t.Fatal(err)
	}
	told := o.For(node)
	for _, g := range told.Payload().Maps["counts"].Export {
		all = append(all, g.Namespaces...)
	}
	return all
}

// readers are who reads the map by the intents of all nodes.
func (f *fleet) readers(p *intent.Payload) []string {
	f.t.Helper()
	all := f.readersOn(p, f.nodes[0])
	for _, node := range f.nodes[1:] {
		if on := f.readersOn(p, node); !cmp.Equal(all, on) {
			f.t.Errorf("%s has the readers %v, another node %v", node, on, all)
		}
	}
	return all
}

// TestAGrantWaitsForItsVersion gives a map a reader by a version that has not come to all nodes: what the version before has in
// it, no verdict let that reader see.
func TestAGrantWaitsForItsVersion(t *testing.T) {
	f := newFleet(t)
	f.edit(readBy("a"))
	p := f.edit(func(s *v1alpha1.BpfApplicationSpec) { readBy("a", "b")(s); s.Bytecode.Image = f.versions[1] })
	for _, node := range f.nodes {
		want := []string{"a"}
		if p.Reaches(node) {
			want = []string{"a", "b"}
		}
		if diff := cmp.Diff(want, f.readersOn(p, node)); diff != "" {
			t.Errorf("%s has the readers (-want +got):\n%s", node, diff)
		}
	}
}

// sealsOnce fails if more than the intent was sealed since the clock moved: a second one has the serial after the first.
func (f *fleet) sealsOnce(p *intent.Payload) {
	f.t.Helper()
	if now := f.clock.UnixMilli(); p.Serial != now {
		f.t.Errorf("serial %d is sealed at %d, after a wider grant", p.Serial, now)
	}
}

// TestAGrantIsNoRollout edits who reads a map while a version is on its way, and has not come to all nodes. The version before
// had all of these readers.
func TestAGrantIsNoRollout(t *testing.T) {
	f := newFleet(t)
	f.edit(readBy("a", "b", "c"))
	before := f.version(1)
	want, version, serial := f.say(before), before.VersionSerial(), before.Serial
	for _, c := range []struct {
		edit func(*v1alpha1.BpfApplicationSpec)
		// readers are those on nodes that the version has come to, held those on the others.
		readers, held []string
	}{
		{readBy("a", "b"), []string{"a", "b"}, []string{"a", "b"}}, {readBy("b"), []string{"b"}, []string{"b"}},
		{readBy("b", "c"), []string{"b", "c"}, []string{"b"}}, {readByNone, nil, nil},
	} {
		p := f.edit(c.edit)
		if f.say(p) != want || p.VersionSerial() != version || f.revision(p) != f.revision(before) || p.Serial <= serial {
			t.Errorf("%s under serial %d, want %s of version %d and a newer serial", f.say(p), p.Serial, want, version)
		}
		for _, node := range f.nodes {
			want := c.held
			if p.Reaches(node) {
				want = c.readers
			}
			if diff := cmp.Diff(want, f.readersOn(p, node)); diff != "" {
				t.Errorf("%s has the readers (-want +got):\n%s", node, diff)
			}
		}
		serial = p.Serial
	}
}

// TestAWithdrawnGrantWaitsForNothing takes a reader away in an edit that no other version is sealed for.
func TestAWithdrawnGrantWaitsForNothing(t *testing.T) {
	for sentence, c := range map[string]struct {
		do      func(*fleet)
		want    string
		readers []string
	}{
		"what is defined beside it is denied": {func(f *fleet) {
			f.edit(readBy("a", "b"))
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { readBy("b", "c")(s); s.Bytecode.Image = f.build(9) })
		}, "v1 on 5", []string{"b"}},
		"the registry has no such image": {func(f *fleet) {
			f.edit(readBy("a", "b"))
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { readByNone(s); s.Bytecode.Image += "-not-there" })
		}, "v1 on 5", nil},
		"the version with one reader less is undone": {func(f *fleet) {
			f.edit(readBy("a", "b"))
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { readBy("a")(s); s.Bytecode.Image = f.versions[1] })
			f.sealsOnce(f.undo())
		}, "v1 on 5, withdrawn v2", []string{"a"}},
		"it is undone already": {func(f *fleet) {
			f.edit(readBy("a", "b"))
			f.version(1)
			f.undo()
			f.edit(readBy("b"))
		}, "v1 on 5, withdrawn v2", []string{"b"}},
		"the newer version is revoked": {func(f *fleet) {
			f.edit(readBy("a", "b"))
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { readBy("a")(s); s.Bytecode.Image = f.versions[1] })
			f.sealsOnce(f.revoke("team-b"))
		}, "v1 on 5", []string{"a"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			c.do(f)
			p := f.settles()
			if f.say(p) != c.want {
				t.Errorf("%s, want %s", f.say(p), c.want)
			}
			if diff := cmp.Diff(c.readers, f.readers(p)); diff != "" {
				t.Errorf("readers (-want +got):\n%s", diff)
			}
			if again := f.settles(); again.Serial != p.Serial {
				t.Error("it is sealed again and again")
			}
		})
	}
}

// TestAWithdrawnGrantWaitsForNoRegistry looks at the readers when a registry is asked about the image of the same edit.
func TestAWithdrawnGrantWaitsForNoRegistry(t *testing.T) {
	f, once, readers := newFleet(t), sync.Once{}, make(chan []string, 1)
	f.edit(readBy("a", "b"))
	f.hang(func(w http.ResponseWriter, _ *http.Request) {
		once.Do(func() { readers <- f.readers(f.intent(f.app)) })
		http.Error(w, "no answer", http.StatusServiceUnavailable)
	})
	f.edit(func(s *v1alpha1.BpfApplicationSpec) { readBy("b")(s); s.Bytecode.Image += "-other" })
	if diff := cmp.Diff([]string{"b"}, <-readers); diff != "" {
		t.Errorf("readers (-want +got):\n%s", diff)
	}
}

// TestAWithdrawnGrantDeniesNoVersion has a policy unload what grants a map to a namespace, once the definition does no more. The
// version before, which nodes keep, was sealed with that grant.
func TestAWithdrawnGrantDeniesNoVersion(t *testing.T) {
	for sentence, withdraws := range map[string]func(*fleet){
		"with another version": func(f *fleet) {
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { readBy("b")(s); s.Bytecode.Image = f.versions[1] })
		},
		"while it is on its way": func(f *fleet) { f.version(1); f.edit(readBy("b")) },
		"in a definition that is denied": func(f *fleet) {
			f.version(1)
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { readBy("b")(s); s.Bytecode.Image = f.build(9) })
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.edit(readBy("a", "b"))
			withdraws(f)
			policy := denies(v1alpha1.RunningUnload)
			policy.Spec.Rego += notSigned + "\ndeny contains \"read by a\" if \"a\" in input.application.spec.maps.counts.export[_].namespaces\n"
			f.create(policy)
			f.refresh()
			if got, want := f.say(f.settles()), "v2 on 1, before v1"; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// noReader denies a grant to a namespace, atMost two of them, and noOwner what has no label.
const (
	noReader = "\ndeny contains \"read by a\" if \"a\" in input.application.spec.maps.counts.export[_].namespaces\n"
	noOwner  = "\ndeny contains \"no owner\" if not input.application.metadata.labels.owner\n"
	atMost   = "\ndeny contains \"many\" if count(input.application.spec.maps.counts.export) > 1\n"
)

// keepsDenied has a policy deny what runs, which keeps running.
func (f *fleet) keepsDenied(rego string) *v1alpha1.ClusterBpfPolicy {
	f.t.Helper()
	policy := denies(v1alpha1.RunningKeep)
	policy.Spec.Rego += notSigned + rego
	f.create(policy)
	f.refresh()
	return policy
}

// told are the events so far.
func (f *fleet) told() (all string) {
	for len(f.events.Events) > 0 {
		all += <-f.events.Events + "\n"
	}
	return all
}

// TestADeniedGrantWaitsForNothing has a policy deny what runs, and keep it.
func TestADeniedGrantWaitsForNothing(t *testing.T) {
	two := func(s *v1alpha1.BpfApplicationSpec) {
		readBy()(s)
		s.Maps["counts"] = v1alpha1.Map{Export: []v1alpha1.MapExport{
			{Access: v1alpha1.MapRead, Namespaces: []string{"a"}}, {Access: v1alpha1.MapRead, Namespaces: []string{"b", "c"}}}}
	}
	for sentence, c := range map[string]struct {
		before  func(*fleet)
		rego    string
		want    string
		readers []string
	}{
		"for one of two grants":           {nil, noReader, "v1 on 5", []string{"b", "c"}},
		"for it, and for something else":  {nil, noReader + noOwner, "v1 on 5", []string{"b", "c"}},
		"for what is no grant":            {nil, noOwner, "v1 on 5", []string{"a", "b", "c"}},
		"for two grants and not for each": {nil, atMost, "v1 on 5", []string{"a"}},
		"while the registry does not answer": {func(f *fleet) {
			f.hang(func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "no answer", http.StatusServiceUnavailable)
			})
		}, noReader, "v1 on 5", []string{"b", "c"}},
		"while it is suspended": {func(f *fleet) { f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Suspend = true }) }, noReader, "v1 on 5", []string{"b", "c"}},
		"while its definition has no image": {
			func(f *fleet) { f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Bytecode.Image += "-not-there" }) }, noReader, "v1 on 5", []string{"b", "c"},
		},
		"while its version is on its way": {func(f *fleet) { f.version(1) }, noReader, "v2 on 1, before v1", []string{"b", "c"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.edit(two)
			if c.before != nil {
				c.before(f)
			}
			f.keepsDenied(c.rego)
			p := f.settles()
			if f.say(p) != c.want {
				t.Errorf("%s, want %s", f.say(p), c.want)
			}
			if diff := cmp.Diff(c.readers, f.readers(p)); diff != "" {
				t.Errorf("readers (-want +got):\n%s", diff)
			}
			isDenied := len(c.readers) < 3
			if told := f.told(); strings.Contains(told, "readers of its maps are withdrawn") != isDenied || isDenied && !strings.Contains(told, "denies/") {
				t.Errorf("people are told %s", told)
			}
			status := conditions.Get(f.app, v1alpha1.ConditionAllowed).Message
			if isMissing := strings.Contains(status, "resolve/image"); isDenied && !isMissing && !strings.Contains(status, "denies/") {
				t.Errorf("its status does not name the rule: %s", status)
			}
			if again := f.settles(); again.Serial != p.Serial {
				t.Error("it is sealed again and again")
			}
		})
	}
}

// TestADeniedGrantHasNoUnloadProtection has a policy unload two programs for a grant, which unload protection keeps.
func TestADeniedGrantHasNoUnloadProtection(t *testing.T) {
	f := newFleet(t)
	f.edit(readBy("a", "b"))
	other := f.application("other")
	f.change(other, func() { readBy("a")(&other.Spec); other.Generation++ })
	if _, err := f.Reconcile(t.Context(), other.Identity()); err != nil {
		t.Fatal(err)
	}
	policy := denies(v1alpha1.RunningUnload)
	policy.Spec.Rego += notSigned + noReader
	f.create(policy)
	f.refresh()
	p := f.settles()
	if f.say(p) != "v1 on 5" {
		t.Errorf("%s, want v1 on 5", f.say(p))
	}
	if got := f.readers(p); len(got) > 0 {
		t.Errorf("it has the readers %v", got)
	}
}

// TestADeniedGrantComesBack has an admin take the rule back.
func TestADeniedGrantComesBack(t *testing.T) {
	f := newFleet(t)
	f.edit(readBy("a", "b"))
	policy := f.keepsDenied(noReader)
	if got := f.readers(f.settles()); len(got) > 0 {
		t.Errorf("it has the readers %v", got)
	}
	f.change(policy, func() { policy.Spec.Rego = denies(v1alpha1.RunningKeep).Spec.Rego + notSigned; policy.Generation++ })
	f.refresh()
	if diff := cmp.Diff([]string{"a", "b"}, f.readers(f.settles())); diff != "" {
		t.Errorf("readers (-want +got):\n%s", diff)
	}
}

// TestADeniedGrantWaitsForNoRegistry looks at the readers when a registry is asked who signed what runs.
func TestADeniedGrantWaitsForNoRegistry(t *testing.T) {
	f, once, readers := newFleet(t), sync.Once{}, make(chan []string, 1)
	f.edit(readBy("b", "a"))
	f.keepsDenied(noReader)
	f.clock = f.clock.Add(time.Hour)
	f.hang(func(w http.ResponseWriter, _ *http.Request) {
		once.Do(func() { readers <- f.readers(f.intent(f.app)) })
		http.Error(w, "no answer", http.StatusServiceUnavailable)
	})
	f.settles()
	select {
	case got := <-readers:
		if len(got) > 0 {
			t.Errorf("it has the readers %v while the registry is asked", got)
		}
	default:
		t.Error("no registry is asked")
	}
}

// noReaderOf denies a grant to a namespace by what a team signed.
func noReaderOf(team string) string {
	return "\ndeny contains \"read by a\" if {\n\t\"a\" in input.application.spec.maps.counts.export[_].namespaces\n" +
		"\tinput.signatures[_].signer == \"" + team + "\"\n}\n"
}

// TestADeniedGrantOfAVersionBesideWaitsForNothing has a policy deny a grant of the version that most nodes hold, and not of the newest.
func TestADeniedGrantOfAVersionBesideWaitsForNothing(t *testing.T) {
	for sentence, c := range map[string]struct {
		do   func(*fleet)
		want string
		// newest and held are the readers by the two versions.
		newest, held []string
	}{
		"the rollout goes on": {func(*fleet) {}, "v2 on 1, before v1", []string{"a", "b"}, []string{"b"}},
		"it is suspended": {func(f *fleet) { f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Suspend = true }) },
			"v2 on 1, before v1", []string{"a", "b"}, []string{"b"}},
		"its image is not there": {func(f *fleet) { f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.Bytecode.Image += "-not-there" }) },
			"v2 on 1, before v1", []string{"a", "b"}, []string{"b"}},
		"a third version is on its way":       {func(f *fleet) { f.version(2) }, "v3 on 1, before v1, withdrawn v2", []string{"a", "b"}, []string{"b"}},
		"the signer of the newest is revoked": {func(f *fleet) { f.revoke("team-b") }, "v1 on 5", []string{"b"}, []string{"b"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.answers(v1alpha1.NodeLoaded)
			f.edit(func(s *v1alpha1.BpfApplicationSpec) {
				s.Maps = map[string]v1alpha1.Map{"counts": {Export: []v1alpha1.MapExport{
					{Access: v1alpha1.MapRead, Namespaces: []string{"a"}}, {Access: v1alpha1.MapRead, Namespaces: []string{"b"}}}}}
			})
			f.version(1)
			c.do(f)
			f.keepsDenied(noReaderOf("team-a"))
			p := f.settles()
			if f.say(p) != c.want {
				t.Errorf("%s, want %s", f.say(p), c.want)
			}
			for _, node := range f.nodes {
				want := c.held
				if p.Reaches(node) {
					want = c.newest
				}
				if diff := cmp.Diff(want, f.readersOn(p, node)); diff != "" {
					t.Errorf("%s has the readers (-want +got):\n%s", node, diff)
				}
			}
			if told := f.told(); !strings.Contains(told, "readers of its maps are withdrawn") || !strings.Contains(told, "denies/") {
				t.Errorf("people are told %s", told)
			}
			if again := f.settles(); again.Serial != p.Serial {
				t.Error("it is sealed again and again")
			}
		})
	}
}

// TestANodeThatIsAheadKeepsNoReaderForOthers has one node say that it saw a newer intent, while no other version may be sealed.
func TestANodeThatIsAheadKeepsNoReaderForOthers(t *testing.T) {
	for sentence, do := range map[string]func(*fleet){
		"an edit of what is suspended": func(f *fleet) { f.edit(func(s *v1alpha1.BpfApplicationSpec) { readBy("b")(s); s.Suspend = true }) },
		"an edit with an image that is not there": func(f *fleet) {
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { readBy("b")(s); s.Bytecode.Image += "-not-there" })
		},
		"an edit that is denied": func(f *fleet) {
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { readBy("b")(s); s.Bytecode.Image = f.build(9) })
		},
		"an edit of a version that is on its way": func(f *fleet) { f.edit(readBy("b")) },
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.answers(v1alpha1.NodeLoaded)
			f.edit(readBy("a", "b"))
			f.version(1)
			f.overtake()
			ahead := max(f.intent(f.app).Serial+1, f.clock.Add(time.Minute).UnixMilli())
			do(f)
			p := f.settles()
			if diff := cmp.Diff([]string{"b"}, f.readers(p)); diff != "" || p.Serial <= ahead {
				t.Errorf("serial %d over %d, and readers (-want +got):\n%s", p.Serial, ahead, diff)
			}
			if got := f.say(p); got != "v2 on 1, before v1, withdrawn v2" {
				t.Errorf("by one node, the rollout is %s", got)
			}
			if again := f.settles(); again.Serial != p.Serial {
				t.Error("it is sealed again and again")
			}
		})
	}
}

// TestALargeVersionKeepsNoReader has one node say that it saw a newer intent, of a version that an intent has no room for twice.
func TestALargeVersionKeepsNoReader(t *testing.T) {
	f := newFleet(t)
	f.answers(v1alpha1.NodeLoaded)
	f.edit(readBy("a", "b"))
	f.edit(func(s *v1alpha1.BpfApplicationSpec) {
		s.Bytecode.Image = f.versions[1]
		not := metav1.LabelSelectorRequirement{Key: "large", Operator: metav1.LabelSelectorOpNotIn}
		for i := range intent.MaxPayloadBytes / 2 / 50 {
			not.Values = append(not.Values, fmt.Sprintf("%050d", i))
		}
		s.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{not}}
	})
	f.overtake()
	p := f.edit(func(s *v1alpha1.BpfApplicationSpec) { readBy("b")(s); s.Suspend = true })
	if diff := cmp.Diff([]string{"b"}, f.readers(p)); diff != "" || f.say(p) != "v2 on 1, before v1" {
		t.Errorf("%s, and readers (-want +got):\n%s", f.say(p), diff)
	}
}

// TestAWithdrawnGrantBringsNoVersionBack has readers denied of a version whose signer was revoked, and that came to no node since, while nodes say
// that they have seen a newer intent.
func TestAWithdrawnGrantBringsNoVersionBack(t *testing.T) {
	for sentence, leave := range map[string]func(*fleet){
		"it vanished with its CRD": func(f *fleet) { f.vanish(f.app) },
		"a policy keeps the version before, and would not admit it": func(f *fleet) {
			policy := denies(v1alpha1.RunningKeep, "team-a")
			policy.Spec.Rego += notSigned
			f.create(policy)
			f.refresh()
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.answers(v1alpha1.NodeLoaded)
			f.edit(readBy("a", "b"))
			f.version(1)
			leave(f)
			f.distrust("team-b")
			f.reconcile(f.app.Identity())
			f.outrun()
			other := denies(v1alpha1.RunningKeep)
			other.Name, other.UID, other.Spec.Rego = "readers", "readers", other.Spec.Rego+notSigned+noReader
			f.create(other)
			f.refresh()
			f.clock = f.clock.Add(time.Second)
			f.reconcile(f.app.Identity())
			if p := f.intent(f.app); f.say(p) != "v2 on 0, before v1" || len(f.readers(p)) > 0 {
				t.Errorf("%s, read by %v", f.say(p), f.readers(p))
			}
		})
	}
}

// TestAGrantOutlivesNoDefinition takes an application away whose programs run on, or are unloaded.
func TestAGrantOutlivesNoDefinition(t *testing.T) {
	for sentence, c := range map[string]struct {
		leave   func(*fleet)
		want    string
		readers []string
	}{
		"a finalizer keeps it": {func(f *fleet) {
			f.change(f.app, func() { f.app.Finalizers = []string{"example.com/keep"} })
			if err := f.api.Delete(t.Context(), f.app.DeepCopy()); err != nil {
				t.Fatal(err)
			}
		}, "gone", nil},
		"its successor cannot be evaluated, and grants less": {func(f *fleet) {
			if err := f.api.Delete(t.Context(), f.app.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			next := defined("app", f.build(9, "team-c"))
			readBy("b", "c")(&next.Spec)
			f.create(next)
			f.Down.Store(true)
		}, "v2 on 1, before v1", []string{"b"}},
		"it vanished with its CRD, and a policy denies its readers": {func(f *fleet) { f.vanish(f.app); f.keepsDenied(noReader) }, "v2 on 1, before v1", nil},
		"it vanished with its CRD":                                  {func(f *fleet) { f.vanish(f.app) }, "v2 on 1, before v1", []string{"a", "b"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.answers(v1alpha1.NodeLoaded)
			f.edit(readBy("a", "b"))
			f.version(1)
			c.leave(f)
			for range 3 {
				f.clock = f.clock.Add(time.Second)
				_, _ = f.Reconcile(t.Context(), f.app.Identity())
			}
			p := f.intent(f.app)
			if f.say(p) != c.want {
				t.Fatalf("%s, want %s", f.say(p), c.want)
			}
			if p.Tombstone {
				return
			}
			if diff := cmp.Diff(c.readers, f.readers(p)); diff != "" {
				t.Errorf("readers (-want +got):\n%s", diff)
			}
			f.clock = f.clock.Add(time.Minute)
			_, _ = f.Reconcile(t.Context(), f.app.Identity())
			if again := f.intent(f.app); again.Serial != p.Serial {
				t.Errorf("it is sealed again and again: %s", f.say(again))
			}
		})
	}
}

// TestGrantsAreLogged has grants come with an edit, go with another one, and go by a policy of the version that nodes hold.
func TestGrantsAreLogged(t *testing.T) {
	f := newFleet(t)
	f.answers(v1alpha1.NodeLoaded)
	var lines []string
	ctx := ctrl.LoggerInto(t.Context(), funcr.New(func(_, line string) {
		if strings.Contains(line, "grant") && strings.Contains(line, `"map"="counts"`) {
			lines = append(lines, line)
		}
	}, funcr.Options{}))
	after := func(do func(), want ...[]string) {
		t.Helper()
		lines = nil
		do()
		for range 3 {
			f.clock = f.clock.Add(time.Second)
			if _, err := f.Reconcile(ctx, f.app.Identity()); err != nil {
				t.Fatal(err)
			}
		}
		if len(lines) != len(want) {
			t.Errorf("%d lines, want %d: %s", len(lines), len(want), strings.Join(lines, "\n"))
			return
		}
		for i, words := range want {
			for _, word := range append(words, `"application"="app"`, `"access"="Read"`, `"object"="sha256:`, `"serial"=`, `"version"=`) {
				if !strings.Contains(lines[i], word) {
					t.Errorf("no %s in %s", word, lines[i])
				}
			}
		}
	}
	edit := func(change func(*v1alpha1.BpfApplicationSpec)) func() {
		return func() { f.change(f.app, func() { change(&f.app.Spec); f.app.Generation++ }) }
	}
	granted, withdrawn := `"msg"="a map is granted to readers"`, `"msg"="a grant of a map is withdrawn"`
	after(edit(readBy("a", "b")), []string{granted, `"namespaces"=["a" "b"]`, `"requester"=`})
	after(edit(readBy("a")), []string{withdrawn, `"namespaces"=["a" "b"]`}, []string{granted, `"namespaces"=["a"]`})
	after(edit(func(s *v1alpha1.BpfApplicationSpec) { s.Bytecode.Image = f.versions[1] }))
	after(func() { f.keepsDenied(noReaderOf("team-a")) }, []string{withdrawn, `"namespaces"=["a"]`})
	after(edit(readByNone), []string{withdrawn, `"namespaces"=["a"]`})
}
