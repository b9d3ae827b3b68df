package targets

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// looking has look-ups of paths that answer when the test says so.
type looking struct {
	*Lookups
	wakeups chan struct{}
	t       *testing.T
}

func newLooking(t *testing.T) looking {
	wakeups := make(chan struct{}, 1)
	return looking{NewLookups(attach.Host{}, slog.New(slog.DiscardHandler), func() {
		select {
		case wakeups <- struct{}{}:
		default:
		}
	}), wakeups, t}
}

// next is another reconcile, a while after the one before.
func (l looking) next(last *Round, after time.Duration) *Round {
	if last == nil {
		return l.Begin(time.Now(), Pods{})
	}
	last.End()
	return l.Begin(last.now.Add(after), Pods{})
}

// slowly is a look-up that gives each answer when it is sent.
type slowly chan answer

func (s slowly) look() answer { return <-s }

// give sends an answer, and returns when the look-up is done.
func (l looking) give(s slowly, key string, is answer) {
	l.t.Helper()
	s <- is
	if !l.byKey[key].ticket.Await(time.Minute) {
		l.t.Fatal("the look-up takes too long")
	}
}

func (l looking) woken() bool {
	select {
	case <-l.wakeups:
		return true
	case <-time.After(50 * time.Millisecond):
		return false
	}
}

func at(application, path string) plan.Attachment {
	return plan.Attachment{Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: application},
		Hook: "sk_lookup", Target: plan.Target{NetworkNamespace: path}}
}

// TestASlowPathIsAnswered has every look-up outlast the reconcile that begins it.
func TestASlowPathIsAnswered(t *testing.T) {
	l := newLooking(t)
	resolves, finds := make(slowly), make(slowly)
	one, other := answer{targets: []plan.Target{{NetnsID: 1}}}, answer{targets: []plan.Target{{NetnsID: 2}}}
	resolve := func(p *Round) (*answer, error) {
		return p.lookUp("resolve", !p.sought["resolve"], at("a", "/slow"), resolves.look)
	}
	find := func(p *Round) (*answer, error) { return p.lookUp("find", false, at("a", "/slow"), finds.look) }

	p := l.next(nil, 0)
	unanswered := new(UnansweredError)
	if _, err := resolve(p); !errors.As(err, &unanswered) || unanswered.Late {
		t.Fatalf("nothing answered, and it is %v", err)
	}
	p = l.next(p, 3*time.Second)
	if _, err := resolve(p); !errors.As(err, &unanswered) || !unanswered.Late {
		t.Fatalf("nothing answered for three seconds, and it is %v", err)
	}
	l.give(resolves, "resolve", one)
	if !l.woken() {
		t.Fatal("the first answer wakes nobody")
	}
	// It counts while it is asked for again, however long that takes.
	for range 3 {
		p = l.next(p, 3*time.Second)
		for range 2 {
			if is, err := resolve(p); err != nil || !is.same(&one) {
				t.Fatalf("%+v, %v", is, err)
			}
		}
		if _, err := find(p); !errors.As(err, &unanswered) {
			t.Fatalf("nothing was found, and it is %v", err)
		}
	}
	l.give(resolves, "resolve", one)
	if l.woken() {
		t.Error("an answer that says nothing new wakes the loop")
	}
	l.give(finds, "find", answer{})
	if !l.woken() {
		t.Error("what was found wakes nobody")
	}
	p = l.next(p, time.Second)
	if _, err := resolve(p); err != nil {
		t.Fatal(err)
	}
	if _, err := find(p); err != nil {
		t.Errorf("it was found: %v", err)
	}
	l.give(resolves, "resolve", other)
	if !l.woken() {
		t.Error("another answer wakes nobody")
	}
	p = l.next(p, time.Second)
	if is, err := resolve(p); err != nil || !is.same(&other) {
		t.Errorf("%+v, %v", is, err)
	}
	resolves <- other
	if _ = l.next(l.next(p, 0), 0); len(l.byKey) > 1 {
		t.Errorf("%d look-ups are kept that nobody seeks", len(l.byKey))
	}
}

