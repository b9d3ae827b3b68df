package kube_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/kube"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/need"
)

// stub stands in for the agent underneath.
type stub struct {
	mu       sync.Mutex
	accepted []intent.Envelope
	// reject is what Accept says of all but the first envelope.
	refuse error
	// hold keeps Run from its first turn until it is closed, where it is there.
	hold   chan struct{}
	status []agent.ApplicationStatus
	labels map[string]string
	passed chan struct{}
}

func newStub() *stub { return &stub{passed: make(chan struct{}, 1)} }

// Accept implements kube.Holder.
func (s *stub) Accept(envelopes ...intent.Envelope) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted = append(s.accepted, envelopes...)
	if bytes.Equal(envelopes[0], s.accepted[0]) {
		return nil
	}
	return s.refuse
}

// Report implements kube.Holder.
func (s *stub) Report() []agent.ApplicationStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Forget implements kube.Holder.
func (s *stub) Forget(func(string) bool) {}

// Relabel implements kube.Holder.
func (s *stub) Relabel(labels map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.labels = labels
}

// Retrust implements kube.Holder.
func (s *stub) Retrust(*intent.Trust) {}

// Run implements kube.Holder.
func (s *stub) Run(ctx context.Context) error {
	if s.hold != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-s.hold:
		}
	}
	turn := time.NewTicker(20 * time.Millisecond)
	defer turn.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-turn.C:
			select {
			case s.passed <- struct{}{}:
			default:
			}
		}
	}
}

// Reconciled implements kube.Holder.
func (s *stub) Reconciled() <-chan struct{} { return s.passed }

// says sets what Report tells of one application.
func (s *stub) says(uid, failure string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = []agent.ApplicationStatus{{
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}, UID: uid, Error: failure,
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionDeployed, Status: "False"}},
	}}
}

// count is how many envelopes were handed over.
func (s *stub) count() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.accepted))
}

// on puts the stub in the place of the agent underneath.
func (s *stub) on(o *kube.Options) {
	o.Holder, o.Profile = s, &v1alpha1.KernelProfile{Release: "1.2.3"}
}

func TestAnIntentThatCannotBeKeptIsTriedAgain(t *testing.T) {
	need.Kernel(t)
	w, s := newWorld(t, plane), newStub()
	s.refuse = errors.New("no space left on device")
	w.start(s.on, func(o *kube.Options) {
		o.Again = kube.Jitter{Least: 50 * time.Millisecond, Most: 60 * time.Millisecond}
	})
	w.apply(w.payload("good"))
	until(t, "the good one", func() bool { return s.count() == 1 })
	w.apply(w.payload("app"))
	until(t, "some attempts", func() bool { return s.count() >= 5 })
	if n := w.log.times("no space left"); n != 1 {
		t.Errorf("told %d times", n)
	}
	s.mu.Lock()
	s.refuse = nil
	s.mu.Unlock()
	settled(t, s.count)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, again := range s.accepted[1:] {
		if bytes.Equal(again, s.accepted[0]) {
			t.Error("what was accepted is handed over again")
		}
	}
}

func TestNothingIsReportedBeforeTheFirstTurn(t *testing.T) {
	need.Kernel(t)
	w, s := newWorld(t, plane), newStub()
	s.says("u", "words")
	_, stop := w.start(s.on)
	until(t, "a report", func() bool { n := w.report(); return n != nil && n.Status.Counts.Failed == 1 })
	stop()
	before, next := w.quiet(), newStub()
	next.hold = make(chan struct{})
	_, stop = w.start(next.on)
	next.mu.Lock()
	if next.labels["role"] != "edge" {
		t.Errorf("it begins with labels %v", next.labels)
	}
	next.mu.Unlock()
	w.quiet()
	next.says("u", "words")
	close(next.hold)
	if n := w.quiet() - before; n != 0 {
		t.Errorf("%d writes", n)
	}
	stop()
}

