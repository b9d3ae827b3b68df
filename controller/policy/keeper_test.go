package policy

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/leader"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// cluster is what a Keeper reads, and who weighs for it.
type cluster struct {
	client.Client

	signers    []v1alpha1.BpfSigner
	cluster    []v1alpha1.ClusterBpfPolicy
	namespaced []v1alpha1.BpfPolicy
	// unloads are what is weighed: what policies of the cluster want unloaded.
	unloads []v1alpha1.Identity
	// scope is where it was weighed last; weighing, where there is one, lasts until its
	// context ends.
	scope    Where
	weighing chan struct{}
	// revocations counts what Revoke was called for.
	revocations int
	// live are the applications that run; unloaded have a tombstone.
	live, unloaded []v1alpha1.Identity
	// sealed are intents as they are stored.
	sealed []v1alpha1.BpfIntent
	// remembered is the ConfigMap; crds ends the UIDs of the CRDs.
	remembered *corev1.ConfigMap
	crds       string
	keys       sealing.Keys
}

// List implements client.Reader.
func (c *cluster) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch list := list.(type) {
	case *v1alpha1.BpfSignerList:
		list.Items = c.signers
	case *v1alpha1.ClusterBpfPolicyList:
		list.Items = c.cluster
	case *v1alpha1.BpfPolicyList:
		list.Items = c.namespaced
	case *v1alpha1.BpfIntentList:
		list.Items = slices.Clone(c.sealed)
		for _, id := range c.live {
			list.Items = append(list.Items, v1alpha1.BpfIntent{Spec: v1alpha1.BpfIntentSpec{Application: id}})
		}
		for _, id := range c.unloaded {
			list.Items = append(list.Items, v1alpha1.BpfIntent{Spec: v1alpha1.BpfIntentSpec{Application: id, Tombstone: true}})
		}
	default:
		return fmt.Errorf("nobody lists %T", list)
	}
	return nil
}

