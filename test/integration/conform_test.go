package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions/check"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// conformance holds every version of every object that users write to what
// fluxcd/pkg/runtime asks of conditions: no FAIL and no WARN at any time.
type conformance struct {
	t       testing.TB
	checker *check.Checker
	// created tells that the test made such an object.
	created bool

	mu sync.Mutex
	// said is the status of each object when it was seen last.
	said map[types.UID]string
}

// conform watches until the test ends.
func (c *cluster) conform() {
	c.t.Helper()
	k := &conformance{t: c.t, said: map[types.UID]string{}, checker: check.NewChecker(c.Client, &check.Conditions{
		NegativePolarity: []string{v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled},
	})}
	k.checker.DisableFetch = true
	c.conformance = k
	if _, measures := c.t.(*testing.B); measures {
		return
	}
	watching, err := client.NewWithWatch(c.plane.Config, client.Options{Scheme: c.Scheme()})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, list := range []client.ObjectList{
		&v1alpha1.BpfApplicationList{}, &v1alpha1.ClusterBpfApplicationList{},
		&v1alpha1.BpfPolicyList{}, &v1alpha1.ClusterBpfPolicyList{}, &v1alpha1.BpfSignerList{},
		&v1alpha1.CueArtifactList{},
	} {
		w, err := watching.Watch(ctx, list)
		if err != nil {
			stop()
			c.t.Fatal(err)
		}
		all.Go(func() { k.follow(ctx, watching, list, w) })
	}
	c.t.Cleanup(func() {
		stop()
		all.Wait()
		if c.conformance.created && len(k.said) == 0 {
			c.t.Error("nothing was seen to conform")
		}
	})
}

// follow looks at what a watch tells, and at what the next one does where a test
// kills the API server or deletes a CRD.
func (k *conformance) follow(ctx context.Context, from client.WithWatch, list client.ObjectList, w watch.Interface) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		for e := range w.ResultChan() {
			if o, ok := e.Object.(conditioned); ok && e.Type != watch.Deleted {
				k.look(o, e.Type == watch.Added)
			}
		}
		for again := context.Canceled; again != nil; w, again = from.Watch(ctx, list) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}
}

// look holds an object to it whose status was written. What a user has just
// written, nobody has looked at yet; first tells that an object is new, or that
// what was written to it before was not seen.
func (k *conformance) look(o conditioned, first bool) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		k.t.Error(err)
		return
	}
	status, err := json.Marshal(fields["status"])
	if err != nil {
		k.t.Error(err)
		return
	}
	k.mu.Lock()
	same := k.said[o.GetUID()] == string(status)
	k.said[o.GetUID()] = string(status)
	k.mu.Unlock()
	observed, _, _ := unstructured.NestedInt64(fields, "status", "observedGeneration")
	if same || first && observed < o.GetGeneration() {
		return
	}
	if fail, warn := k.checker.Check(context.Background(), o); fail != nil || warn != nil {
		k.t.Errorf("%T %s at resource version %s, generation %d: FAIL %v, WARN %v, status %s",
			o, o.GetName(), o.GetResourceVersion(), o.GetGeneration(), fail, warn, status)
	}
}

// kstatus is what sigs.k8s.io/cli-utils makes of an object of a kind that it does
// not know: helm and Flux wait for Current by it.
func kstatus(o *unstructured.Unstructured) (string, error) {
	observed, found, err := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	if err != nil {
		return "", err
	}
	if found && observed != o.GetGeneration() {
		return "InProgress", nil
	}
	var said struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &said); err != nil {
		return "", err
	}
	switch all := said.Status.Conditions; {
	case apimeta.IsStatusConditionTrue(all, v1alpha1.ConditionReconciling):
		return "InProgress", nil
	case apimeta.IsStatusConditionTrue(all, v1alpha1.ConditionStalled):
		return "Failed", nil
	case apimeta.FindStatusCondition(all, v1alpha1.ConditionReady) != nil && !apimeta.IsStatusConditionTrue(all, v1alpha1.ConditionReady):
		return "InProgress", nil
	}
	return "Current", nil
}

// bare is an object as clients see it that know no types of Skep's.
func (c *cluster) bare(o client.Object) *unstructured.Unstructured {
	c.t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		c.t.Fatal(err)
	}
	kind, err := c.GroupVersionKindFor(o)
	if err != nil {
		c.t.Fatal(err)
	}
	bare := &unstructured.Unstructured{Object: fields}
	bare.SetGroupVersionKind(kind)
	return bare
}