// TestAnAgentThatGoesRoundIsHealthyWhileItLists counts the turns that are noted while
// the programs in the kernel are being listed.
func TestAnAgentThatGoesRoundIsHealthyWhileItLists(t *testing.T) {
	need.Kernel(t)
	w, s := newWorld(t, plane), newStub()
	s.passed = make(chan struct{})
	listing := make(chan struct{})
	w.start(s.on, func(o *kube.Options) {
		o.Inventory = func(ctx context.Context) (inventory.Inventory, error) {
			close(listing)
			<-ctx.Done()
			return inventory.Inventory{}, ctx.Err()
		}
	})
	s.passed <- struct{}{}
	<-listing
	for range 5 {
		select {
		case s.passed <- struct{}{}:
		case <-time.After(10 * time.Second):
			t.Fatal("a turn is not noted")
		}
	}
}

// TestTheFirstChangeIsReportedAtOnce has changes wait for an hour, but for the first
// one that says what became of an application.
func TestTheFirstChangeIsReportedAtOnce(t *testing.T) {
	need.Kernel(t)
	w, s := newWorld(t, plane), newStub()
	s.says("u", "")
	w.start(s.on, func(o *kube.Options) {
		o.Debounce = kube.Jitter{Least: time.Hour, Most: time.Hour}
	})
	w.quiet()
	if n := w.report(); n != nil {
		t.Fatalf("it is reported that an application is on its way: %+v", n.Status)
	}
	s.says("u", "words")
	until(t, "the first report", func() bool { n := w.report(); return n != nil && n.Status.Counts.Failed == 1 })
	before := w.quiet()
	s.says("u", "other words")
	if n := w.quiet() - before; n != 0 {
		t.Errorf("%d writes for what comes right after", n)
	}
}

func TestWhatFailsAlikeIsWrittenOnceAndWhatCannotBeWrittenIsTriedEverMoreSlowly(t *testing.T) {
	need.Kernel(t)
	w, s := newWorld(t, plane), newStub()
	var patches []time.Time
	var mu sync.Mutex
	broken := true
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			if r.Method == http.MethodPatch {
				if patches = append(patches, time.Now()); broken {
					return &http.Response{StatusCode: http.StatusTeapot, Body: http.NoBody, Request: r}, nil
				}
			}
			return next.RoundTrip(r)
		})
	})
	w.start(s.on, func(o *kube.Options) {
		o.Retry = kube.Jitter{Least: 50 * time.Millisecond, Most: 10 * time.Second}
	})
	until(t, "a report", func() bool { return w.report() != nil })
	s.says("u", "words")
	until(t, "five attempts", func() bool { mu.Lock(); defer mu.Unlock(); return len(patches) == 5 })
	if first, last := patches[1].Sub(patches[0]), patches[4].Sub(patches[3]); last < 4*first {
		t.Errorf("waits %v, then %v", first, last)
	}
	if n := w.log.times("cannot report"); n != 1 {
		t.Errorf("told %d times", n)
	}
	mu.Lock()
	broken = false
	mu.Unlock()
	until(t, "the report", func() bool {
		n := w.report().Status
		return n.Counts.Failed == 1 && n.Applications[0].Message == "words"
	})
	before := w.quiet()
	s.says("u", "words")
	if n := w.quiet(); n != before {
		t.Errorf("the same words are written %d times more", n-before)
	}
	s.says("u", "other words")
	until(t, "other words", func() bool { return w.report().Status.Applications[0].Message == "other words" })
}

// roundTrip is a function as an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTheReportIsMadeAnewForANodeThatIsMadeAnew(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	w.start(newStub().on)
	until(t, "a report", func() bool { return w.report() != nil })
	if err := w.admin.Delete(t.Context(), w.report()); err != nil {
		t.Fatal(err)
	}
	until(t, "another", func() bool { return w.report() != nil })
	old := w.report().OwnerReferences[0].UID
	if err := w.admin.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name}}); err != nil {
		t.Fatal(err)
	}
	w.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name}})
	n := &corev1.Node{}
	if err := w.admin.Get(t.Context(), client.ObjectKey{Name: w.name}, n); err != nil || n.UID == old {
		t.Fatal(err, n.UID)
	}
	until(t, "the new owner", func() bool { return w.report().OwnerReferences[0].UID == n.UID })
}