// Get implements client.Reader: every CRD stands.
func (c *cluster) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	switch o := o.(type) {
	case *metav1.PartialObjectMetadata:
		o.SetUID(types.UID(key.Name + c.crds))
		return nil
	case *corev1.ConfigMap:
		if c.remembered != nil {
			*o = *c.remembered
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// Create implements client.Writer.
func (c *cluster) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	c.remembered = o.(*corev1.ConfigMap)
	return nil
}

// Weigh implements Weigher.
func (c *cluster) Weigh(ctx context.Context, changed Where) (Effect, error) {
	c.scope = changed
	if c.weighing != nil {
		c.weighing <- struct{}{}
		<-ctx.Done()
	}
	effect := Effect{Unloads: map[v1alpha1.Identity]bool{}}
	for _, id := range c.unloads {
		effect.Unloads[id] = true
	}
	return effect, nil
}

// Revoke implements Weigher.
func (c *cluster) Revoke() { c.revocations++ }

// unreachable has no images.
type unreachable struct{ gate.Images }

func (c *cluster) keeper(t *testing.T) *Keeper {
	t.Helper()
	trust, err := signing.NewTrust(nil)
	if err != nil {
		t.Fatal(err)
	}
	set, err := engine.Compile(t.Context(), nil, policies.Options{})
	if err != nil {
		t.Fatal(err)
	}
	evaluator, err := gate.New(gate.Options{Images: unreachable{}, Trust: trust, Policies: set})
	if err != nil {
		t.Fatal(err)
	}
	return NewKeeper(Options{Reader: c, Direct: c, Keys: func() sealing.Keys { return c.keys }, Evaluator: evaluator, Engine: engine})
}

func refresh(t *testing.T, k *Keeper, c *cluster) {
	t.Helper()
	if _, _, err := k.Refresh(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// apps are as many applications' names.
func apps(n int) []v1alpha1.Identity {
	ids := make([]v1alpha1.Identity, n)
	for i := range ids {
		ids[i] = v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: fmt.Sprint("app-", i)}
	}
	return ids
}

func TestOnlyWhoGovernsTheClusterConfirms(t *testing.T) {
	spec := v1alpha1.BpfPolicySpec{Rego: "package skep.policy\n\nwarn contains \"so\"\n"}
	for name, c := range map[string]struct {
		confirm func(*cluster, map[string]string)
		held    bool
	}{
		"nobody did":                   {func(*cluster, map[string]string) {}, true},
		"a namespace's policy may not": {func(c *cluster, a map[string]string) { c.namespaced[0].Annotations = a }, true},
		"a cluster's policy may":       {func(c *cluster, a map[string]string) { c.cluster[0].Annotations = a }, false},
		"a signer may":                 {func(c *cluster, a map[string]string) { c.signers[0].Annotations = a }, false},
	} {
		t.Run(name, func(t *testing.T) {
			meta := func(kind string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: kind, UID: types.UID(kind)} }
			in := &cluster{
				signers:    []v1alpha1.BpfSigner{{ObjectMeta: meta("signer")}},
				cluster:    []v1alpha1.ClusterBpfPolicy{{ObjectMeta: meta("cluster"), Spec: v1alpha1.ClusterBpfPolicySpec{BpfPolicySpec: spec}}},
				namespaced: []v1alpha1.BpfPolicy{{ObjectMeta: meta("namespaced"), Spec: spec}},
				live:       apps(3), unloads: apps(3),
			}
			in.namespaced[0].Namespace = "team"
			k := in.keeper(t)
			refresh(t, k, in)
			revision, _ := holds(t, k, apps(1)[0])
			c.confirm(in, map[string]string{AnnotationConfirm: revision})
			refresh(t, k, in)
			if _, held := holds(t, k, apps(1)[0]); held != c.held {
				t.Errorf("held: %t", held)
			}
		})
	}
}

// TestWhatNoControllerSealedWasNeverInForce has a controller start after a CRD was
// made anew, by what the ConfigMap says was active.
func TestWhatNoControllerSealedWasNeverInForce(t *testing.T) {
	mine, other := seals.New(t), seals.New(t)
	trusts := func(by seals.Key, trusted ...ed25519.PublicKey) sealing.Keys {
		trust, err := intent.NewTrust(trusted...)
		if err != nil {
			t.Fatal(err)
		}
		return sealing.Keys{Sealer: by.Sealer, Trust: trust}
	}
	before := &cluster{keys: trusts(mine, mine.Public()), signers: []v1alpha1.BpfSigner{{ObjectMeta: metav1.ObjectMeta{Name: "signer", UID: "signer"}}}}
	k := before.keeper(t)
	refresh(t, k, before)
	if err := k.Remember(t.Context()); err != nil {
		t.Fatal(err)
	}
	plain, err := json.Marshal(objects{Signers: before.signers, CRDs: map[types.UID]types.UID{"signer": "another"}})
	if err != nil {
		t.Fatal(err)
	}
	forged, err := mine.Sealer.Sign("application/another+json", plain)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		keys sealing.Keys
		says string
		want int
	}{
		"as it was written":                {trusts(mine, mine.Public()), before.remembered.Data[activeKey], 1},
		"after a rotation of the key":      {trusts(other, other.Public(), mine.Public()), before.remembered.Data[activeKey], 1},
		"by a key that is trusted no more": {trusts(other, other.Public()), before.remembered.Data[activeKey], 0},
		"by nobody":                        {trusts(mine, mine.Public()), string(plain), 0},
		"as something else":                {trusts(mine, mine.Public()), string(forged), 0},
		"not at all":                       {trusts(mine, mine.Public()), "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			after := &cluster{keys: c.keys, crds: "-anew", remembered: &corev1.ConfigMap{Data: map[string]string{activeKey: c.says}}}
			outcomes, _, err := after.keeper(t).Refresh(t.Context(), after)
			if err != nil || len(outcomes) != c.want {
				t.Errorf("%d are active, want %d (%v)", len(outcomes), c.want, err)
			}
		})
	}
}

