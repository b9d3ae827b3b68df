package application

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/programs"
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
		"it cannot be judged":    {nil, true, v1alpha1.ConditionReconciling},
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

	// The watch has yet to bring that one failed.
	b.showing(old)
	again := b.reconcile(app.Identity())
	if n := b.status(app).Status.Nodes; n.Failed > 0 && n.Pending > 0 || len(n.Failing) > int(n.Failed) {
		t.Errorf("nodes are %+v", n)
	}
	if again.RequeueAfter != settle || len(b.events.Events) > 0 {
		t.Errorf("it is looked at again after %s; people were told %d times", again.RequeueAfter, len(b.events.Events))
	}
	b.showing(nil)
	b.reconcile(app.Identity())
	if n := b.status(app).Status.Nodes; n.Loaded != 1 || n.Pending != 1 || n.Failed != 0 || len(n.Failing) != 0 {
		t.Errorf("nodes are %+v", n)
	}
}
