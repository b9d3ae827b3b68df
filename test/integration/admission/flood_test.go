package admission

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// many is how many applications are thrown at the API server at once.
const many = 1000

// floodHost is the host of a registry of a flood, each of which has its own.
func floodHost(i int) string { return fmt.Sprintf("127.1.%d.%d", i/250, 1+i%250) }

// floodRegistries are those of all floods: at loopback, so that they have to be listed.
func floodRegistries() (all []string) {
	for i := range 2 * many {
		all = append(all, floodHost(i)+":*")
	}
	return all
}

// flood has a user create many applications, two hundred at a time, and tells how
// many were taken.
func (w *world) flood(by client.Client, image func(int) string) (taken *atomic.Int64, wait func()) {
	var all sync.WaitGroup
	taken, next := &atomic.Int64{}, make(chan int)
	for range 200 {
		all.Go(func() {
			for i := range next {
				app := w.app(fmt.Sprintf("flood-%d", i), image(i))
				if err := by.Create(w.t.Context(), app); err != nil {
					w.t.Errorf("create %s: %v", app.Name, err)
				}
				taken.Add(1)
			}
		})
	}
	all.Go(func() {
		defer close(next)
		for i := range many {
			next <- i
		}
	})
	return taken, all.Wait
}

// hanging is a registry that takes connections and says nothing; it has as many
// names as there are addresses of loopback.
func hanging(t *testing.T) (name func(i int) string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	var held sync.Map
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			held.Store(c, true)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		held.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
	})
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return func(i int) string {
		return fmt.Sprintf("%s:%s/bpf/none@sha256:%x", floodHost(i), port, sha256.Sum256(fmt.Append(nil, i)))
	}
}

// heap is what this process, and so both replicas, holds after it was cleaned.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestAFloodStopsNobodyElse has a user throw a thousand applications at the API
// server, each with a registry of its own that hangs: the most that one costs.
func TestAFloodStopsNobodyElse(t *testing.T) {
	w, calm := newWorld(t), newWorld(t)
	mallory, hana := w.member("mallory-of-"+w.namespace), calm.member("hana-of-"+calm.namespace)
	own, theirs := w.app("own", w.signed()), calm.app("theirs", calm.signed())
	w.create(mallory, own)
	w.intent(own, lives)
	calm.create(hana, theirs)
	calm.intent(theirs, lives)
	before, name := heap(), hanging(t)
	t.Cleanup(func() {
		if err := admin.DeleteAllOf(context.WithoutCancel(t.Context()), &v1alpha1.BpfApplication{}, client.InNamespace(w.namespace)); err != nil {
			t.Error(err)
		}
	})
	since := func(began time.Time, what string) {
		took := time.Since(began)
		if t.Logf("%s after %s", what, took.Round(time.Millisecond)); took > 30*time.Second {
			t.Errorf("%s only then", what)
		}
	}
	seals := func(name string) {
		t.Helper()
		began, other := time.Now(), calm.app(name, theirs.Spec.Bytecode.Image)
		calm.create(hana, other)
		calm.intent(other, lives)
		since(began, "another's application was sealed")
	}

	taken, wait := w.flood(mallory, name)
	w.until(func() error {
		if n := taken.Load(); n < many/2 {
			return fmt.Errorf("%d were taken", n)
		}
		return nil
	})
	seals("during")
	wait()
	seals("after")
	// The flooder's own is defined by what hangs as well.
	was := own.DeepCopy()
	own.Spec.Bytecode.Image = name(many)
	if err := mallory.Patch(t.Context(), own, client.MergeFrom(was)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for _, revoked := range []*world{calm, w} {
		signer := &v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: revoked.signer}}
		if err := admin.Patch(t.Context(), signer, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"revoked":true}}`))); err != nil {
			t.Fatal(err)
		}
	}
	calm.unloaded(theirs)
	since(began, "what a revoked signer had signed was unloaded")
	w.unloaded(own)
	since(began, "and what the flooder ran")
	if grown := heap() - before; grown > 128<<20 {
		t.Errorf("two replicas hold %d MiB more", grown>>20)
	}
}

// flow is the flow schema by which the API server queues a request.
type flow struct {
	http.RoundTripper
	mu   sync.Mutex
	last string
}

// RoundTrip implements http.RoundTripper.
func (f *flow) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := f.RoundTripper.RoundTrip(r)
	if err == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.last = answer.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
	}
	return answer, err
}

// TestAFloodOfRequestsIsQueuedApart asks the API server in which queue it puts
// whom: users by name, and the controller at a level of its own.
func TestAFloodOfRequestsIsQueuedApart(t *testing.T) {
	w := newWorld(t)
	w.member("ivy-of-" + w.namespace)
	controller, err := serviceAccount(t.Context(), "skep-controller", nil)
	if err != nil {
		t.Fatal(err)
	}
	user := rest.CopyConfig(plane.Config)
	user.Impersonate = rest.ImpersonationConfig{UserName: "ivy-of-" + w.namespace, Groups: []string{"system:authenticated"}}
	schemas := map[string]flowcontrolv1.FlowSchema{}
	for who, config := range map[string]*rest.Config{"user": user, "controller": controller} {
		f := &flow{}
		config.Wrap(func(rt http.RoundTripper) http.RoundTripper { f.RoundTripper = rt; return f })
		if err := w.client(config).List(t.Context(), &v1alpha1.BpfApplicationList{}, client.InNamespace(w.namespace)); err != nil {
			t.Fatal(err)
		}
		var all flowcontrolv1.FlowSchemaList
		if err := admin.List(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		for _, s := range all.Items {
			if string(s.UID) == f.last {
				schemas[who] = s
			}
		}
	}
	one, other := schemas["user"].Spec, schemas["controller"].Spec
	if one.PriorityLevelConfiguration == other.PriorityLevelConfiguration {
		t.Errorf("both are at the level %s", one.PriorityLevelConfiguration.Name)
	}
	if d := one.DistinguisherMethod; d == nil || d.Type != flowcontrolv1.FlowDistinguisherMethodByUserType {
		t.Errorf("users share one queue: %+v", d)
	}
}

// levelOfWrites installs what the chart has for few writes at once, and returns its flow schema.
func (w *world) levelOfWrites() (own flowcontrolv1.FlowSchema) {
	w.t.Helper()
	objects, err := newest.Render("flowcontrol.yaml")
	if err != nil || len(objects) != 2 {
		w.t.Fatalf("the chart has %d objects: %v", len(objects), err)
	}
	for _, o := range objects {
		w.create(admin, o)
		w.t.Cleanup(func() {
			if err := admin.Delete(context.WithoutCancel(w.t.Context()), o); err != nil {
				w.t.Error(err)
			}
		})
	}
	if err := admin.Get(w.t.Context(), client.ObjectKey{Name: "skep-writes"}, &own); err != nil {
		w.t.Fatal(err)
	}
	return own
}

// builder is a service account of the world's namespace that writes applications there, and the flow of its requests.
func (w *world) builder() (client.Client, *flow) {
	name := "system:serviceaccount:" + w.namespace + ":builder"
	w.member(name)
	config, f := rest.CopyConfig(plane.Config), &flow{}
	config.QPS = -1
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { f.RoundTripper = rt; return f })
	return w.client(config), f
}

// level is a metric of the API server about the level of writes.
func level(t *testing.T, metric string) int {
	t.Helper()
	c, err := discovery.NewDiscoveryClientForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	body, err := c.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^` + metric + `\{[^}]*priority_level="skep-writes"[^}]*\} (\d+)$`).FindSubmatch(body)
	if found == nil {
		t.Fatalf("the API server has no %s of the level", metric)
	}
	value, _ := strconv.Atoi(string(found[1]))
	return value
}