// hindered is an Engine that a test gets between.
type hindered struct {
	*policies.Engine
	// before is asked before a policy is compiled.
	before func(context.Context, policies.Policy) error
	// made is the Set that was made last.
	made *policies.Set
}

func (e *hindered) Prove(ctx context.Context, p policies.Policy) (policies.Proven, error) {
	if p.Unusable == "" {
		if err := e.before(ctx, p); err != nil {
			return policies.Proven{}, err
		}
	}
	return e.Engine.Prove(ctx, p)
}

func (e *hindered) Assemble(ctx context.Context, list []policies.Proven, o policies.Options) (*policies.Set, error) {
	set, err := e.Engine.Assemble(ctx, list, o)
	e.made = set
	return set, err
}

// denies are the rules by which the Set denies an application of a namespace, with the
// fix where one could not be asked.
func (e *hindered) denies(t *testing.T, namespace string) (rules []string) {
	t.Helper()
	in := policies.Input{Application: policies.Application{Kind: v1alpha1.KindBpfApplication, Metadata: policies.Metadata{Name: "app", Namespace: namespace}}}
	d, err := e.made.Decide(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range d.Denied {
		switch {
		case r.Failed:
			rules = append(rules, r.Rule+": "+r.Fix)
		case !strings.HasPrefix(r.Rule, policies.ProfileBaseline+"/"):
			rules = append(rules, r.Rule)
		}
	}
	return rules
}

func TestARevocationWaitsForNoPolicyOfANamespace(t *testing.T) {
	signer := supply.New(t).Signer("signer")
	signer.UID, signer.Generation = "signer", 1
	c := &cluster{signers: []v1alpha1.BpfSigner{*signer}}
	k := c.keeper(t)
	compiling := make(chan struct{})
	k.Engine = &hindered{Engine: engine, before: func(ctx context.Context, p policies.Policy) error {
		if p.Namespace == "" {
			return nil
		}
		close(compiling)
		<-ctx.Done()
		return ctx.Err()
	}}
	k.Patience = time.Hour
	refresh(t, k, c)
	c.namespaced = []v1alpha1.BpfPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "slow", Namespace: "team", UID: "slow"}}}
	ctx, stop := context.WithCancel(t.Context())
	prepared := make(chan error, 1)
	go func() { prepared <- k.Prepare(ctx) }()
	<-compiling
	c.signers[0].Generation, c.signers[0].Spec.Revoked = 2, true
	refresh(t, k, c)
	if revoked := k.Revoked(); len(revoked) != 1 || !revoked.Revokes("signer", time.Time{}) {
		t.Errorf("revoked: %v", k.Revoked())
	}
	stop()
	if err := <-prepared; !errors.Is(err, context.Canceled) {
		t.Errorf("Prepare = %v", err)
	}
}

func TestASignerWithTheKeyOfAnotherIsCautionedOf(t *testing.T) {
	one := supply.New(t).Signer("one")
	one.UID, one.Generation = "one", 1
	twin := one.DeepCopy()
	twin.Name, twin.UID = "twin", "twin"
	c := &cluster{signers: []v1alpha1.BpfSigner{*one}}
	k := c.keeper(t)
	for _, want := range []int{0, 1} {
		outcomes, _, err := k.Refresh(t.Context(), c)
		if err != nil || outcomes[0].Err != nil || len(outcomes[0].Cautions) != want {
			t.Errorf("%d signers: %v, %+v", len(c.signers), err, outcomes[0])
		}
		c.signers = append(c.signers, *twin)
	}
}

