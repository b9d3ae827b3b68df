package sealing

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/controlplane"
)

var plane *controlplane.Plane

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if plane, err = controlplane.Start(context.Background(), controlplane.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer plane.Stop()
	return m.Run()
}

// store is one in a namespace of the test's own, at a time that tests set.
func store(t *testing.T, namespace string, now *time.Time) *Store {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(plane.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	return &Store{Client: c, Namespace: namespace, Now: func() time.Time { return *now }}
}

// load is Load, and what agents trust after it.
func load(t *testing.T, s *Store) (Keys, *intent.Trust) {
	t.Helper()
	k, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var o corev1.ConfigMap
	if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: ConfigMapName}, &o); err != nil {
		t.Fatal(err)
	}
	trust, err := intent.ParseTrust([]byte(o.Data[trusted]))
	if err != nil {
		t.Fatal(err)
	}
	return k, trust
}

// ask asks for another key.
func ask(t *testing.T, s *Store, value string) {
	t.Helper()
	var o corev1.Secret
	if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: SecretName}, &o); err != nil {
		t.Fatal(err)
	}
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, AnnotationRotate, value)
	if err := s.Client.Update(t.Context(), &o); err != nil {
		t.Fatal(err)
	}
}

// seal seals something.
func seal(t *testing.T, k Keys) intent.Envelope {
	t.Helper()
	e, err := gate.SealTombstone(k.Sealer, v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "a"}, gate.Stamp{UID: "u", Serial: 1}, "test")
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func opens(t *testing.T, who string, trust *intent.Trust, e intent.Envelope) {
	t.Helper()
	if _, err := trust.Open(e); err != nil {
		t.Errorf("%s: %v", who, err)
	}
}

func TestTheFirstKeyIsMadeOnce(t *testing.T) {
	now := time.Now()
	s := store(t, "first", &now)
	one, agents := load(t, s)
	two, _ := load(t, s)
	opens(t, "agents", agents, seal(t, one))
	opens(t, "another replica", two.Trust, seal(t, one))
	if !one.Sealer.Public().Equal(two.Sealer.Public()) {
		t.Error("a second load made another key")
	}
}

func TestARotationIsTrustedBeforeItSeals(t *testing.T) {
	now := time.Now()
	s := store(t, "rotation", &now)
	first, before := load(t, s)
	ask(t, s, "1")
	during, meanwhile := load(t, s)
	// An agent that has not seen the new ConfigMap yet still opens everything.
	opens(t, "agents that trust the first key alone", before, seal(t, during))

	now = now.Add(9 * time.Minute)
	early, _ := load(t, s)
	opens(t, "agents that trust the first key alone", before, seal(t, early))

	now = now.Add(2 * time.Minute)
	after, _ := load(t, s)
	if after.Sealer.Public().Equal(first.Sealer.Public()) {
		t.Fatal("the key did not change")
	}
	opens(t, "agents that trust both", meanwhile, seal(t, after))
	_, later := load(t, s)
	opens(t, "agents, of what was sealed before", later, seal(t, first))
	opens(t, "the controller, of what was sealed before", after.Trust, seal(t, first))
	again, _ := load(t, s)
	if !again.Sealer.Public().Equal(after.Sealer.Public()) {
		t.Error("one request rotated twice")
	}
}

// TestASecondRotationIsNotSwallowed has the Secret leak while a rotation is under
// way: neither of its keys may seal in the end.
// TestANewKeyWaitsFromWhenItIsPublished has the ConfigMap deny the new key for
// long, over a restart, and lose it later.
func TestANewKeyWaitsFromWhenItIsPublished(t *testing.T) {
	now := time.Now()
	s := store(t, "publishing", &now)
	first, agents := load(t, s)
	ask(t, s, "1")
	real := s.Client
	s.Client = noConfigMaps{real}
	for range 3 {
		if _, err := s.Load(t.Context()); err == nil {
			t.Fatal("nobody says that the key could not be published")
		}
		now = now.Add(time.Hour)
	}
	// A restart: nothing is known but what was written.
	s = &Store{Client: real, Namespace: s.Namespace, Now: s.Now}
	sealsWithTheFirst := func(when string) {
		t.Helper()
		k, _ := load(t, s)
		if !k.Sealer.Public().Equal(first.Sealer.Public()) {
			t.Errorf("%s: the new key seals", when)
		}
		opens(t, when+": agents that read what was published before", agents, seal(t, k))
	}
	sealsWithTheFirst("just published")
	now = now.Add(9 * time.Minute)
	sealsWithTheFirst("published 9 minutes ago")
	// The ConfigMap loses the key: agents may have read it so.
	if err := s.Client.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: ConfigMapName}}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Minute)
	sealsWithTheFirst("published anew")
	now = now.Add(9 * time.Minute)
	sealsWithTheFirst("published anew 9 minutes ago")
	now = now.Add(2 * time.Minute)
	if k, trusted := load(t, s); k.Sealer.Public().Equal(first.Sealer.Public()) {
		t.Error("the new key never seals")
	} else {
		opens(t, "agents", trusted, seal(t, k))
	}
}

