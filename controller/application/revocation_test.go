package application

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/controller/status"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/access"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
	"github.com/skep-dev/skep/test/harness/await"
)

// nothing is a Weigher that is never done: what is revoked is ended all the same.
type nothing struct{ *Reconciler }

// Weigh implements policy.Weigher.
func (nothing) Weigh(ctx context.Context, _ policy.Where) (policy.Effect, error) {
	<-ctx.Done()
	return policy.Effect{}, ctx.Err()
}

// revoke revokes signers. What runs is weighed as long as the test takes.
func (b *bench) revoke(signers ...string) {
	b.t.Helper()
	for _, name := range signers {
		o := &v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: name}}
		b.change(o, func() { o.Spec.Revoked = true })
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	weighs := make(chan struct{})
	go func() {
		defer close(weighs)
		_, _, _ = b.Keeper.Refresh(ctx, nothing{b.Reconciler})
	}()
	b.t.Cleanup(func() { cancel(); <-weighs })
	<-b.revocations.raised
}

// newRevocations is a bench whose registry a revocation waits for as long as it takes, but
// for a moment where it hangs.
func newRevocations(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	b.create(b.Signer("team-b"), b.Signer("team-c"))
	b.refresh()
	b.revocations.raised, b.EndWithin, b.EvaluationTimeout = make(signal, 1), time.Minute, time.Hour
	return b
}

// hang has the registry answer otherwise, or nothing.
func (b *bench) hang(answer http.HandlerFunc) {
	b.Instead.Store(&answer)
	b.EndWithin = 100 * time.Millisecond
}

// ends has what a revocation ends be ended, and reports whether an application has a
// tombstone then.
func (b *bench) ends(app application) bool {
	b.t.Helper()
	if _, err := (ender{b.Reconciler}).Reconcile(b.t.Context(), string(app.GetUID())); err != nil {
		b.t.Fatal(err)
	}
	return b.intent(app).Tombstone
}

// signed is an application that was evaluated: of an image that parties signed.
func (b *bench) signed(name string, signers ...string) *v1alpha1.ClusterBpfApplication {
	b.t.Helper()
	var ref string
	for i, signer := range signers {
		// The bundle is read first, and is enough.
		b.Bundles = i == 0
		ref, _ = b.Push(name+":v1", append(programs.Object("tracepoint_count"), 0), signer)
	}
	b.Bundles = false
	app := defined(name, ref)
	b.create(app)
	b.reconcile(app.Identity())
	return app
}

