package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// clusterPolicy is a policy of some Rego.
func clusterPolicy(name, rego string, running v1alpha1.RunningMode) *v1alpha1.ClusterBpfPolicy {
	return &v1alpha1.ClusterBpfPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.ClusterBpfPolicySpec{BpfPolicySpec: v1alpha1.BpfPolicySpec{Rego: "package skep.policy\n\n" + rego, Running: running}},
	}
}

// loads makes an application, signed by team-a, that one node has loaded.
func (c *cluster) loads(name, node string) *v1alpha1.ClusterBpfApplication {
	c.t.Helper()
	return c.loadsSigned(name, node, "team-a")
}

// loadsSigned makes an application that one node has loaded.
func (c *cluster) loadsSigned(name, node string, signers ...string) *v1alpha1.ClusterBpfApplication {
	c.t.Helper()
	ref, _ := c.Push(name+":v1", programs.Object("tracepoint_count"), signers...)
	app := application(name, ref)
	app.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	c.create(app)
	c.node(node, map[string]string{"app": name})
	c.condition(app, v1alpha1.ConditionReconciling, metav1.ConditionTrue, "Progressing")
	c.answers(node, app, v1alpha1.NodeLoaded, "")
	c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	return app
}

// unloaded waits for a tombstone.
func (c *cluster) unloaded(app client.Object, why string) {
	c.t.Helper()
	c.until("a tombstone", func() error {
		p := c.opened(app)
		if p == nil || !p.Tombstone || !strings.Contains(p.Reason, why) {
			return fmt.Errorf("sealed %+v", p)
		}
		return nil
	})
}

// runsStill says that an intent is no tombstone.
func (c *cluster) runsStill(app client.Object) {
	c.t.Helper()
	if p := c.opened(app); p == nil || p.Tombstone {
		c.t.Errorf("%s is to be unloaded: %+v", app.GetName(), p)
	}
}

func TestARevokedSignerUnloads(t *testing.T) {
	c := newCluster(t)
	c.control()
	signer := c.Signer("team-a")
	c.create(signer)
	app := c.loads("app", "one")
	c.Down.Store(true)
	c.change(signer, func() { signer.Spec.Revoked = true })
	c.unloaded(app, "revoked")
	c.condition(app, v1alpha1.ConditionReady, metav1.ConditionFalse, "Denied")
}

// TestARevocationWaitsForNoRegistry has one signer after the other revoked while the registry
// trickles, and while the definitions of other applications, which are weighed, name images
// that are still to be asked for. The machine may have other work for a second, but not each
// time.
func TestARevocationWaitsForNoRegistry(t *testing.T) {
	const times, most = 4, time.Second
	c := newCluster(t)
	c.control()
	// A policy that reads all signatures has all of them read at once.
	all := clusterPolicy("all", `deny contains "never" if count(input.signatures) > 9`, v1alpha1.RunningKeep)
	c.create(all)
	c.condition(all, v1alpha1.ConditionReady, metav1.ConditionTrue, "Active")
	var signers []*v1alpha1.BpfSigner
	var apps, others []*v1alpha1.ClusterBpfApplication
	for i := range times {
		signer := c.Signer(fmt.Sprint("team-", i))
		c.create(signer, c.Signer(fmt.Sprint("other-", i)))
		signers = append(signers, signer)
		apps = append(apps, c.loadsSigned(fmt.Sprint("app-", i), fmt.Sprint("node-", i), signer.Name))
		others = append(others, c.loadsSigned(fmt.Sprint("other-", i), fmt.Sprint("other-node-", i), fmt.Sprint("other-", i)))
	}
	c.Instead.Store(&supply.Trickle)
	for i := range times {
		c.change(others[i], func() { others[i].Spec.Bytecode.Image = c.Registry + "/bpf/elsewhere:v" + strconv.Itoa(i) })
		c.change(apps[i], func() { apps[i].Spec.Bytecode.Image = c.Registry + "/bpf/elsewhere:v" + strconv.Itoa(i) })
	}
	var took []time.Duration
	for i, app := range apps {
		began := time.Now()
		c.change(signers[i], func() { signers[i].Spec.Revoked = true })
		c.unloaded(app, "revoked")
		took = append(took, time.UnixMilli(c.opened(app).Serial).Sub(began))
		c.runsStill(others[i])
	}
	t.Log("revocations took", took)
	// The registry alone would take 15 seconds.
	slices.Sort(took)
	if took[0] > most || took[times-1] > 10*most {
		t.Errorf("revocations took %s", took)
	}
}

func TestAPolicyThatChangesKeepsOrUnloads(t *testing.T) {
	c := newCluster(t)
	c.control()
	c.create(c.Signer("team-a"))
	app := c.loads("app", "one")
	p := clusterPolicy("no-tracepoints", `deny contains "no" if input.application.metadata.name == "app"`, v1alpha1.RunningKeep)
	c.create(p)
	c.condition(app, v1alpha1.ConditionAllowed, metav1.ConditionFalse, "Denied")
	c.runsStill(app)
	c.condition(p, v1alpha1.ConditionReady, metav1.ConditionTrue, "Active")
	before := c.Requests.Load()
	c.change(p, func() { p.Spec.Running = v1alpha1.RunningUnload })
	c.unloaded(app, "running: Unload")
	if asked := c.Requests.Load() - before; asked != 0 {
		t.Errorf("the registry was asked %d times for a change of policies", asked)
	}
}

