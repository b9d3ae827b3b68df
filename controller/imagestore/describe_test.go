package imagestore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// evaluated is a verdict on an application of a new image, whose signatures m keeps.
func evaluated(t *testing.T, m *Memory) gate.Verdict {
	t.Helper()
	chain := supply.New(t)
	trust, err := signing.NewTrust(nil)
	engine := policies.NewEngine(policies.EngineOptions{})
	t.Cleanup(engine.Close)
	set, compileErr := engine.Compile(t.Context(), nil, policies.Options{})
	if err := errors.Join(err, compileErr); err != nil {
		t.Fatal(err)
	}
	evaluator, err := gate.New(gate.Options{Images: supply.Client(t, registry.Options{}), Trust: trust, Policies: set, Memory: m})
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := chain.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	app := &v1alpha1.ClusterBpfApplication{Spec: v1alpha1.BpfApplicationSpec{
		Bytecode: v1alpha1.Bytecode{Image: ref}, Programs: []v1alpha1.Program{{Name: "tracepoint_count"}},
	}}
	app.Name = "app"
	v, err := evaluator.Evaluate(t.Context(), gate.Request{Application: app})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestAnImageIsWrittenOnce has many applications of one image described at once,
// with what the registry said of it.
func TestAnImageIsWrittenOnce(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var writes atomic.Int64
	var down atomic.Bool
	write := func() error {
		writes.Add(1)
		if down.Load() {
			return errors.New("the API server is away")
		}
		return nil
	}
	api := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := write(); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := write(); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
	})
	m := &Memory{Client: api, Gather: time.Hour}
	v := evaluated(t, m)
	name := "signatures"
	for kept := range m.pending.objects[objectName(v.Image().Digest)] {
		name = kept + "-" + v.Image().Digest
	}
	if _, known := m.Load(name); !known || writes.Load() != 0 {
		t.Fatalf("before it is described, it is known: %v, after %d writes", known, writes.Load())
	}
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			if err := m.Describe(t.Context(), v); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if _, known := m.Load(name); !known || writes.Load() != 1 {
		t.Errorf("after it is described, it is known: %v, after %d writes", known, writes.Load())
	}
	var o v1alpha1.BpfImage
	if err := api.Get(t.Context(), client.ObjectKey{Name: objectName(v.Image().Digest)}, &o); err != nil || len(o.Spec.Programs) != 1 {
		t.Errorf("programs are %v, %v", o.Spec.Programs, err)
	}

	// The same image in another repository.
	again := evaluated(t, m)
	down.Store(true)
	if err := m.Describe(t.Context(), again); err == nil {
		t.Error("no error while the API server is away")
	}
	down.Store(false)
	if err := errors.Join(m.Describe(t.Context(), again), api.Get(t.Context(), client.ObjectKey{Name: objectName(again.Image().Digest)}, &o)); err != nil ||
		len(o.Spec.Memory) != 2 {
		t.Errorf("what waited is lost: %d are kept, %v", len(o.Spec.Memory), err)
	}
}

func TestWhatWaitsIsBounded(t *testing.T) {
	var p pending
	half := make([]byte, maxPending/2)
	if first, ok := p.put("a", "one", half); !first || !ok {
		t.Errorf("put the first: %v, %v", first, ok)
	}
	if first, ok := p.put("a", "one", half); first || !ok {
		t.Errorf("put the same again: %v, %v", first, ok)
	}
	p.put("b", "two", half)
	if _, ok := p.put("c", "three", []byte{1}); ok {
		t.Error("more waits than there is room for")
	}
	if len(p.take("a")) != 1 || p.get("a", "one") != nil {
		t.Error("what was taken waits still")
	}
	if _, ok := p.put("c", "three", half); !ok {
		t.Error("there is no room where something was taken")
	}
}