// TestARevocationEndsWhatRunsFirst has a signer revoked while all that runs is weighed.
func TestARevocationEndsWhatRunsFirst(t *testing.T) {
	for sentence, c := range map[string]struct {
		signers []string
		// before is what happens before team-a is revoked; registry is what it answers
		// then, nil if it is well.
		before   func(*bench, *v1alpha1.ClusterBpfApplication)
		registry http.HandlerFunc
		ends     bool
		// new says that it was admitted a moment ago, and not looked at since.
		new bool
	}{
		"its registry is well":     {signers: []string{"team-a"}, ends: true},
		"its registry hangs":       {signers: []string{"team-a"}, registry: supply.Hang, ends: true},
		"its registry trickles":    {signers: []string{"team-a"}, registry: supply.Trickle, ends: true},
		"its definition is broken": {signers: []string{"team-a"}, registry: supply.Hang, before: redefined("no reference"), ends: true},
		"its definition is at a registry that hangs": {
			signers: []string{"team-a"}, registry: supply.Hang, before: redefined("127.0.0.1:1/other:v1"), ends: true,
		},
		"it is suspended": {signers: []string{"team-a"}, registry: supply.Hang, ends: true, before: func(b *bench, app *v1alpha1.ClusterBpfApplication) {
			b.change(app, func() { app.Spec.Suspend = true; app.Generation++ })
		}},
		"it is gone with its CRD": {signers: []string{"team-a"}, registry: supply.Hang, ends: true, before: func(b *bench, app *v1alpha1.ClusterBpfApplication) {
			if err := b.api.Delete(b.t.Context(), app.DeepCopy()); err != nil {
				b.t.Fatal(err)
			}
		}},
		"it is new, and its registry is well":       {signers: []string{"team-a"}, new: true, ends: true},
		"it is new, and another one signed it, too": {signers: []string{"team-a", "team-b"}, new: true, registry: supply.Hang},
		"another one signed it, too":                {signers: []string{"team-a", "team-b"}, registry: supply.Hang},
		"another one signed it since":               {signers: []string{"team-a"}, before: signedSince("team-b")},
		"another one signed it since settings changed": {signers: []string{"team-a"}, before: func(b *bench, app *v1alpha1.ClusterBpfApplication) {
			elsewhere("")(b, app)
			signedSince("team-b")(b, app)
		}},
		"another one signed it since it was looked at":    {signers: []string{"team-a"}, before: signedSince("team-b"), registry: supply.Hang, ends: true},
		"another one that is revoked, too, signed it":     {signers: []string{"team-a", "team-c"}, registry: supply.Hang, ends: true},
		"the repository of another signer cannot be read": {signers: []string{"team-a"}, ends: true, before: elsewhere("127.0.0.1:1/signatures")},
		"the repository of another signer hangs": {signers: []string{"team-a"}, ends: true, before: func(b *bench, app *v1alpha1.ClusterBpfApplication) {
			elsewhere(hanging(b.t)+"/signatures")(b, app)
			b.EndWithin = 2 * time.Second
		}},
		"its pull Secrets are long in coming": {signers: []string{"team-a"}, ends: true, before: func(b *bench, _ *v1alpha1.ClusterBpfApplication) {
			b.Images = func(ctx context.Context, _ v1alpha1.Application) *access.Reader {
				<-ctx.Done()
				return nil
			}
			b.EndWithin = 100 * time.Millisecond
		}},
		"a policy that is written with the revocation allows it": {signers: []string{"team-a", "team-b"}, before: requires("team-a", "team-b")},
		"a policy denies it from now on":                         {signers: []string{"team-a", "team-b"}, before: requires("team-b", "team-d"), ends: true},
		"no signature of it is known to the new leader":          {signers: []string{"team-a"}, before: forgotten, registry: supply.Hang},
	} {
		t.Run(sentence, func(t *testing.T) {
			b := newRevocations(t)
			app := b.signed("app", c.signers...)
			if !c.new {
				b.clock = b.clock.Add(soon)
				b.reconcile(app.Identity())
			}
			if c.before != nil {
				c.before(b, app)
			}
			if b.ends(app) {
				t.Fatal("no signer is revoked, and it is ended")
			}
			b.clock = b.clock.Add(time.Second)
			b.revoke("team-a", "team-c")
			if c.registry != nil {
				b.hang(c.registry)
			}
			if ends := b.ends(app); ends != c.ends {
				t.Errorf("it is ended: %t", ends)
			}
		})
	}
}

// redefined gives an application another image.
func redefined(image string) func(*bench, *v1alpha1.ClusterBpfApplication) {
	return func(b *bench, app *v1alpha1.ClusterBpfApplication) {
		b.change(app, func() { app.Spec.Bytecode.Image = image; app.Generation++ })
	}
}

// signedSince has the image of an application signed by another one.
func signedSince(signer string) func(*bench, *v1alpha1.ClusterBpfApplication) {
	return func(b *bench, _ *v1alpha1.ClusterBpfApplication) {
		b.Push("app:v1", append(programs.Object("tracepoint_count"), 0), signer)
	}
}

// forgotten has another replica lead, which asked about nothing yet.
func forgotten(b *bench, _ *v1alpha1.ClusterBpfApplication) { b.forgets(gate.Options{}) }

// TestARegistryThatHangsIsWaitedForOnce has two applications of a cluster revoked whose
// registry hangs. It says nothing about the registry to anybody else.
func TestARegistryThatHangsIsWaitedForOnce(t *testing.T) {
	b := newRevocations(t)
	first, second := b.signed("first", "team-a"), b.signed("second", "team-a")
	b.clock = b.clock.Add(soon)
	b.reconcile(first.Identity())
	b.reconcile(second.Identity())
	b.clock = b.clock.Add(time.Second)
	b.revoke("team-a")
	b.hang(supply.Hang)
	if !b.ends(first) {
		t.Fatal("it is not ended")
	}
	b.EndWithin = time.Hour
	if !b.ends(second) {
		t.Error("another one of its namespace is not ended")
	}
	b.Instead.Store(nil)
	signedSince("team-b")(b, first)
	if ref, _ := b.Push("first:v1", append(programs.Object("tracepoint_count"), 0), "team-b"); ref != first.Spec.Bytecode.Image {
		t.Fatal(ref)
	}
	b.Keeper.Interrupt()
	b.refresh()
	if b.reconcile(first.Identity()); b.intent(first).Tombstone {
		t.Error("the registry answers again, where another one signed it since, and it is not asked")
	}
}

