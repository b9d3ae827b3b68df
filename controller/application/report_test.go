package application

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions/check"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/status"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/access"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// status is an application as it is now.
func (b *bench) status(app *v1alpha1.ClusterBpfApplication) *v1alpha1.ClusterBpfApplication {
	b.t.Helper()
	now := &v1alpha1.ClusterBpfApplication{}
	if err := b.api.Get(b.t.Context(), client.ObjectKeyFromObject(app), now); err != nil {
		b.t.Fatal(err)
	}
	return now
}

// condition is one of an application's; the zero value where it has none.
func condition(app application, kind string) metav1.Condition {
	for _, c := range app.GetConditions() {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}

func TestAnApplicationAtRestIsNotWritten(t *testing.T) {
	for name, c := range map[string]struct {
		signers []string
		down    bool
		is      string
	}{
		"it is denied":           {nil, false, v1alpha1.ConditionStalled},
		"it cannot be evaluated": {nil, true, v1alpha1.ConditionReconciling},
		"it waits for its nodes": {[]string{"team-a"}, false, v1alpha1.ConditionReconciling},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.node("one")
			ref, _ := b.Push("app:v1", programs.Object("tracepoint_count"), c.signers...)
			app := defined("app", ref)
			b.create(app)
			b.Down.Store(c.down)
			_, first := b.Reconcile(t.Context(), app.Identity())
			before := b.status(app)
			for i := range before.Status.Conditions {
				before.Status.Conditions[i].LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
			}
			if err := b.api.Status().Update(t.Context(), before); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Reconcile(t.Context(), app.Identity()); (err != nil) != c.down || (first != nil) != c.down {
				t.Fatalf("it says %v, then %v", first, err)
			}
			now := b.status(app)
			if condition(now, c.is).Status != metav1.ConditionTrue {
				t.Fatalf("conditions are %v", now.Status.Conditions)
			}
			if now.ResourceVersion != before.ResourceVersion {
				t.Errorf("it was written: %v, then %v", before.Status, now.Status)
			}
		})
	}
}

func TestAStatusIsNotWorkedOutFromAnOldOne(t *testing.T) {
	b := newBench(t)
	app := b.application("app")
	b.reconcile(app.Identity())
	b.node("one", b.says(app, v1alpha1.NodeLoaded))
	b.node("two", b.says(app, v1alpha1.NodeLoaded))
	b.reconcile(app.Identity())
	old := b.status(app)
	report := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: "two"}}
	b.change(report, func() {
		report.Status.Applications[0].State, report.Status.Applications[0].Message = v1alpha1.NodeFailed, "no"
	})
	b.reconcile(app.Identity())
	if n := b.status(app).Status.Nodes; n.Failed != 1 {
		t.Fatalf("nodes are %+v", n)
	}
	b.change(report, func() {
		report.Status.Applications[0].State, report.Status.Applications[0].Message = v1alpha1.NodePending, ""
	})
	for len(b.events.Events) > 0 {
		<-b.events.Events
	}

	// Another replica wrote that one failed, and the watch has yet to bring it.
	b.patched = patched{}
	b.showing(old)
	again := b.reconcile(app.Identity())
	if n := b.status(app).Status.Nodes; n.Failed > 0 && n.Pending > 0 || len(n.Failing) > int(n.Failed) {
		t.Errorf("nodes are %+v", n)
	}
	if again.RequeueAfter != reportSpacing || len(b.events.Events) > 0 {
		t.Errorf("it is looked at again after %s; people were told %d times", again.RequeueAfter, len(b.events.Events))
	}
	b.showing(nil)
	b.reconcile(app.Identity())
	if n := b.status(app).Status.Nodes; n.Loaded != 1 || n.Pending != 1 || n.Failed != 0 || len(n.Failing) != 0 {
		t.Errorf("nodes are %+v", n)
	}
}

// TestTheOwnStatusIsNotWaitedFor has a node report, and the event of an intent,
// arrive before the status that this controller wrote last.
func TestTheOwnStatusIsNotWaitedFor(t *testing.T) {
	b := newBench(t)
	app := b.application("app")
	old := b.status(app)
	b.reconcile(app.Identity())
	b.showing(old)
	first := b.status(app)
	b.reconcile(app.Identity())
	if now := b.status(app); now.ResourceVersion != first.ResourceVersion {
		t.Errorf("it was written again: %v, then %v", first.Status, now.Status)
	}
	b.node("one", b.says(app, v1alpha1.NodeLoaded))
	again := b.reconcile(app.Identity())
	if ready := condition(b.status(app), v1alpha1.ConditionReady); ready.Status != metav1.ConditionTrue || again.RequeueAfter == reportSpacing {
		t.Errorf("Ready is %+v, again after %s", ready, again.RequeueAfter)
	}
}

