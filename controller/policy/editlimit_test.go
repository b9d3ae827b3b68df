package policy

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/leader"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// edited is a policy of a namespace as it was written for the nth time.
func edited(namespace string, n int) v1alpha1.BpfPolicy {
	return v1alpha1.BpfPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "own", Namespace: namespace, UID: types.UID(namespace), Generation: int64(n)},
		Spec:       v1alpha1.BpfPolicySpec{Rego: fmt.Sprintf("package skep.policy\n\nwarn contains \"%d\"\n", n)},
	}
}

// follower is a Reconciler that does not lead, with what it reads; changes counts how
// often something else became active.
type follower struct {
	*Reconciler

	changes int
	at      time.Time
}

func newFollower(t *testing.T, c *cluster) *follower {
	t.Helper()
	f := &follower{at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	k := c.keeper(t)
	k.Patience, k.Now = 3*time.Minute, func() time.Time { return f.at }
	f.Reconciler = &Reconciler{Keeper: k, Weigher: c, Changed: func(Where) { f.changes++ }, Leader: leader.New(leader.Options{Name: "another"})}
	return f
}

// looks has it look once, and returns when it looks again.
func (f *follower) looks(t *testing.T, what func(*follower) (time.Duration, error)) time.Duration {
	t.Helper()
	after, err := what(f)
	if err != nil {
		t.Fatal(err)
	}
	return after
}

func atNamespaces(ctx context.Context) func(*follower) (time.Duration, error) {
	return func(f *follower) (time.Duration, error) {
		result, err := f.Reconcile(ctx, ofNamespaces)
		return result.RequeueAfter, err
	}
}

func atCluster(ctx context.Context) func(*follower) (time.Duration, error) {
	return func(f *follower) (time.Duration, error) {
		result, err := f.Reconcile(ctx, ofCluster)
		return result.RequeueAfter, err
	}
}

// TestANamespaceThatEditsInALoopLetsOthersSettle has a namespace edit its policy once a
// second: policies of namespaces become active every half minute at most, and what is of
// the cluster acts at once.
func TestANamespaceThatEditsInALoopLetsOthersSettle(t *testing.T) {
	signer := supply.New(t).Signer("signer")
	signer.UID, signer.Generation = "signer", 1
	c := &cluster{signers: []v1alpha1.BpfSigner{*signer}}
	f := newFollower(t, c)
	f.looks(t, atCluster(t.Context()))
	before := f.changes
	const minutes = 2
	for second := range minutes * 60 {
		c.namespaced = []v1alpha1.BpfPolicy{edited("team", second+1)}
		f.looks(t, atNamespaces(t.Context()))
		f.at = f.at.Add(time.Second)
	}
	if edits, most := f.changes-before, namespacedAtOnce+minutes*60/30; edits == 0 || edits > most {
		t.Errorf("other policies became active %d times, want %d at most", edits, most)
	}

	var after time.Duration
	for n := 0; n <= namespacedAtOnce && after == 0; n++ {
		before = f.changes
		c.namespaced = []v1alpha1.BpfPolicy{edited("team", 1000+n)}
		after = f.looks(t, atNamespaces(t.Context()))
	}
	if f.changes != before || after <= 0 || after > 30*time.Second {
		t.Errorf("edits in a row act at once, or again after %s", after)
	}
	c.signers = slices.Clone(c.signers)
	c.signers[0].Generation, c.signers[0].Spec.Revoked = 2, true
	f.looks(t, atCluster(t.Context()))
	if !f.Keeper.Revoked().Revokes("signer", time.Time{}) || f.changes != before+1 {
		t.Errorf("a revocation waits for the edits of a namespace")
	}

	before = f.changes
	f.at = f.at.Add(after)
	c.namespaced = []v1alpha1.BpfPolicy{edited("team", 2000)}
	if f.looks(t, atNamespaces(t.Context())); f.changes != before+1 {
		t.Errorf("an edit does not act when its time has come")
	}
}

// TestAChangeIsWeighedWhereItActs has policies change, and tells what is weighed.
func TestAChangeIsWeighedWhereItActs(t *testing.T) {
	c := &cluster{namespaced: []v1alpha1.BpfPolicy{edited("a", 1), edited("b", 1)}}
	f := newFollower(t, c)
	everything := Where{Everywhere: true}
	for _, step := range []struct {
		what string
		do   func()
		want Where
	}{
		{"the first time", func() {}, everything},
		{
			"a policy of a namespace changes", func() { c.namespaced = []v1alpha1.BpfPolicy{edited("a", 2), edited("b", 1)} },
			Where{Namespaces: map[string]bool{"a": true}},
		},
		{
			"one goes, and another comes", func() { c.namespaced = []v1alpha1.BpfPolicy{edited("a", 2), edited("c", 1)} },
			Where{Namespaces: map[string]bool{"b": true, "c": true}},
		},
		{"a policy of the cluster comes", func() {
			c.namespaced[0] = edited("a", 3)
			c.cluster = []v1alpha1.ClusterBpfPolicy{{
				ObjectMeta: metav1.ObjectMeta{Name: "cluster", UID: "cluster", Generation: 1},
				Spec:       v1alpha1.ClusterBpfPolicySpec{BpfPolicySpec: edited("", 1).Spec},
			}}
		}, everything},
	} {
		c.scope = Where{}
		step.do()
		if err := f.Keeper.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		refresh(t, f.Keeper, c)
		if diff := cmp.Diff(step.want, c.scope); diff != "" {
			t.Errorf("%s: %s", step.what, diff)
		}
	}
}

// TestWhatIsHeldElsewhereStaysHeld has a namespace edit its policy, while unload
// protection keeps the applications of another.
func TestWhatIsHeldElsewhereStaysHeld(t *testing.T) {
	c := &cluster{live: apps(5)}
	k := c.keeper(t)
	refresh(t, k, c)
	for _, id := range apps(5) {
		holds(t, k, id)
	}
	held := k.Protected()
	c.namespaced = []v1alpha1.BpfPolicy{edited("team", 1)}
	if err := k.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	refresh(t, k, c)
	if held == 0 || k.Protected() != held {
		t.Errorf("%d were held, and %d are", held, k.Protected())
	}
}

// TestNoEditOfANamespaceChangesWhatAnAdminConfirms has a namespace edit its policies while
// unload protection holds what a policy of the cluster wants unloaded there.
func TestNoEditOfANamespaceChangesWhatAnAdminConfirms(t *testing.T) {
	running := apps(5)
	for i := range running {
		running[i].Kind, running[i].Namespace = v1alpha1.KindBpfApplication, "team"
	}
	c := &cluster{live: running, cluster: []v1alpha1.ClusterBpfPolicy{{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster", UID: "cluster", Generation: 1},
		Spec:       v1alpha1.ClusterBpfPolicySpec{BpfPolicySpec: edited("", 1).Spec},
	}}}
	f := newFollower(t, c)
	edit := func(n int) {
		t.Helper()
		c.namespaced = []v1alpha1.BpfPolicy{edited("team", n)}
		if err := f.Keeper.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, changed, err := f.Keeper.Refresh(t.Context(), c)
		if err != nil || n > 1 && !reflect.DeepEqual(changed, Where{Namespaces: map[string]bool{"team": true}}) {
			t.Fatalf("edit %d changes %+v; %v", n, changed, err)
		}
	}
	asks := func(byCluster bool) (revision string, held bool) {
		t.Helper()
		for _, id := range running {
			var err error
			if revision, held, err = f.Keeper.Holds(t.Context(), id, byCluster); err != nil {
				t.Fatal(err)
			}
		}
		return revision, held
	}
	edit(1)
	ofCluster, held := asks(true)
	own, heldOwn := asks(false)
	if !held || !heldOwn || own == ofCluster {
		t.Fatalf("held %t by %s, %t by %s alone", held, ofCluster, heldOwn, own)
	}
	edit(2)
	if now, _ := asks(true); now != ofCluster {
		t.Errorf("an edit of the namespace made %s of %s", now, ofCluster)
	}
	c.cluster[0].Annotations = map[string]string{AnnotationConfirm: ofCluster}
	refresh(t, f.Keeper, c)
	edit(3)
	if _, held := asks(true); held {
		t.Error("what an admin confirmed is held")
	}
	own, held = asks(false)
	if !held || f.Keeper.Protected() == 0 {
		t.Error("what a namespace wants unloaded is let go by a confirmation of the cluster's policies")
	}
	c.cluster[0].Annotations[AnnotationConfirm] = ofCluster + ", " + own
	refresh(t, f.Keeper, c)
	if _, held := asks(false); held || f.Keeper.Protected() != 0 {
		t.Error("what an admin confirmed of a namespace's policies is held")
	}
	if _, held := asks(true); held {
		t.Error("what an admin confirmed beside it is held")
	}
}

// TestWhatIsHeldNoMoreIsLookedAt has a namespace take its own policy back, without which
// too little is unloaded for unload protection to hold what is of others.
func TestWhatIsHeldNoMoreIsLookedAt(t *testing.T) {
	own := make([]v1alpha1.Identity, 5)
	for i := range own {
		own[i] = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team", Name: fmt.Sprint("app-", i)}
	}
	other := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "others", Name: "app"}
	c := &cluster{live: slices.Concat(apps(14), own, []v1alpha1.Identity{other}), namespaced: []v1alpha1.BpfPolicy{edited("team", 1)}}
	k := c.keeper(t)
	k.Patience = 3 * time.Minute
	refresh(t, k, c)
	for _, id := range append(own, other) {
		if _, _, err := k.Holds(t.Context(), id, id == other); err != nil {
			t.Fatal(err)
		}
	}
	if _, held := holds(t, k, other); !held || k.Protected() != 6 {
		t.Fatalf("held %t, %d in all", held, k.Protected())
	}
	c.namespaced = nil
	_, changed, err := k.Refresh(t.Context(), c)
	if want := (Where{Namespaces: map[string]bool{"team": true, "others": true}}); err != nil || !reflect.DeepEqual(changed, want) {
		t.Errorf("changed is %+v, want %+v; %v", changed, want, err)
	}
	if _, held := holds(t, k, other); held || k.Protected() != 0 {
		t.Errorf("held %t, %d in all", held, k.Protected())
	}
}