// TestAPolicyThatCannotBeCompiledTakesNoOtherWithIt has what compiles a policy die of
// something that nobody knows.
func TestAPolicyThatCannotBeCompiledTakesNoOtherWithIt(t *testing.T) {
	rego := func(what string) v1alpha1.BpfPolicySpec {
		return v1alpha1.BpfPolicySpec{Rego: "package skep.policy\n\ndeny contains " + what + "\n"}
	}
	for name, namespace := range map[string]string{"of the cluster": "", "of a namespace": "team"} {
		t.Run(name, func(t *testing.T) {
			c := &cluster{cluster: []v1alpha1.ClusterBpfPolicy{
				{ObjectMeta: metav1.ObjectMeta{Name: "good", UID: "good"}, Spec: v1alpha1.ClusterBpfPolicySpec{BpfPolicySpec: rego(`"good"`)}},
			}}
			meta := func(generation int64) metav1.ObjectMeta {
				return metav1.ObjectMeta{Name: "p", Namespace: namespace, UID: "p", Generation: generation}
			}
			write := func(generation int64, spec v1alpha1.BpfPolicySpec) {
				if namespace == "" {
					c.cluster = append(c.cluster[:1], v1alpha1.ClusterBpfPolicy{ObjectMeta: meta(generation), Spec: v1alpha1.ClusterBpfPolicySpec{BpfPolicySpec: spec}})
				} else {
					c.namespaced = []v1alpha1.BpfPolicy{{ObjectMeta: meta(generation), Spec: spec}}
				}
			}
			dies := true
			with := &hindered{Engine: engine, before: func(_ context.Context, p policies.Policy) error {
				if dies && p.Name == "p" {
					return errors.New("the worker ended: signal: killed")
				}
				return nil
			}}
			k := c.keeper(t)
			k.Engine, k.Patience = with, 3*time.Minute
			id := policies.Policy{Name: "p", Namespace: namespace}.String()
			// refreshed is what became of the policy, and the rules that deny.
			refreshed := func() (Outcome, []string) {
				t.Helper()
				if err := k.Prepare(t.Context()); err != nil {
					t.Fatal(err)
				}
				outcomes, _, err := k.Refresh(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				i := slices.IndexFunc(outcomes, func(o Outcome) bool { return o.Object.GetName() == "p" })
				return outcomes[i], with.denies(t, "team")
			}
			steps := []struct {
				what       string
				generation int64
				spec       v1alpha1.BpfPolicySpec
				dies       bool
				want       []string
			}{
				{"it was never compiled", 1, rego(`"one"`), true, []string{"good/deny", id + "/deny: try again in a moment"}},
				{"it is tried again", 1, rego(`{"msg": "one", "rule": "one"}`), false, []string{"good/deny", id + "/one"}},
				{"a change cannot be compiled", 2, rego(`{"msg": "two", "rule": "two"}`), true, []string{"good/deny", id + "/one"}},
				{"the change is tried again", 2, rego(`{"msg": "two", "rule": "two"}`), false, []string{"good/deny", id + "/two"}},
			}
			for _, s := range steps {
				dies = s.dies
				write(s.generation, s.spec)
				o, rules := refreshed()
				if o.Pending != s.dies || (o.Err != nil) != s.dies || !slices.Equal(rules, s.want) {
					t.Errorf("%s: pending %t, %v; denied by %v, want %v", s.what, o.Pending, o.Err, rules, s.want)
				}
			}
		})
	}
}

// TestAPolicyThatIsStillCompiledStopsNoOther has a Keeper that waits for no policy:
// what was active stays until the new one is compiled.
func TestAPolicyThatIsStillCompiledStopsNoOther(t *testing.T) {
	rego := func(what string) v1alpha1.BpfPolicySpec {
		return v1alpha1.BpfPolicySpec{Rego: "package skep.policy\n\ndeny contains " + what + "\n"}
	}
	meta := metav1.ObjectMeta{Name: "slow", Namespace: "team-a", UID: "slow", Generation: 1}
	c := &cluster{namespaced: []v1alpha1.BpfPolicy{{ObjectMeta: meta, Spec: rego(`"the first"`)}}}
	k := c.keeper(t)
	// in waits until a policy is compiled, and returns how often it was pending.
	compiled := func() (pending int) {
		t.Helper()
		for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); pending++ {
			if err := k.Prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			outcomes, _, err := k.Refresh(t.Context(), c)
			if err != nil || len(outcomes) != len(c.namespaced) {
				t.Fatal(outcomes, err)
			}
			if !slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.Pending || o.Err != nil }) {
				return pending
			}
		}
		t.Fatal("it is never compiled")
		return 0
	}
	k.Patience = 3 * time.Minute
	compiled()
	first := k.Weighed("team-a")
	k.Patience = time.Nanosecond
	c.namespaced[0].Generation, c.namespaced[0].Spec = 2, rego(`"the second"`)
	outcomes, changed, err := k.Refresh(t.Context(), c)
	if err != nil || changed.Anywhere() || k.Weighed("team-a") != first || !outcomes[0].Pending || outcomes[0].Err != nil {
		t.Fatalf("while it is compiled: %+v, changed %+v, %v", outcomes, changed, err)
	}
	c.namespaced = append(c.namespaced, v1alpha1.BpfPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "team-b", UID: "b", Generation: 1}, Spec: rego(`"b"`),
	})
	before := k.Weighed("team-b")
	if _, _, err := k.Refresh(t.Context(), c); err != nil || k.Weighed("team-b") == before {
		t.Errorf("a new policy does not deny while it is compiled: %v", err)
	}
	k.Patience = 3 * time.Minute
	compiled()
	both := k.Weighed("team-a")
	c.namespaced = c.namespaced[:1]
	if compiled(); k.Weighed("team-a") != both || both == first {
		t.Errorf("the second is not active, or another namespace's policy changed it: %s", k.Weighed("team-a"))
	}
}