// TestWhatRanWithoutBaselineIsKept has a policy no longer replace baseline while no
// controller runs, as an upgrade does from a version where every policy replaced it.
func TestWhatRanWithoutBaselineIsKept(t *testing.T) {
	c := newCluster(t)
	stop := c.control()
	c.create(c.Signer("team-a"))
	own := clusterPolicy("own", `deny contains "never" if input.application.kind == "Nothing"`, v1alpha1.RunningUnload)
	own.Spec.Replaces = []v1alpha1.BuiltinPolicy{v1alpha1.PolicyBaseline}
	c.create(own)
	ready := c.condition(own, v1alpha1.ConditionReady, metav1.ConditionTrue, "Active")
	if !strings.Contains(ready.Message, "policy own replaces baseline for every application") {
		t.Errorf("its status says %q", ready.Message)
	}
	if shown := c.table("clusterbpfpolicies"); !strings.Contains(shown, `"Replaces"`) || !strings.Contains(shown, `"[\"baseline\"]"`) {
		t.Errorf("kubectl get shows %s", shown)
	}
	var apps []*v1alpha1.ClusterBpfApplication
	for i := range 3 {
		apps = append(apps, c.loadsSigned(fmt.Sprintf("app-%d", i), fmt.Sprintf("node-%d", i)))
	}
	stop()
	c.change(own, func() { own.Spec.Replaces = nil })
	c.control()
	for _, app := range apps {
		denied := c.condition(app, v1alpha1.ConditionAllowed, metav1.ConditionFalse, "Denied")
		if !strings.Contains(denied.Message, "baseline/signed") {
			t.Errorf("denied by %s", denied.Message)
		}
		c.condition(app, v1alpha1.ConditionDeployed, metav1.ConditionTrue, "Succeeded")
		c.runsStill(app)
	}
}

// table is what kubectl get prints of a resource.
func (c *cluster) table(resource string) string {
	c.t.Helper()
	http, err := rest.HTTPClientFor(c.plane.Config)
	if err != nil {
		c.t.Fatal(err)
	}
	config := rest.CopyConfig(c.plane.Config)
	config.GroupVersion, config.APIPath = &schema.GroupVersion{Group: v1alpha1.Group, Version: v1alpha1.Version}, "/apis"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	api, err := rest.RESTClientForConfigAndClient(config, http)
	if err != nil {
		c.t.Fatal(err)
	}
	body, err := api.Get().Resource(resource).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return string(body)
}

func TestMetadataThatPoliciesReadIsFollowed(t *testing.T) {
	c := newCluster(t)
	c.control()
	c.create(c.Signer("team-a"), clusterPolicy("approved", `deny contains "nobody approved it" if not input.application.metadata.annotations.approved
deny contains "its namespace is closed" if input.namespace.labels.closed`, v1alpha1.RunningKeep))
	ref, _ := c.Push("app:v1", programs.Object("xdp_count"), "team-a")
	app := asks("default", "app", ref)
	c.create(app)
	denied := func(rule string) {
		t.Helper()
		c.until("a denial: "+rule, func() error {
			ready := c.condition(app, v1alpha1.ConditionReady, metav1.ConditionFalse, "Denied")
			if strings.Contains(ready.Message, rule) {
				return nil
			}
			return errors.New(ready.Message)
		})
	}
	denied("nobody approved it")
	c.change(app, func() { app.Annotations = map[string]string{"approved": "yes"} })
	c.condition(app, v1alpha1.ConditionAllowed, metav1.ConditionTrue, "Allowed")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	closed := func(yes bool) {
		c.change(ns, func() {
			delete(ns.Labels, "closed")
			if yes {
				ns.Labels["closed"] = "yes"
			}
		})
	}
	closed(true)
	denied("its namespace is closed")
	closed(false)
	c.condition(app, v1alpha1.ConditionAllowed, metav1.ConditionTrue, "Allowed")
}

func TestUnloadProtectionWaitsForAHuman(t *testing.T) {
	c := newCluster(t)
	c.control()
	c.protects()
}

// TestANamespaceThatEditsInALoopHoldsUpNobody has a namespace edit its policy again and
// again, each of which acts at once, while an admin confirms a change of the cluster's and
// takes back a signer.
func TestANamespaceThatEditsInALoopHoldsUpNobody(t *testing.T) {
	c := newCluster(t)
	c.control(func(o *controller.Options) { o.NamespacedPoliciesEvery = time.Millisecond })
	ctx, stop := context.WithCancel(t.Context())
	edits := make(chan error)
	go func() { edits <- c.editsInALoop(ctx) }()
	signer := c.protects()
	last := c.loads("last", "node-last")
	c.change(signer, func() { signer.Spec.Revoked = true })
	c.unloaded(last, signer.Name)
	stop()
	if err := <-edits; err != nil {
		t.Error(err)
	}
}