// TestAStartEndsWhatIsRevokedFirst has a signer revoked while no controller runs. The next one weighs as long as the test takes.
func TestAStartEndsWhatIsRevokedFirst(t *testing.T) {
	b := newRevocations(t)
	app := b.signed("app", "team-a")
	b.Keeper = policy.NewKeeper(b.Keeper.Options)
	b.revoke("team-a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := (ender{b.Reconciler}).Reconcile(ctx, string(app.GetUID())); err != nil || !b.intent(app).Tombstone {
		t.Errorf("it is not ended: %v", err)
	}
	cancel()
	if _, err := b.Reconcile(ctx, app.Identity()); !errors.Is(err, context.Canceled) {
		t.Errorf("it is evaluated before what runs was weighed: %v", err)
	}
}

// TestTheStatusSaysAtOnceWhatARevocationEnds revokes the signer of what a node runs, and whose registry hangs.
func TestTheStatusSaysAtOnceWhatARevocationEnds(t *testing.T) {
	for sentence, conflicts := range map[string]bool{"it is written with the seal": false, "somebody else wrote the status": true} {
		t.Run(sentence, func(t *testing.T) {
			b := newRevocations(t)
			app := b.signed("app", "team-a")
			runs := b.says(app, v1alpha1.NodeLoaded)
			runs.Revision = "r"
			b.node("one", runs)
			b.clock = b.clock.Add(soon)
			b.reconcile(app.Identity())
			b.clock = b.clock.Add(time.Second)
			b.revoke("team-a")
			b.hang(supply.Hang)
			if conflicts {
				b.showing(b.status(app))
				b.change(b.status(app), func() {})
			}
			if !b.ends(app) {
				t.Fatal("it is not ended")
			}
			if b.cached.Get = nil; conflicts {
				// Its evaluation waits longer than the test.
				b.EvaluationTimeout = time.Hour
				ctx, cancel := context.WithCancel(t.Context())
				over := make(chan struct{})
				go func() { defer close(over); _, _ = b.Reconcile(ctx, app.Identity()) }()
				defer func() { cancel(); <-over }()
			}
			var now *v1alpha1.ClusterBpfApplication
			await.True(t, "the status says so", 10*time.Second, func() bool {
				now = b.status(app)
				return condition(now, v1alpha1.ConditionDeployed).Reason == status.ReasonUnloading
			})
			why := "it is to be unloaded; nodes: 1 still running it (one); every signer it was admitted by is revoked: team-a"
			if c := condition(now, v1alpha1.ConditionReady); c.Status != metav1.ConditionFalse || c.Reason != status.ReasonUnloading || c.Message != why {
				t.Errorf("Ready: %+v", c)
			}
			if now.Status.Nodes != nil || now.Status.Serial != 0 {
				t.Errorf("the status is %+v", now.Status)
			}
		})
	}
}

// TestANodeThatWasSilentMayRunWhatWasJustSealed revokes the signer of what was sealed a moment ago, before the node reports on it.
func TestANodeThatWasSilentMayRunWhatWasJustSealed(t *testing.T) {
	b := newRevocations(t)
	b.node("one")
	app := b.signed("app", "team-a")
	if n := b.status(app).Status.Nodes; n == nil || n.Pending != 1 {
		t.Fatalf("the node is not waited for: %+v", n)
	}
	b.clock = b.clock.Add(time.Second)
	b.revoke("team-a")
	if !b.ends(app) {
		t.Fatal("it is not ended")
	}
	says := func(reason string) {
		t.Helper()
		if c := condition(b.status(app), v1alpha1.ConditionDeployed); c.Reason != reason {
			t.Errorf("Deployed is %s: %s", c.Reason, c.Message)
		}
	}
	says(status.ReasonUnloading)
	b.Keeper.Interrupt()
	b.refresh()
	if again := b.reconcile(app.Identity()).RequeueAfter; again > status.AnswersWithin {
		t.Errorf("it is looked at again after %s", again)
	}
	says(status.ReasonUnloading)
	b.clock = b.clock.Add(status.AnswersWithin + progressAtEnd)
	b.reconcile(app.Identity())
	says(status.ReasonNotDeployed)
}