// bomb is Rego whose types double with each line.
func bomb() string {
	text := "package skep.policy\n\n"
	for i := range 30 {
		text += fmt.Sprintf("v%d := {\"a\": v%d, \"b\": v%d}\n", i, i+1, i+1)
	}
	return text + "v30 := 1\n\ndeny contains \"x\" if v0.a.b.a == 2\n"
}

func TestAPolicyThatExplodesIsInvalidAndTakesNoOtherWithIt(t *testing.T) {
	c := &cluster{
		cluster: []v1alpha1.ClusterBpfPolicy{{
			ObjectMeta: metav1.ObjectMeta{Name: "good", UID: "good"},
			Spec:       v1alpha1.ClusterBpfPolicySpec{BpfPolicySpec: v1alpha1.BpfPolicySpec{Profile: policies.ProfileBaseline}},
		}},
		namespaced: []v1alpha1.BpfPolicy{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "bomb", UID: "bomb"}, Spec: v1alpha1.BpfPolicySpec{Rego: bomb()}},
			{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "fine", UID: "fine"}, Spec: v1alpha1.BpfPolicySpec{
				Rego: "package skep.policy\n\nwarn contains \"so\"\n",
			}},
		},
	}
	k := c.keeper(t)
	k.Patience = 3 * time.Minute
	outcomes, _, err := k.Refresh(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range outcomes {
		// On a busy machine the time of the clock is over before that of a processor.
		if exploded := o.Object.GetName() == "bomb"; exploded != (o.Err != nil) || exploded && !strings.Contains(o.Err.Error(), "compiling it exceeded its ") &&
			!strings.Contains(o.Err.Error(), "compiling it was not done within ") {
			t.Errorf("%s: %v", o.Object.GetName(), o.Err)
		}
	}
}

func holds(t *testing.T, k *Keeper, id v1alpha1.Identity) (string, bool) {
	t.Helper()
	revision, held, err := k.Holds(t.Context(), id, true)
	if err != nil {
		t.Fatal(err)
	}
	return revision, held
}