// editsInALoop edits a policy of a namespace until ctx ends, as fast as the API server
// takes it.
func (c *cluster) editsInALoop(ctx context.Context) error {
	own := &v1alpha1.BpfPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "own"}}
	write := func() error { return c.Create(ctx, own) }
	for n := 0; ctx.Err() == nil; n++ {
		own.Spec.Rego = fmt.Sprintf("package skep.policy\n\nwarn contains \"%d\"\n", n)
		err := write()
		if apierrors.IsConflict(err) {
			err = c.Get(ctx, client.ObjectKeyFromObject(own), own)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		write = func() error { return c.Update(ctx, own) }
	}
	return nil
}

// protects has unload protection hold applications, and go after an admin confirmed it. It
// returns who signed them.
func (c *cluster) protects() *v1alpha1.BpfSigner {
	c.t.Helper()
	signer := c.Signer("team-a")
	c.create(signer)
	var apps []*v1alpha1.ClusterBpfApplication
	for i := range 3 {
		apps = append(apps, c.loads(fmt.Sprintf("app-%d", i), fmt.Sprintf("node-%d", i)))
	}
	p := clusterPolicy("typo", `deny contains "no" if input.application.metadata.name != "last"`, v1alpha1.RunningUnload)
	c.create(p)
	revision := ""
	for _, app := range apps {
		ready := c.condition(app, v1alpha1.ConditionReady, metav1.ConditionFalse, "Denied")
		_, after, found := strings.Cut(ready.Message, policy.AnnotationConfirm+"=")
		if !found {
			c.t.Fatalf("the message does not say how to confirm: %s", ready.Message)
		}
		revision = after
		c.runsStill(app)
	}
	c.change(p, func() { p.Annotations = map[string]string{policy.AnnotationConfirm: revision} })
	for _, app := range apps {
		c.unloaded(app, "running: Unload")
	}
	return signer
}

func TestABrokenPolicyTakesNoOtherWithIt(t *testing.T) {
	c := newCluster(t)
	c.control()
	c.create(c.Signer("team-a"))
	broken := clusterPolicy("broken", "deny contains", v1alpha1.RunningUnload)
	broken.Spec.Match = &v1alpha1.PolicyMatch{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}}}
	c.create(broken)
	reason := c.condition(broken, v1alpha1.ConditionReady, metav1.ConditionFalse, "Invalid")
	if !strings.Contains(reason.Message, ".rego:") {
		t.Errorf("no line is named: %s", reason.Message)
	}
	ref, _ := c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	fine, caught := application("fine", ref), application("caught", ref)
	caught.Labels = map[string]string{"team": "b"}
	c.create(fine, caught)
	c.condition(fine, v1alpha1.ConditionAllowed, metav1.ConditionTrue, "Allowed")
	denied := c.condition(caught, v1alpha1.ConditionAllowed, metav1.ConditionFalse, "Denied")
	if !strings.Contains(denied.Message, "broken") {
		t.Errorf("the policy is not named: %s", denied.Message)
	}
}

func TestABrokenSignerCountsForNothing(t *testing.T) {
	c := newCluster(t)
	c.control()
	broken := c.Signer("team-b")
	broken.Spec.Key.PublicKey = "no key"
	c.create(c.Signer("team-a"), broken)
	c.condition(broken, v1alpha1.ConditionReady, metav1.ConditionFalse, "Invalid")
	ref, _ := c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	app := application("app", ref)
	c.create(app)
	c.condition(app, v1alpha1.ConditionVerified, metav1.ConditionTrue, "Signed")
}

func TestWhatVanishesWithItsCRDKeepsRunning(t *testing.T) {
	c := newCluster(t)
	c.control()
	c.create(c.Signer("team-a"))
	app := c.loads("app", "one")
	other := c.loads("other", "two")
	crds, err := apiextensions.NewForConfig(c.plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	name := "clusterbpfapplications." + v1alpha1.Group
	if err := crds.CustomResourceDefinitions().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.until("the CRD to go", func() error {
		if _, err := crds.CustomResourceDefinitions().Get(t.Context(), name, metav1.GetOptions{}); err == nil {
			return errors.New("it is still there")
		}
		return nil
	})
	// The CRD comes back empty, as after helm uninstall and install. One of the
	// applications is applied again, and so takes the place of what runs.
	c.install()
	again := application("app", app.Spec.Bytecode.Image)
	again.Spec.NodeSelector = app.Spec.NodeSelector
	c.until("to apply again", func() error { return c.Create(t.Context(), again) })
	c.unloaded(app, "took its place")
	c.until("its new intent", func() error {
		if p := c.opened(again); p == nil || p.Tombstone {
			return fmt.Errorf("sealed %+v", p)
		}
		return nil
	})
	c.runsStill(other)
}