// noConfigMaps writes no ConfigMap.
type noConfigMaps struct{ client.Client }

func (c noConfigMaps) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	if _, is := o.(*corev1.ConfigMap); is {
		return errors.New("no quota")
	}
	return c.Client.Update(ctx, o, options...)
}

func TestASecondRotationIsNotSwallowed(t *testing.T) {
	now := time.Now()
	s := store(t, "second", &now)
	load(t, s)
	ask(t, s, "1")
	load(t, s)
	var leaked corev1.Secret
	if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: SecretName}, &leaked); err != nil {
		t.Fatal(err)
	}
	now = now.Add(5 * time.Minute)
	ask(t, s, "2")
	_, meanwhile := load(t, s)
	var after Keys
	for range 3 {
		now = now.Add(11 * time.Minute)
		after, _ = load(t, s)
	}
	for name, key := range leaked.Data {
		known, err := intent.ParseKey(key)
		if err != nil || after.Sealer.Public().Equal(known.Public()) {
			t.Errorf("what leaked as %s seals (%v)", name, err)
		}
	}
	opens(t, "agents that were told of the second", meanwhile, seal(t, after))
	now = now.Add(time.Hour)
	if again, _ := load(t, s); !again.Sealer.Public().Equal(after.Sealer.Public()) {
		t.Error("it rotates without end")
	}
}

func TestABrokenSecretIsAnErrorThatShowsNoKey(t *testing.T) {
	now := time.Now()
	s := store(t, "broken", &now)
	load(t, s)
	var o corev1.Secret
	if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: SecretName}, &o); err != nil {
		t.Fatal(err)
	}
	o.Data[sealing] = []byte("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n")
	if err := s.Client.Update(t.Context(), &o); err != nil {
		t.Fatal(err)
	}
	_, err := s.Load(t.Context())
	if err == nil {
		t.Fatal("a broken key was taken")
	}
	if strings.Contains(err.Error(), "c2VjcmV0") {
		t.Errorf("the error shows the key: %v", err)
	}
}

func TestWhatAgentsReadIsWrittenFileByFile(t *testing.T) {
	now := time.Now()
	s := store(t, "files", &now)
	publish := func(file, content string) {
		t.Helper()
		if err := Publish(t.Context(), s.Client, s.Namespace, file, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	read := func() *corev1.ConfigMap {
		t.Helper()
		o := &corev1.ConfigMap{}
		if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: ConfigMapName}, o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	publish(MirrorCA, "authority")
	load(t, s)
	publish(MirrorCA, "another")
	o := read()
	if o.Data[MirrorCA] != "another" || o.Data[trusted] == "" {
		t.Errorf("it says %v", o.Data)
	}
	publish(MirrorCA, "another")
	load(t, s)
	if again := read(); again.ResourceVersion != o.ResourceVersion {
		t.Error("it was written though nothing changed")
	}

	// Two that write at once both get through.
	for round := range 5 {
		var both sync.WaitGroup
		want := fmt.Sprint(round)
		for _, file := range []string{"one", "two"} {
			both.Go(func() {
				if err := Publish(t.Context(), s.Client, s.Namespace, file, []byte(want)); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		if o := read(); o.Data["one"] != want || o.Data["two"] != want {
			t.Fatalf("round %s: %v", want, o.Data)
		}
	}
}