// TestADefinitionMayReplaceWhatIsRevoked: what runs is ended if it does not in a moment.
func TestADefinitionMayReplaceWhatIsRevoked(t *testing.T) {
	b := newRevocations(t)
	app := b.signed("app", "team-a")
	next, _ := b.Push("app:v2", append(programs.Object("tracepoint_count"), 0, 0), "team-b")
	redefined(next)(b, app)
	b.clock = b.clock.Add(soon)
	b.revoke("team-a")
	again, err := ender{b.Reconciler}.Reconcile(t.Context(), string(app.GetUID()))
	if err != nil || again.RequeueAfter != lookAgain || b.intent(app).Tombstone {
		t.Fatalf("what another version is about to replace: %+v, %v, tombstone %t", again, err, b.intent(app).Tombstone)
	}
	b.clock = b.clock.Add(replaceWithin)
	if !b.ends(app) {
		t.Error("nothing replaces it, and it runs on")
	}
}

// TestARevocationTakesTheVersionBeside has the version before revoked, which nodes hold that a
// rollout did not reach.
func TestARevocationTakesTheVersionBeside(t *testing.T) {
	b := newRevocations(t)
	b.node("one")
	b.node("two")
	app := b.signed("app", "team-a")
	next, _ := b.Push("app:v2", append(programs.Object("tracepoint_count"), 0, 0), "team-b")
	b.change(app, func() {
		app.Spec.Bytecode.Image, app.Spec.Rollout.Steps = next, []intstr.IntOrString{intstr.FromInt32(1), intstr.FromString("100%")}
		app.Generation++
	})
	b.reconcile(app.Identity())
	if p := b.intent(app); p.Previous == nil || !slices.Equal(p.Signers, []string{"team-b"}) {
		t.Fatalf("sealed: %+v", p)
	}
	b.clock = b.clock.Add(soon)
	b.revoke("team-a")
	if b.ends(app) {
		t.Error("the newest version is ended, too")
	}
	if p := b.intent(app); p.Previous != nil {
		t.Errorf("the version before runs on: %+v", p)
	}
}

// TestWhatAPolicyUnloadsWaitsForTheWeighing: unload protection may apply to it.
func TestWhatAPolicyUnloadsWaitsForTheWeighing(t *testing.T) {
	b := newRevocations(t)
	app := b.signed("app", "team-b")
	b.create(&v1alpha1.ClusterBpfPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "none", UID: "none", Generation: 1},
		Spec: v1alpha1.ClusterBpfPolicySpec{BpfPolicySpec: v1alpha1.BpfPolicySpec{
			Running: v1alpha1.RunningUnload, Rego: "package skep.policy\n\ndeny contains \"none\"\n",
		}},
	})
	b.revoke("team-a")
	if b.ends(app) {
		t.Error("a policy denies it, no signer of it is revoked, and it is ended")
	}
}

// elsewhere has another signer sign in a repository of its own.
func elsewhere(repository string) func(*bench, *v1alpha1.ClusterBpfApplication) {
	return func(b *bench, app *v1alpha1.ClusterBpfApplication) {
		other := b.Signer("team-d")
		other.Spec.Repository = repository
		b.create(other)
		b.refresh()
		b.reconcile(app.Identity())
	}
}