// TestReadyIsWrittenOnce has nodes answer within the time that a new version's
// status waits for them, and after it.
func TestReadyIsWrittenOnce(t *testing.T) {
	for name, c := range map[string]struct {
		after  time.Duration
		writes int
	}{
		"the node answers at once":  {10 * time.Millisecond, 1},
		"the node answers too late": {2 * time.Second, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ReadyWithin = time.Second
			b.node("one")
			app := b.application("app")
			writes, version := 0, b.status(app).ResourceVersion
			look := func() time.Duration {
				again := b.reconcile(app.Identity())
				if now := b.status(app).ResourceVersion; now != version {
					writes, version = writes+1, now
				}
				return again.RequeueAfter
			}
			if wait := look(); wait <= 0 || wait > b.ReadyWithin {
				t.Fatalf("the status is written after %s", wait)
			}
			if c.after > b.ReadyWithin {
				b.clock = b.clock.Add(b.ReadyWithin)
				look()
			}
			b.clock = b.clock.Add(c.after)
			report := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
			b.change(report, func() { report.Status.Applications = []v1alpha1.NodeApplication{b.says(app, v1alpha1.NodeLoaded)} })
			look()
			if ready := condition(b.status(app), v1alpha1.ConditionReady); ready.Status != metav1.ConditionTrue {
				t.Errorf("Ready is %+v", ready)
			}
			if writes != c.writes || len(b.events.Events) != c.writes {
				t.Errorf("%d writes and %d events, want %d", writes, len(b.events.Events), c.writes)
			}
		})
	}
}

func TestWhatIsSuspendedFailsNobodyWhoWaits(t *testing.T) {
	for name, c := range map[string]struct {
		// before tells that it ran before it was suspended.
		before bool
		says   v1alpha1.NodeState
		want   string
	}{
		"it runs":             {true, v1alpha1.NodeLoaded, "it is suspended; what runs is kept: loaded on 1 of 1 nodes"},
		"it fails":            {true, v1alpha1.NodeFailed, "it is suspended; what runs is kept: loaded on 0 of 1 nodes, 1 failed; one: "},
		"it was never loaded": {false, "", "it is suspended; nothing is deployed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			app := b.application("app")
			if c.before {
				b.reconcile(app.Identity())
				b.node("one", b.says(app, c.says))
				b.reconcile(app.Identity())
			}
			b.change(app, func() { app.Spec.Suspend = true })
			b.reconcile(app.Identity())
			now := b.status(app)
			ready := condition(now, v1alpha1.ConditionReady)
			if ready.Status != metav1.ConditionTrue || ready.Reason != ReasonSuspended || ready.Message != c.want {
				t.Errorf("Ready is %+v", ready)
			}
			for _, kind := range []string{v1alpha1.ConditionStalled, v1alpha1.ConditionReconciling} {
				if c := condition(now, kind); c.Type != "" {
					t.Errorf("%+v", c)
				}
			}
			checker := check.NewChecker(b.api, &check.Conditions{NegativePolarity: []string{v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled}})
			checker.DisableFetch = true
			if fail, warn := checker.Check(t.Context(), now); fail != nil || warn != nil {
				t.Errorf("FAIL %v, WARN %v", fail, warn)
			}
		})
	}
}