// TestWhatStandsIsFoundAnewInTurns has files in containers of pods that stay as they are.
func TestWhatStandsIsFoundAnewInTurns(t *testing.T) {
	const many = 20
	l := newLooking(t)
	all, files := make([]containers.Container, many), make([]plan.Attachment, many)
	for i := range files {
		id := fmt.Sprint(i)
		all[i] = containers.Container{ID: id, Pod: containers.Pod{SandboxID: id}}
		files[i] = plan.Attachment{Application: at("a", "").Application, Hook: "uprobe", Target: plan.Target{Container: id, Binary: "/b"}}
	}
	seen := Pods{Snapshot: containers.NewSnapshot(all)}
	looks := func(pods Pods, takes time.Duration) (n int) {
		r := l.Begin(time.Now(), pods)
		for i, a := range files {
			_, err := r.standing(fmt.Sprint(i), a, func() answer {
				n++
				<-time.After(takes)
				return answer{}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		r.End()
		return n
	}
	if n := looks(seen, 0); n != many {
		t.Fatalf("of pods that are new, %d of %d are looked at", n, many)
	}
	seen.Before = seen.Snapshot
	if n := looks(seen, 0); n != 0 {
		t.Errorf("of pods that are as they were, %d are looked at", n)
	}
	fresh := seen
	fresh.IsNew = func(is v1alpha1.Identity) bool { return is == files[0].Application }
	if n := looks(fresh, 0); n != many {
		t.Errorf("of an intent that is new, %d of %d are looked at", n, many)
	}
	seen.Anew = true
	if n := looks(seen, 0); n != many {
		t.Errorf("of a full reconcile that nothing hurries, %d of %d are looked at", n, many)
	}
	// Full ones follow each other while what is slow is found anew: each in its turn, and none twice.
	seen.IsHurried = func() bool { return true }
	found := looks(seen, anewBudget)
	for !l.isWhole && found < 2*many {
		found += looks(seen, anewBudget)
	}
	if found != many || !l.isWhole {
		t.Errorf("full reconciles that are hurried look at %d of %d, and the rest is left: %v", found, many, !l.isWhole)
	}
}

// TestPlacesThatAreKeptAreBounded: choices of very many functions, of which none is attached, are not kept without end.
func TestPlacesThatAreKeptAreBounded(t *testing.T) {
	l := newLooking(t)
	team := func(namespace string, i int) plan.Attachment {
		return plan.Attachment{Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: "a"}, Hook: "uprobe.multi",
			Target: plan.Target{Binary: "/b", BinaryID: fmt.Sprint(namespace, i), Symbols: "f*"}}
	}
	kept := func(p *Round, of plan.Attachment) bool {
		if p.CheckPlaces(of) != nil {
			return false
		}
		p.keepPlaces(of.Application, functionsIn{of.BinaryID, of.Symbol, of.Symbols, of.Offset}, make([]uint64, v1alpha1.MaxFunctions))
		return true
	}
	p := l.next(nil, 0)
	for range 2 {
		for i := range 12 {
			for range 2 {
				if is := kept(p, team("team-a", i)); is != (i < 8) {
					t.Errorf("places of file %d are kept: %v", i, is)
				}
			}
		}
		if !kept(p, team("team-b", 0)) || p.CheckPlaces(plan.Attachment{Application: team("team-a", 0).Application, Target: plan.Target{Offset: 9}}) != nil {
			t.Error("it keeps others from what they look for, or what needs no look")
		}
		p = l.next(p, 0)
		if len(p.places) != 9 {
			t.Errorf("%d choices are kept", len(p.places))
		}
	}
}

// TestAnApplicationWhosePathsHangTakesNoOthersLookUps has one name more paths than there is
// room for.
func TestAnApplicationWhosePathsHangTakesNoOthersLookUps(t *testing.T) {
	l := newLooking(t)
	hangs := make(slowly)
	defer close(hangs)
	p := l.next(nil, 0)
	unanswered := new(UnansweredError)
	for i := range 2 * maxPerApplication {
		_, err := p.lookUp(fmt.Sprint("hung ", i), true, at("hung", fmt.Sprint(i)), hangs.look)
		if !errors.As(err, &unanswered) || unanswered.crowded != (i >= maxPerApplication) {
			t.Errorf("path %d: %v", i, err)
		}
	}
	if is, err := p.lookUp("healthy", true, at("other", "/healthy"), func() answer { return answer{targets: []plan.Target{{NetnsID: 1}}} }); err != nil ||
		is.targets[0].NetnsID != 1 {
		t.Errorf("another application: %+v, %v", is, err)
	}
}

// TestNamespacesWhosePathsHangLeaveRoomToOthers has eight namespaces take all places that there are for more than one
// look-up of an owner, and sixty-four one more each.
func TestNamespacesWhosePathsHangLeaveRoomToOthers(t *testing.T) {
	l := newLooking(t)
	hangs := make(slowly)
	defer close(hangs)
	p := l.next(nil, 0)
	of := func(namespace, application string) plan.Attachment {
		a := at(application, "/hung")
		a.Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: application}
		return a
	}
	healthy := func() answer { return answer{targets: []plan.Target{{NetnsID: 1}}} }
	for i := range 64 {
		namespace := fmt.Sprint("hung-", i)
		for n := range maxPerOwner + 1 {
			_, _ = p.lookUp(fmt.Sprint(namespace, n), true, of(namespace, fmt.Sprint(n/maxPerApplication)), hangs.look)
		}
	}
	if n := l.Waiting(); n < 8*maxPerOwner+56 {
		t.Fatalf("%d look-ups hang, want those of all namespaces", n)
	}
	for who, a := range map[string]plan.Attachment{"a ninth namespace": of("ninth", "web"), "an application of the cluster": at("cluster", "/healthy")} {
		// The time for waiting is used up, so the next reconcile has the answers.
		for i := range 2 {
			key := fmt.Sprint(who, i)
			_, _ = p.lookUp(key, true, a, healthy)
			if !l.byKey[key].ticket.Await(time.Minute) {
				t.Fatalf("%s has no answer", who)
			}
		}
	}
}