// TestUnloadProtectionCountsWhatOneChangeDoes takes a cluster through what its policies
// unload, one application after another.
func TestUnloadProtectionCountsWhatOneChangeDoes(t *testing.T) {
	// unloads has an application unloaded that unload protection does not hold.
	unloads := func(t *testing.T, c *cluster, k *Keeper, id v1alpha1.Identity) {
		t.Helper()
		if _, held := holds(t, k, id); held {
			t.Fatalf("%s is held", id)
		}
		c.live = slices.DeleteFunc(c.live, func(o v1alpha1.Identity) bool { return o == id })
		c.unloaded = append(c.unloaded, id)
	}
	keeps := func(t *testing.T, k *Keeper, id v1alpha1.Identity) {
		t.Helper()
		if _, held := holds(t, k, id); !held {
			t.Fatalf("%s is not held", id)
		}
	}
	for name, steps := range map[string]func(t *testing.T, c *cluster, k *Keeper, after func(time.Duration)){
		"a tenth goes at once, though fewer run when it has half gone": func(t *testing.T, c *cluster, k *Keeper, _ func(time.Duration)) {
			c.live = apps(20)
			unloads(t, c, k, apps(20)[0])
			unloads(t, c, k, apps(20)[1])
			keeps(t, k, apps(20)[2])
		},
		"a mass denial that comes drop by drop is one": func(t *testing.T, c *cluster, k *Keeper, after func(time.Duration)) {
			c.live = apps(5)
			unloads(t, c, k, apps(5)[0])
			after(together / 2)
			keeps(t, k, apps(5)[1])
		},
		"what was denied weeks ago was another": func(t *testing.T, c *cluster, k *Keeper, after func(time.Duration)) {
			c.live = apps(5)
			unloads(t, c, k, apps(5)[0])
			after(2 * together)
			unloads(t, c, k, apps(5)[1])
		},
		"what is held stays held, however long": func(t *testing.T, c *cluster, k *Keeper, after func(time.Duration)) {
			c.live = apps(5)
			holds(t, k, apps(5)[0])
			keeps(t, k, apps(5)[1])
			after(24 * together)
			keeps(t, k, apps(5)[0])
			keeps(t, k, apps(5)[1])
		},
		"a tenant who edits a policy has nothing forgotten": func(t *testing.T, c *cluster, k *Keeper, after func(time.Duration)) {
			c.live = apps(20)
			for i, id := range apps(20) {
				c.unloads = []v1alpha1.Identity{id}
				c.namespaced = []v1alpha1.BpfPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "own", Namespace: "team", UID: types.UID(fmt.Sprint("p", i)), Generation: 1},
					Spec: v1alpha1.BpfPolicySpec{Rego: fmt.Sprintf("package skep.policy\n\nwarn contains \"%d\"\n", i)}}}
				if err := k.Prepare(t.Context()); err != nil {
					t.Fatal(err)
				}
				refresh(t, k, c)
				if i < 2 {
					unloads(t, c, k, id)
				} else {
					keeps(t, k, id)
				}
				after(time.Second)
			}
		},
		"what is allowed again counts no more": func(t *testing.T, c *cluster, k *Keeper, _ func(time.Duration)) {
			c.live = apps(5)
			holds(t, k, apps(5)[0])
			keeps(t, k, apps(5)[1])
			k.Spares(apps(5)[0])
			if n := k.Protected(); n != 0 {
				t.Errorf("%d are held", n)
			}
			unloads(t, c, k, apps(5)[1])
		},
	} {
		t.Run(name, func(t *testing.T) {
			// When the policies are weighed, nothing runs yet.
			c, now := &cluster{}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			k := c.keeper(t)
			k.Now = func() time.Time { return now }
			refresh(t, k, c)
			steps(t, c, k, func(d time.Duration) { now = now.Add(d) })
		})
	}
}