func TestWhoWaitsByKstatusWaitsForTheFirstLook(t *testing.T) {
	c := newCluster(t)
	signed, _ := c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	unsigned, _ := c.Push("unsigned:v1", programs.Object("xdp_count"))
	want := map[*unstructured.Unstructured]string{}
	baseline := &v1alpha1.ClusterBpfPolicy{ObjectMeta: metav1.ObjectMeta{Name: "baseline"}, Spec: v1alpha1.ClusterBpfPolicySpec{
		BpfPolicySpec: v1alpha1.BpfPolicySpec{Profile: "baseline"},
	}}
	broken := &v1alpha1.BpfPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "broken"}, Spec: v1alpha1.BpfPolicySpec{Rego: "deny contains"}}
	for o, is := range map[client.Object]string{
		c.Signer("team-a"):                    "Current",
		baseline:                              "Current",
		broken:                                "Failed",
		application("signed", signed):         "Current",
		asks("default", "unsigned", unsigned): "Failed",
		// There is no such registry.
		application("away", "127.0.0.1:1/app:v1"): "InProgress",
	} {
		want[c.bare(o)] = is
	}
	for o := range want {
		c.create(o)
		if is, err := kstatus(o); err != nil || is != "InProgress" {
			t.Errorf("%s %s that nobody has looked at is %s, %v", o.GetKind(), o.GetName(), is, err)
		}
	}
	c.control()
	for o, is := range want {
		c.until(fmt.Sprintf("%s %s to be %s", o.GetKind(), o.GetName(), is), func() error {
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
				return err
			}
			// InProgress alone would be true of what nobody looked at, too.
			observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
			got, err := kstatus(o)
			if err == nil && (got != is || observed != o.GetGeneration()) {
				err = fmt.Errorf("it is %s, of generation %d", got, observed)
			}
			return err
		})
	}
}

func TestAReconciliationThatIsAskedForIsAnswered(t *testing.T) {
	c := newCluster(t)
	c.control()
	baseline := &v1alpha1.ClusterBpfPolicy{ObjectMeta: metav1.ObjectMeta{Name: "baseline"}, Spec: v1alpha1.ClusterBpfPolicySpec{
		BpfPolicySpec: v1alpha1.BpfPolicySpec{Profile: "baseline"},
	}}
	broken := &v1alpha1.BpfPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "broken"}, Spec: v1alpha1.BpfPolicySpec{Rego: "deny contains"}}
	for _, o := range []client.Object{c.Signer("team-a"), baseline, broken, application("app", "127.0.0.1:1/app:v1")} {
		asked := c.bare(o)
		c.create(asked)
		for _, when := range []string{"2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z"} {
			c.change(asked, func() { asked.SetAnnotations(map[string]string{meta.ReconcileRequestAnnotation: when}) })
			c.until(fmt.Sprintf("%s %s to be reconciled", asked.GetKind(), asked.GetName()), func() error {
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(asked), asked); err != nil {
					return err
				}
				if got, _, _ := unstructured.NestedString(asked.Object, "status", "lastHandledReconcileAt"); got != when {
					return fmt.Errorf("%q of %q was answered", got, when)
				}
				return nil
			})
		}
	}
}

// columns are what kubectl get shows of the one object of a kind there is.
func (c *cluster) columns(resource string) map[string]any {
	c.t.Helper()
	direct, err := discovery.NewDiscoveryClientForConfig(c.plane.Config)
	if err != nil {
		c.t.Fatal(err)
	}
	body, err := direct.RESTClient().Get().AbsPath("/apis", v1alpha1.Group, v1alpha1.Version, resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil || len(table.Rows) != 1 {
		c.t.Fatalf("%s: %d rows, %v", resource, len(table.Rows), err)
	}
	shown := map[string]any{}
	for i, column := range table.ColumnDefinitions {
		shown[column.Name] = table.Rows[0].Cells[i]
	}
	return shown
}

func TestKubectlShowsWhoSignedIt(t *testing.T) {
	for sentence, o := range map[string]struct {
		signers []string
		want    string
	}{
		"one signer":          {[]string{"release"}, "release"},
		"as many as are told": {[]string{"a", "b", "release"}, "a,b,release"},
		"more":                {[]string{"a", "b", "c", "d", "e"}, "a,b,c (and 2 more)"},
	} {
		t.Run(sentence, func(t *testing.T) {
			c := newCluster(t)
			c.control()
			for _, name := range o.signers {
				c.create(c.Signer(name))
			}
			ref, _ := c.Push("app:v1", programs.Object("tracepoint_count"), o.signers...)
			app := application("app", ref)
			c.create(app)
			c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "NoNodesSelected")
			if shown := c.columns("clusterbpfapplications"); shown["Signers"] != o.want {
				t.Errorf("it shows %v", shown)
			}
		})
	}
}

// TestARevocationMeetsNoOwner has somebody make a signer who says nothing of
// revocation, and somebody else revoke it: what the API server would fill in were the
// former's.
func TestARevocationMeetsNoOwner(t *testing.T) {
	c := newCluster(t)
	signer := c.Signer("team-a")
	revoked := c.bare(signer)
	if err := c.Create(t.Context(), signer, client.FieldOwner("kubectl-create")); err != nil {
		t.Fatal(err)
	}
	unstructured.RemoveNestedField(revoked.Object, "metadata", "creationTimestamp")
	if err := unstructured.SetNestedField(revoked.Object, true, "spec", "revoked"); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(revoked), client.FieldOwner("kubectl")); err != nil {
		t.Errorf("it cannot be revoked: %v", err)
	}
}
