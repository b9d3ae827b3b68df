package application

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// bench is a Reconciler on an API server in memory, whose cache and clock the
// test holds: what a real one shows once in a thousand runs, it shows each time.
// There is a registry, a signer called team-a, and the CRDs.
type bench struct {
	*Reconciler
	*supply.Chain
	t   *testing.T
	api client.WithWatch
	// cached stands between the Reconciler and what it reads; calls that are nil
	// go straight to the API server.
	cached interceptor.Funcs
	clock  time.Time
	events *events.FakeRecorder
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, Chain: supply.New(t), clock: time.Now(), events: events.NewFakeRecorder(100)}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	b.Reconciler = &Reconciler{Events: b.events, Metrics: NewMetrics(prometheus.NewRegistry()), Now: func() time.Time { return b.clock }}
	b.Evaluator = b.evaluator(gate.Options{})
	b.Intents = &intents.Store{Keys: newRing(t).Keys, Now: b.now, Wrote: b.Metrics.Sealed}
	b.api = fake.NewClientBuilder().WithScheme(scheme).WithTypeConverters(managedfields.NewDeducedTypeConverter()).
		WithStatusSubresource(&v1alpha1.BpfApplication{}, &v1alpha1.ClusterBpfApplication{}).
		WithIndex(&v1alpha1.BpfIntent{}, intents.ByApplication, b.Intents.Index).Build()
	b.Live, b.Intents.Live, b.Keeper = b.api, b.api, policy.NewKeeper(policy.Options{
		Reader: b.api, Direct: b.api, Namespace: "skep", Evaluator: b.Evaluator, Engine: engine, Now: b.now, Keys: b.Intents.Keys, HurriedPatience: time.Minute,
	})
	b.Client = interceptor.NewClient(b.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if b.cached.Get != nil {
				return b.cached.Get(ctx, c, key, o, opts...)
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if b.cached.List != nil {
				return b.cached.List(ctx, c, list, opts...)
			}
			return c.List(ctx, list, opts...)
		},
	})
	b.Intents.Client = b.Client
	for _, name := range []string{"bpfapplications.", "clusterbpfapplications.", "bpfsigners."} {
		b.create(&apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name + v1alpha1.Group, UID: "crd"}})
	}
	b.create(b.Signer("team-a"))
	b.refresh()
	return b
}

// evaluator is one that remembers nothing, and has no signers yet.
func (b *bench) evaluator(o gate.Options) *gate.Evaluator {
	b.t.Helper()
	trust, err := signing.NewTrust(nil)
	set, compileErr := engine.Compile(b.t.Context(), nil, policies.Options{})
	if err := errors.Join(err, compileErr); err != nil {
		b.t.Fatal(err)
	}
	o.Images, o.Trust, o.Policies, o.Now = supply.Client(b.t, registry.Options{CacheDir: b.t.TempDir()}), trust, set, b.now
	e, err := gate.New(o)
	if err != nil {
		b.t.Fatal(err)
	}
	return e
}

// forgets has another evaluator in the place of the one there is.
func (b *bench) forgets(o gate.Options) {
	b.t.Helper()
	b.Evaluator = b.evaluator(o)
	b.Keeper.Evaluator = b.Evaluator
	b.refresh()
}

func newRing(t testing.TB) *sealing.Ring {
	t.Helper()
	key := seals.New(t)
	return sealing.NewRing(sealing.Keys{Sealer: key.Sealer, Trust: key.Trust})
}

// create makes objects.
func (b *bench) create(objects ...client.Object) {
	b.t.Helper()
	for _, o := range objects {
		if err := b.api.Create(b.t.Context(), o); err != nil {
			b.t.Fatal(err)
		}
	}
}

// change changes an object as it is on the API server now.
func (b *bench) change(o client.Object, edit func()) {
	b.t.Helper()
	if err := b.api.Get(b.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		b.t.Fatal(err)
	}
	edit()
	if err := b.api.Update(b.t.Context(), o); err != nil {
		b.t.Fatal(err)
	}
}

// refresh activates signers and policies.
func (b *bench) refresh() {
	b.t.Helper()
	if _, _, err := b.Keeper.Refresh(b.t.Context(), b.Reconciler); err != nil {
		b.t.Fatal(err)
	}
}

// application makes one of an image that team-a signed; each has another UID.
func (b *bench) application(name string) *v1alpha1.ClusterBpfApplication {
	b.t.Helper()
	ref, _ := b.Push(name+":v1", programs.Object("tracepoint_count"), "team-a")
	app := defined(name, ref)
	b.create(app)
	return app
}

// uids tells apart what is created under one name.
var uids atomic.Int64

// defined is a definition that goes to every node at once.
func defined(name, ref string) *v1alpha1.ClusterBpfApplication {
	return &v1alpha1.ClusterBpfApplication{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-" + strconv.FormatInt(uids.Add(1), 10)), Generation: 1},
		Spec: v1alpha1.BpfApplicationSpec{
			Bytecode: v1alpha1.Bytecode{Image: ref}, Programs: []v1alpha1.Program{{Name: "tracepoint_count"}},
			Rollout: &v1alpha1.Rollout{Steps: []intstr.IntOrString{intstr.FromString("100%")}},
		},
	}
}

// node makes a Node that is ready, and whose agent says so much of an intent.
func (b *bench) node(name string, said ...v1alpha1.NodeApplication) {
	b.t.Helper()
	b.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}, &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.BpfNodeStatus{Applications: said}})
}

// says is what a node says of an application's newest intent.
func (b *bench) says(app application, state v1alpha1.NodeState) v1alpha1.NodeApplication {
	b.t.Helper()
	p := b.intent(app)
	return v1alpha1.NodeApplication{
		Kind: p.Application.Kind, Namespace: p.Application.Namespace, Name: p.Application.Name, UID: p.UID, Serial: p.VersionSerial(), State: state,
	}
}

// intent is what is sealed of an application; nil where nothing is.
func (b *bench) intent(app application) *intent.Payload {
	b.t.Helper()
	var o v1alpha1.BpfIntent
	if err := b.api.Get(b.t.Context(), client.ObjectKey{Name: string(app.GetUID())}, &o); err != nil {
		if client.IgnoreNotFound(err) != nil {
			b.t.Fatal(err)
		}
		return nil
	}
	s, ok := b.Intents.Open(&o)
	if !ok {
		b.t.Fatalf("the seal of %s does not hold", o.Name)
	}
	return s.Payload
}

// reconcile brings an application up to date.
func (b *bench) reconcile(id v1alpha1.Identity) ctrl.Result {
	b.t.Helper()
	again, err := b.Reconcile(b.t.Context(), id)
	if err != nil {
		b.t.Fatal(err)
	}
	return again
}