// TestWritesOfApplicationsTakeTurnsWhereTheChartSaysSo installs the level, and has a service account of one namespace write very many
// applications at once: few run, and one of another namespace waits for its turn and not for all of them.
func TestWritesOfApplicationsTakeTurnsWhereTheChartSaysSo(t *testing.T) {
	const writes = 240
	w, calm := newWorld(t), newWorld(t)
	image, own := w.signed(), w.levelOfWrites()
	mallory, floods := w.builder()
	hana, calms := calm.builder()
	theirs := calm.app("apart", calm.signed())
	for c, f := range map[client.Client]*flow{mallory: floods, hana: calms} {
		w.until(func() error {
			app := theirs.DeepCopy()
			if c == mallory {
				app = w.app("first", image)
			}
			if err := c.Create(t.Context(), app, client.DryRunAll); err != nil {
				return err
			}
			if f.last != string(own.UID) {
				return errors.New("a write is queued with others")
			}
			return nil
		})
	}
	if err := mallory.List(t.Context(), &v1alpha1.BpfApplicationList{}, client.InNamespace(w.namespace)); err != nil || floods.last == string(own.UID) {
		t.Errorf("a list is queued with writes: %v", err)
	}
	seats := level(t, "apiserver_flowcontrol_nominal_limit_seats")
	if seats < 1 || seats > 10 {
		t.Fatalf("%d writes run at once", seats)
	}
	var done atomic.Int64
	var all sync.WaitGroup
	for i := range writes {
		all.Go(func() {
			if err := mallory.Create(t.Context(), w.app(fmt.Sprint("flood-", i), image), client.DryRunAll); err != nil {
				t.Error(err)
			}
			done.Add(1)
		})
	}
	w.until(func() error {
		if done.Load() == 0 {
			return errors.New("no write is done")
		}
		return nil
	})
	before := done.Load()
	if err := hana.Create(t.Context(), theirs.DeepCopy(), client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	during, running := done.Load()-before, level(t, "apiserver_flowcontrol_current_executing_requests")
	all.Wait()
	t.Logf("%d seats, %d run, %d of %d writes were done before it, %d meanwhile", seats, running, before, writes, during)
	if running > seats || before > writes/2 || during > writes/2 {
		t.Errorf("%d of %d seats are taken, %d of %d writes were done before it, and %d while another namespace's waited", running, seats, before, writes, during)
	}
}
