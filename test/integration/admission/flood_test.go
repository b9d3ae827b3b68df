package admission

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/module"
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

// levelOfWrites are the objects that the manual has for few writes at once.
func levelOfWrites(t *testing.T) (all []client.Object) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(module.Root(), "docs", "operations", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), "```yaml\napiVersion: flowcontrol.apiserver.k8s.io/v1\n")
	block, _, found := strings.Cut(after, "```")
	level, schema, both := strings.Cut(block, "---\n")
	if !found || !both {
		t.Fatal("the manual has no such objects")
	}
	for text, o := range map[string]client.Object{level: &flowcontrolv1.PriorityLevelConfiguration{}, schema: &flowcontrolv1.FlowSchema{}} {
		if err := yaml.Unmarshal([]byte(text), o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

// TestWritesOfApplicationsCanHaveALevelOfTheirOwn installs what the manual has, and asks the API
// server where it queues whom.
func TestWritesOfApplicationsCanHaveALevelOfTheirOwn(t *testing.T) {
	w := newWorld(t)
	image := w.signed()
	w.member("jo-of-" + w.namespace)
	for _, o := range levelOfWrites(t) {
		w.create(admin, o)
		t.Cleanup(func() {
			if err := admin.Delete(context.WithoutCancel(t.Context()), o); err != nil {
				t.Error(err)
			}
		})
	}
	var own flowcontrolv1.FlowSchema
	if err := admin.Get(t.Context(), client.ObjectKey{Name: "skep-writes"}, &own); err != nil {
		t.Fatal(err)
	}
	user, f := rest.CopyConfig(plane.Config), &flow{}
	user.Impersonate = rest.ImpersonationConfig{UserName: "jo-of-" + w.namespace, Groups: []string{"system:authenticated"}}
	user.Wrap(func(rt http.RoundTripper) http.RoundTripper { f.RoundTripper = rt; return f })
	c := w.client(user)
	w.until(func() error {
		if err := c.Create(t.Context(), w.app("apart", image), client.DryRunAll); err != nil {
			return err
		}
		if f.last != string(own.UID) {
			return errors.New("a write is queued with others")
		}
		return nil
	})
	if err := c.List(t.Context(), &v1alpha1.BpfApplicationList{}, client.InNamespace(w.namespace)); err != nil || f.last == string(own.UID) {
		t.Errorf("a list is queued with writes: %v", err)
	}
}