// TestARevocationHurriesWhileAStartWeighs has a signer revoked, and a policy written with that which is long to be compiled, while a
// controller that starts weighs what runs.
func TestARevocationHurriesWhileAStartWeighs(t *testing.T) {
	chain := supply.New(t)
	c := &cluster{signers: []v1alpha1.BpfSigner{*chain.Signer("team-a")}, weighing: make(chan struct{})}
	k := c.keeper(t)
	r := &Reconciler{Keeper: k, Weigher: c, Changed: func(Where) {}, Leader: leader.New(leader.Options{Name: "another"})}
	done := make(chan error)
	start := func(ctx context.Context) {
		go func() {
			_, err := r.Reconcile(ctx, ofCluster)
			done <- err
		}()
	}
	start(t.Context())
	<-c.weighing
	k.Engine = &hindered{Engine: engine, before: func(ctx context.Context, _ policies.Policy) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	k.Patience, k.HurriedPatience = time.Hour, time.Millisecond
	c.cluster = []v1alpha1.ClusterBpfPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "slow", UID: "slow", Generation: 1}}}
	c.signers[0].Spec.Revoked, c.signers[0].Generation = true, 2
	r.signerChanged(t.Context(), &c.signers[0])
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	start(ctx)
	select {
	case <-c.weighing:
	case <-ctx.Done():
	}
	if c.revocations != 1 || ctx.Err() != nil {
		t.Errorf("the policy is waited for; Revoke was called %d times", c.revocations)
	}
	stop()
	<-done
}

// TestARevocationWaitsForNothingThatIsWeighed has signers revoked one after the other: what
// the first one has weighed is not waited for.
func TestARevocationWaitsForNothingThatIsWeighed(t *testing.T) {
	chain := supply.New(t)
	c := &cluster{signers: []v1alpha1.BpfSigner{*chain.Signer("team-a"), *chain.Signer("team-b")}}
	k := c.keeper(t)
	r := &Reconciler{Keeper: k, Weigher: c, Changed: func(Where) {}, Leader: leader.New(leader.Options{Name: "another"})}
	reconcile := func() (ctrl.Result, error) { return r.Reconcile(t.Context(), ofCluster) }
	if _, err := reconcile(); err != nil || c.revocations != 0 {
		t.Fatalf("no signer is revoked: %d revocations, %v", c.revocations, err)
	}
	c.signers[0].Spec.Revoked, c.signers[0].Generation = true, 2
	c.weighing = make(chan struct{})
	var again ctrl.Result
	done := make(chan error)
	go func() {
		var err error
		again, err = reconcile()
		done <- err
	}()
	<-c.weighing
	if _, revoked := k.Revoked()["team-a"]; !revoked || c.revocations != 1 {
		t.Errorf("while it is weighed, revoked are %v, and Revoke was called %d times", k.Revoked(), c.revocations)
	}
	r.signerChanged(t.Context(), &c.signers[0])
	r.signerChanged(t.Context(), &c.signers[1])
	select {
	case err := <-done:
		t.Errorf("a change that revokes no other signer ends the weighing: %v", err)
	default:
	}
	c.signers[1].Spec.RevokedAfter, c.signers[1].Generation = &metav1.Time{Time: time.Now()}, 2
	r.signerChanged(t.Context(), &c.signers[1])
	if err := <-done; err != nil || again.RequeueAfter != settle || k.Weighed("") == k.Evaluator.Revision() {
		t.Errorf("another one is revoked: %+v, %v, weighed %t", again, err, k.Weighed("") == k.Evaluator.Revision())
	}
	c.weighing = nil
	if _, err := reconcile(); err != nil || c.revocations != 2 || k.Weighed("") != k.Evaluator.RevisionIn("") {
		t.Errorf("then: Revoke was called %d times, %v", c.revocations, err)
	}
}