func TestForeignProgramsAreToldWhereTheyCanBeListed(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	var mu sync.Mutex
	var listed inventory.Inventory
	failure := error(&fs.PathError{Op: "list", Err: fs.ErrPermission})
	w.start(newStub().on, func(o *kube.Options) {
		o.InventoryInterval = 50 * time.Millisecond
		o.Inventory = func(context.Context) (inventory.Inventory, error) {
			mu.Lock()
			defer mu.Unlock()
			return listed, failure
		}
	})
	until(t, "a report without", func() bool { n := w.report(); return n != nil && n.Status.Kernel.Release == "1.2.3" })
	if w.quiet(); w.log.times("cannot list the programs") != 1 {
		t.Errorf("told %d times", w.log.times("cannot list the programs"))
	}
	mu.Lock()
	failure, listed.Programs = nil, []inventory.Program{
		{ID: 7, Type: "XDP", Name: "theirs", Holders: []inventory.Process{{PID: 1, Name: "them"}}}, {ID: 8, Managed: true},
	}
	mu.Unlock()
	until(t, "a report with them", func() bool { return w.report().Status.Counts.Programs == 2 })
	s := w.report().Status
	if s.Counts.Unmanaged != 1 || len(s.Unmanaged) != 1 || s.Unmanaged[0] != (v1alpha1.UnmanagedProgram{ID: 7, Type: "XDP", Name: "theirs", LoadedBy: "them"}) {
		t.Errorf("%+v", s)
	}
}

// TestAReportHasRoomBesideWhatOthersAdded: labels and annotations count against the
// bound of a BpfNode, which the API server rejects beyond it.
func TestAReportHasRoomBesideWhatOthersAdded(t *testing.T) {
	need.Kernel(t)
	w, s := newWorld(t, plane), newStub()
	w.start(s.on)
	until(t, "a report", func() bool { return w.report() != nil })
	annotate := func(bytes int) {
		n := w.report()
		before := n.DeepCopy()
		n.Annotations = map[string]string{"example.com/added": strings.Repeat("a", bytes)}
		if err := w.admin.Patch(t.Context(), n, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	annotate(20 << 10)
	until(t, "what leaves no room to be taken off", func() bool { return len(w.report().Annotations) == 0 })
	annotate(6 << 10)
	var all []agent.ApplicationStatus
	for i := range 100 {
		all = append(all, agent.ApplicationStatus{
			Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "namespace", Name: "name"},
			UID:         fmt.Sprintf("0f8fad5b-d9cb-469f-a165-%012d", i), Serial: w.serial, Error: strings.Repeat("e", 1000),
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionDeployed, Status: "False"}}})
	}
	s.mu.Lock()
	s.status = all
	s.mu.Unlock()
	until(t, "all of them in what room there is", func() bool {
		n := w.report()
		n.ManagedFields = nil
		body, err := json.Marshal(n)
		return err == nil && n.Status.Counts.Failed == 100 && len(n.Annotations) == 1 && len(body) <= v1alpha1.MaxBpfNodeBytes
	})
}

func TestAFullReportIsTakenByTheAPIServer(t *testing.T) {
	need.Kernel(t)
	w, s := newWorld(t, plane), newStub()
	w.start(s.on)
	until(t, "a report", func() bool { return w.report() != nil })
	var all []agent.ApplicationStatus
	for i := range 100 {
		all = append(all, agent.ApplicationStatus{
			Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "namespace", Name: strings.Repeat("n", 30)},
			UID:         "0f8fad5b-d9cb-469f-a165-70867728" + time.UnixMilli(int64(i)).Format(".000"), Serial: w.serial, Error: strings.Repeat("é\n", 3000),
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionDeployed, Status: "False"}}})
	}
	s.mu.Lock()
	s.status = all
	s.mu.Unlock()
	until(t, "all of them", func() bool { return w.report().Status.Counts.Failed == 100 })
	n := w.report()
	if len(n.Status.Applications) != 100 {
		t.Errorf("%d applications", len(n.Status.Applications))
	}
	body, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	if len(body) > v1alpha1.MaxBpfNodeBytes {
		t.Errorf("%d bytes", len(body))
	}
	// It stays so.
	s.says("u", "words")
	until(t, "one of them", func() bool { return w.report().Status.Counts.Failed == 1 })
	if n := w.report(); len(n.ManagedFields) > 0 || len(n.OwnerReferences) != 1 {
		t.Errorf("%+v", n.ObjectMeta)
	}
}