// TestWhatIsUnloadedIsSaidToBeOnceNodesReportIt has an application that two nodes run lose its
// only signer, and one of the nodes report that its kernel refuses to let go of it.
func TestWhatIsUnloadedIsSaidToBeOnceNodesReportIt(t *testing.T) {
	for name, suspended := range map[string]bool{"while it is suspended": true, "while it is not": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			app := b.application("app")
			b.reconcile(app.Identity())
			runs := b.says(app, v1alpha1.NodeLoaded)
			runs.Revision = "r1"
			b.node("one", runs)
			b.node("two", runs)
			b.reconcile(app.Identity())
			b.change(app, func() { app.Spec.Suspend = suspended })
			signer := &v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}
			b.change(signer, func() { signer.Spec.Revoked = true })
			b.refresh()
			look := func(reason, message string, ready metav1.ConditionStatus) {
				t.Helper()
				b.clock = b.clock.Add(progressAtEnd)
				b.reconcile(app.Identity())
				now := b.status(app)
				if c := condition(now, v1alpha1.ConditionDeployed); c.Status != metav1.ConditionFalse || c.Reason != reason || c.Message != message {
					t.Errorf("Deployed is %+v", c)
				}
				c := condition(now, v1alpha1.ConditionReady)
				if suspended && (c.Status != ready || c.Message != "it is suspended; "+message) || !suspended && c.Reason != lifecycle.ReasonDenied {
					t.Errorf("Ready is %+v", c)
				}
			}
			report := func(node string, state v1alpha1.NodeState, revision, message string) {
				t.Helper()
				says := b.says(app, state)
				says.Serial, says.Revision, says.Message = b.intent(app).Serial, revision, message
				o := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: node}}
				b.change(o, func() { o.Status.Applications = []v1alpha1.NodeApplication{says} })
			}

			look(status.ReasonUnloading, "it is to be unloaded; nodes: 2 still running it (one and 1 more)", metav1.ConditionFalse)
			report("two", v1alpha1.NodeRemoved, "", "")
			report("one", v1alpha1.NodeFailed, "r1", "the kernel: EPERM")
			look(status.ReasonUnloading, "it is to be unloaded; nodes: 1 still running it (one); one: the kernel: EPERM", metav1.ConditionFalse)
			silent := &corev1.Node{}
			if err := b.api.Get(t.Context(), client.ObjectKey{Name: "one"}, silent); err != nil {
				t.Fatal(err)
			}
			silent.Status.Conditions[0].Status = corev1.ConditionUnknown
			if err := b.api.Status().Update(t.Context(), silent); err != nil {
				t.Fatal(err)
			}
			look(status.ReasonNotDeployed, "no node that answers runs it; nodes: 1 that may run it, and cannot be reached (one)", metav1.ConditionTrue)
			report("one", v1alpha1.NodeRemoved, "", "")
			look(status.ReasonNotDeployed, "nothing is deployed", metav1.ConditionTrue)
		})
	}
}

func TestATagThatMovedIsToldAndNotFollowed(t *testing.T) {
	b := newBench(t)
	shared := access.NewShared(supply.Client(t, registry.Options{CacheDir: t.TempDir()}), access.SharedOptions{})
	b.Images = func(context.Context, v1alpha1.Application) *access.Reader { return shared.Reader("", nil) }
	app := b.application("app")
	b.reconcile(app.Identity())
	first := b.intent(app).ImageDigest
	_, second := b.Push("app:v1", append(slices.Clone(programs.Object("tracepoint_count")), 0), "team-a")
	says := func(after time.Duration) string {
		b.clock = b.clock.Add(after)
		b.reconcile(app.Identity())
		return condition(b.status(app), v1alpha1.ConditionVerified).Message
	}
	if said := says(lookUpEvery / 2); strings.Contains(said, "tag") {
		t.Errorf("soon after it was resolved: %q", said)
	}
	if said := says(lookUpEvery); !strings.Contains(said, "the tag stands for "+second+" now") || b.intent(app).ImageDigest != first {
		t.Errorf("once it moved: %q, sealed %s, first %s", said, b.intent(app).ImageDigest, first)
	}
	b.change(app, func() {
		metav1.SetMetaDataAnnotation(&app.ObjectMeta, gate.AnnotationRequestedAt, "now")
	})
	if said := says(time.Second); strings.Contains(said, "tag") || b.intent(app).ImageDigest != second {
		t.Errorf("once it is asked for: %q, sealed %s, second %s", said, b.intent(app).ImageDigest, second)
	}
}

// TestWhatWaitsForOthersIsNoWarning has as many registries of a namespace hang as may,
// and then one more, whose turn comes.
func TestWhatWaitsForOthersIsNoWarning(t *testing.T) {
	b := newBench(t)
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hangs.Close() })
	app := b.application("app")
	b.reconcile(app.Identity())
	<-b.events.Events
	b.change(app, func() { app.Spec.Bytecode.Image = hangs.Addr().String() + "/app:v1" })
	b.limiter.slow = map[string]int{"": slowAtOnce}
	b.EvaluationTimeout = slowAfter / 2
	for _, want := range []string{"Normal Queued it takes long", "Warning EvaluationFailed "} {
		if _, err := b.Reconcile(t.Context(), app.Identity()); err == nil {
			t.Fatal("it was evaluated")
		}
		select {
		case said := <-b.events.Events:
			if !strings.HasPrefix(said, want) {
				t.Errorf("people are told %q, want %q", said, want)
			}
		default:
			t.Errorf("people are told nothing, want %q", want)
		}
		b.limiter.slow = nil
	}
}