// requires has the cluster require one signer, and from the revocation on another one.
func requires(before, after string) func(*bench, *v1alpha1.ClusterBpfApplication) {
	return func(b *bench, app *v1alpha1.ClusterBpfApplication) {
		rego := func(signer string) string {
			return fmt.Sprintf("package skep.policy\n\ndeny contains \"unsigned\" if not signed\n\nsigned if { some s in input.signatures; s.signer == %q }\n", signer)
		}
		p := &v1alpha1.ClusterBpfPolicy{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one", Generation: 1}}
		p.Spec.Rego = rego(before)
		b.create(p)
		b.refresh()
		b.reconcile(app.Identity())
		b.change(p, func() { p.Spec.Rego, p.Generation = rego(after), 2 })
	}
}

// TestOtherRegistriesAreAskedWhereOneHangs has another signer sign since, at a registry that is well.
func TestOtherRegistriesAreAskedWhereOneHangs(t *testing.T) {
	b := newRevocations(t)
	first, well := b.signed("first", "team-a"), supply.New(t)
	well.Share(b.Chain)
	ref, _ := well.Push("second:v1", programs.Object("tracepoint_count"), "team-a")
	second := defined("second", ref)
	b.create(second)
	for range 2 {
		b.reconcile(first.Identity())
		b.reconcile(second.Identity())
		b.clock = b.clock.Add(soon)
	}
	well.Push("second:v1", programs.Object("tracepoint_count"), "team-b")
	b.revoke("team-a")
	b.hang(supply.Hang)
	if !b.ends(first) {
		t.Error("it is not ended whose registry hangs")
	}
	if b.EndWithin = time.Minute; b.ends(second) {
		t.Error("another one signed it since, at a registry that answers, and it is ended")
	}
}

// TestWhatIsNewIsLookedAtAgain: of what was admitted by the first signature that counts, all are read
// half a minute later.
func TestWhatIsNewIsLookedAtAgain(t *testing.T) {
	b := newRevocations(t)
	app := b.signed("app", "team-a", "team-b")
	again := b.reconcile(app.Identity()).RequeueAfter
	if n := len(b.intent(app).Signers); n != 1 || again < soon || again > 2*soon {
		t.Fatalf("%d signers are known, and it is looked at again after %s", n, again)
	}
	b.clock = b.clock.Add(again)
	if again = b.reconcile(app.Identity()).RequeueAfter; len(b.intent(app).Signers) != 2 || again < 10*time.Minute {
		t.Errorf("then: %d signers are known, and it is looked at again after %s", len(b.intent(app).Signers), again)
	}
}

// hanging is a registry that answers nothing.
func hanging(t *testing.T) string {
	t.Helper()
	c := supply.New(t)
	c.Instead.Store(&supply.Hang)
	return c.Registry
}

// TestANamespaceHoldsUpNoRevocationOfAnother has a signer revoked of many applications of one namespace, whose registry hangs, and of
// one of another namespace.
func TestANamespaceHoldsUpNoRevocationOfAnother(t *testing.T) {
	b, well := newRevocations(t), supply.New(t)
	well.Share(b.Chain)
	object := programs.Object("xdp_count")
	slow, _ := b.Push("slow:v1", object, "team-a")
	fast, _ := well.Push("fast:v1", object, "team-a")
	in := func(namespace, name, image string) *v1alpha1.BpfApplication {
		app := defined(name, image)
		own := &v1alpha1.BpfApplication{ObjectMeta: app.ObjectMeta, Spec: app.Spec}
		own.Namespace = namespace
		own.Spec.Programs = []v1alpha1.Program{{Name: "count_packets", Attach: []v1alpha1.Attachment{{Hook: "xdp", Pods: &v1alpha1.Pods{}}}}}
		b.create(own)
		b.reconcile(own.Identity())
		return own
	}
	b.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "b"}})
	const many = placesOfNamespaces + placesOfCluster + 1
	b.Events = events.NewFakeRecorder(4 * many)
	var waiting []*v1alpha1.BpfApplication
	for i := range many {
		waiting = append(waiting, in("a", fmt.Sprintf("a%d", i), slow))
	}
	other := in("b", "b", fast)
	b.clock = b.clock.Add(time.Second)
	b.revoke("team-a")
	hung := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(hung) })
	b.hang(func(http.ResponseWriter, *http.Request) { <-hung })
	b.EndWithin = time.Hour
	run, err := controller.NewTypedUnmanaged("revocation-test", controller.TypedOptions[string]{
		Reconciler: ender{b.Reconciler}, MaxConcurrentReconciles: placesOfNamespaces + placesOfCluster,
		RateLimiter: retries[string](), SkipNameValidation: new(true),
	})
	if err := errors.Join(err, run.Watch(ender{b.Reconciler}.all())); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- run.Start(ctx) }()
	defer func() { letGo(); cancel(); <-ended }()
	b.Revoke()
	await.True(t, "it is ended", 10*time.Second, func() bool { return b.intent(other).Tombstone })
	b.Instead.Store(nil)
	letGo()
	await.True(t, "the others are ended once their registry answers", time.Minute, func() bool {
		return !slices.ContainsFunc(waiting, func(app *v1alpha1.BpfApplication) bool { return !b.intent(app).Tombstone })
	})
}
