package integration

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/test/fixture/supply"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/controlplane"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/workers"
)

// shared is the control plane of all tests that do not stop it.
var shared *controlplane.Plane

func TestMain(m *testing.M) {
	policies.MaybeWorkerChild()
	schemas.MaybeRenderChild()
	workers.Use()
	ctrl.SetLogger(logs.logger())
	if folder := os.Getenv(simulatedEnv); folder != "" {
		if err := simulate(folder); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(leaks.Apart(func() int { return run(m) }))
}

func run(m *testing.M) int {
	var err error
	if shared, err = controlplane.Start(context.Background(), controlplane.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer shared.Stop()
	return m.Run()
}

// cluster is a control plane with nothing of Skep's in it but CRDs, and what
// users bring.
type cluster struct {
	*supply.Chain
	client.Client
	t     testing.TB
	plane *controlplane.Plane
	// key seals intents.
	key []byte
	// conformance is what becomes of the objects that users write.
	conformance *conformance
	// supervised ends what crash killed and started again, by the name of its binary.
	supervised map[string]func()
}

// newCluster is the shared control plane, which is emptied after the test.
func newCluster(t testing.TB) *cluster {
	t.Helper()
	c := newClusterOn(t, shared)
	t.Cleanup(c.empty)
	return c
}

// newClusterOn is a control plane as users find it.
func newClusterOn(t testing.TB, plane *controlplane.Plane) *cluster {
	t.Helper()
	c := &cluster{t: t, plane: plane, Chain: supply.New(t), supervised: map[string]func(){}}
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	if c.Client, err = client.New(c.plane.Config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	if c.key, err = intent.GenerateKey(); err != nil {
		t.Fatal(err)
	}
	c.conform()
	return c
}

// empty takes away what the test made.
func (c *cluster) empty() {
	c.install()
	for _, o := range []client.Object{
		&v1alpha1.ClusterBpfApplication{}, &v1alpha1.ClusterBpfPolicy{}, &v1alpha1.BpfSigner{},
		&v1alpha1.BpfIntent{}, &v1alpha1.BpfNode{}, &v1alpha1.BpfImage{}, &corev1.Node{},
	} {
		if err := c.DeleteAllOf(context.Background(), o); err != nil {
			c.t.Error(err)
		}
	}
	for _, o := range []client.Object{&v1alpha1.BpfApplication{}, &v1alpha1.BpfPolicy{}} {
		if err := c.DeleteAllOf(context.Background(), o, client.InNamespace("default")); err != nil {
			c.t.Error(err)
		}
	}
}

// control runs a controller until stop is called or the test ends.
func (c *cluster) control(change ...func(*controller.Options)) (stop func()) {
	c.t.Helper()
	o := controller.Options{
		Config: c.plane.Config, Namespace: "default", SealKey: c.key, Cache: c.t.TempDir(), Metrics: prometheus.NewRegistry(),
		AllowedRegistries: supply.Loopback(), RegistryBackoff: time.Millisecond,
	}
	for _, f := range change {
		f(&o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	mgr, err := controller.New(ctx, o)
	if err != nil {
		cancel()
		c.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			c.t.Errorf("controller: %v", err)
		}
	}
	c.t.Cleanup(stop)
	return stop
}

// create makes objects.
func (c *cluster) create(objects ...client.Object) {
	c.t.Helper()
	for _, o := range objects {
		if err := c.Create(c.t.Context(), o); err != nil {
			c.t.Fatal(err)
		}
		if _, ok := o.(conditioned); ok {
			c.conformance.created = true
		}
	}
}

// change changes an object as a user would: what it says now, and one field.
func (c *cluster) change(o client.Object, edit func()) {
	c.t.Helper()
	if err := c.Get(c.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		c.t.Fatal(err)
	}
	before := o.DeepCopyObject().(client.Object)
	edit()
	if err := c.Patch(c.t.Context(), o, client.MergeFrom(before)); err != nil {
		c.t.Fatal(err)
	}
}

// node makes a Node that is ready, and whose agent has said nothing but that it
// is there.
func (c *cluster) node(name string, labels map[string]string) *corev1.Node {
	c.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	c.create(n, &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name}})
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := c.Status().Update(c.t.Context(), n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// patience bounds what a test waits for; far more than anything takes.
const patience = 3 * time.Minute

// until waits until check is content, looking often; it returns what was amiss
// until then.
func (c *cluster) until(what string, check func() error) {
	c.t.Helper()
	c.within(patience, what, check)
}

// within is until, of what is promised to take no longer.
func (c *cluster) within(limit time.Duration, what string, check func() error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	if err := await.Until(ctx, 250*time.Millisecond, check); err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// condition waits until an object's condition has a status, and returns it.
func (c *cluster) condition(o conditioned, kind string, want metav1.ConditionStatus, reason string) metav1.Condition {
	c.t.Helper()
	var got metav1.Condition
	c.until(fmt.Sprintf("%T %s: %s=%s %s", o, o.GetName(), kind, want, reason), func() error {
		if err := c.Get(c.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		for _, got = range o.GetConditions() {
			if got.Type == kind && got.Status == want && got.Reason == reason && got.ObservedGeneration == o.GetGeneration() {
				return nil
			}
		}
		return fmt.Errorf("conditions are %v", o.GetConditions())
	})
	return got
}

// conditioned is an object with status conditions.
type conditioned interface {
	client.Object
	GetConditions() []metav1.Condition
}

// application is one that counts a tracepoint, of an image.
func application(name, image string) *v1alpha1.ClusterBpfApplication {
	return &v1alpha1.ClusterBpfApplication{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.BpfApplicationSpec{
			Bytecode: v1alpha1.Bytecode{Image: image},
			Programs: []v1alpha1.Program{{Name: "tracepoint_count"}},
			// Of rollouts there are tests of their own.
			Rollout: &v1alpha1.Rollout{Steps: []intstr.IntOrString{intstr.FromString("100%")}},
		},
	}
}

// install installs Skep's CRDs again.
func (c *cluster) install() {
	c.t.Helper()
	if _, err := envtest.InstallCRDs(c.plane.Config, controlplane.CRDInstall()); err != nil {
		c.t.Fatal(err)
	}
}
