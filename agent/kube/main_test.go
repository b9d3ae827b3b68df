package kube_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/kube"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/controlplane"
	"github.com/skep-dev/skep/test/harness/leaks"
)

// plane is shared by the tests that leave it whole; each has names of its own.
var plane *controlplane.Plane

func TestMain(m *testing.M) { os.Exit(leaks.Run(func() int { return run(m) })) }

func run(m *testing.M) int {
	if !leaks.Isolated() {
		return m.Run()
	}
	var err error
	if plane, err = controlplane.Start(context.Background(), controlplane.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer plane.Stop()
	return m.Run()
}

// world is one node of a cluster for tests, and who writes intents for it.
type world struct {
	t      testing.TB
	name   string
	dir    string
	bpffs  string
	config *rest.Config
	admin  client.Client
	sealer *intent.Sealer
	mirror *mirror
	serial int64
	writes atomic.Int64
	log    *logBook
	// tracepoint is where payload attaches; sys_enter unless given.
	tracepoint string
}

func newWorld(t testing.TB, p *controlplane.Plane) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), sealer: seals.New(t).Sealer, mirror: newMirror(t), serial: time.Now().UnixMilli(), log: &logBook{t: t}}
	sum := sha256.Sum256([]byte(w.dir))
	w.name = "node-" + hex.EncodeToString(sum[:4])
	w.bpffs = "/sys/fs/bpf/skep-test-" + w.name
	t.Cleanup(func() { _ = os.RemoveAll(w.bpffs) })
	w.config, w.admin = rest.CopyConfig(p.Config), newClient(t, p.Config)
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, &w.writes} })
	w.trust(w.sealer)
	w.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name, Labels: map[string]string{"role": "edge"}}})
	return w
}

// counting counts the requests that write.
type counting struct {
	next   http.RoundTripper
	writes *atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		c.writes.Add(1)
	}
	return c.next.RoundTrip(r)
}

// newClient is an admin's.
func newClient(t testing.TB, config *rest.Config) client.Client {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, rbacv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// trust writes the keys as the kubelet writes a ConfigMap: a new folder, and a
// link that is swapped.
func (w *world) trust(by ...*intent.Sealer) {
	w.t.Helper()
	var keys []byte
	for _, s := range by {
		key, err := s.MarshalPublic()
		if err != nil {
			w.t.Fatal(err)
		}
		keys = append(keys, key...)
	}
	volume := filepath.Join(w.dir, "trust")
	if err := os.MkdirAll(volume, 0o755); err != nil {
		w.t.Fatal(err)
	}
	data, err := os.MkdirTemp(volume, "..data-")
	if err != nil {
		w.t.Fatal(err)
	}
	_ = os.Symlink("..data/keys.pem", filepath.Join(volume, "keys.pem"))
	if err := errors.Join(os.WriteFile(filepath.Join(data, "keys.pem"), keys, 0o644),
		os.Symlink(filepath.Base(data), filepath.Join(volume, "..new")),
		os.Rename(filepath.Join(volume, "..new"), filepath.Join(volume, "..data"))); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) options() kube.Options {
	return kube.Options{
		NodeName: w.name, Version: "test", Config: w.config,
		TrustFile: filepath.Join(w.dir, "trust", "keys.pem"), TrustInterval: 20 * time.Millisecond,
		Mirror: w.mirror.options(),
		Node:   agent.Options{BPFFS: w.bpffs, StateDir: filepath.Join(w.dir, "state"), SweepInterval: 200 * time.Millisecond},
		// Others load programs while the tests run.
		Inventory: func(context.Context) (inventory.Inventory, error) { return inventory.Inventory{}, nil },
		Debounce:  kube.Jitter{Least: 50 * time.Millisecond, Most: 100 * time.Millisecond},
		// Tests read metrics past the listener.
		InsecureMetrics: true,
		Log:             slog.New(slog.NewTextHandler(w.log, nil)),
	}
}

// road leads to the API server until it is closed.
type road struct {
	listener net.Listener
	mu       sync.Mutex
	open     []net.Conn
}

// road puts one between the agent and the API server.
func (w *world) road() *road {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	r := &road{listener: l}
	w.t.Cleanup(r.close)
	to := strings.Trim(strings.TrimPrefix(w.config.Host, "https:"), "/")
	w.config.Host = "https://" + l.Addr().String()
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			r.mu.Lock()
			r.open = append(r.open, near, far)
			r.mu.Unlock()
			go func() { _, _ = io.Copy(far, near) }()
			go func() { _, _ = io.Copy(near, far) }()
		}
	}()
	return r
}

// close rejects connections, and breaks those that there are.
func (r *road) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.open {
		_ = c.Close()
	}
}

// start runs an agent until stop or the end of the test.
func (w *world) start(change ...func(*kube.Options)) (*kube.Agent, func()) {
	w.t.Helper()
	o := w.options()
	for _, c := range change {
		c(&o)
	}
	a, err := kube.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, a.Close()); err != nil {
			w.t.Errorf("stop agent: %v", err)
		}
	})
	w.t.Cleanup(stop)
	return a, stop
}

// logBook keeps what is logged.
type logBook struct {
	t    testing.TB
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A benchmark would print it among its figures.
	if _, measures := l.t.(*testing.B); !measures {
		l.t.Log(strings.TrimSpace(string(p)))
	}
	return l.text.Write(p)
}

// times counts how often the words were logged.
func (l *logBook) times(words string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), words)
}

// mirror is the controller's, in small.
type mirror struct {
	*httptest.Server
	dir string

	mu      sync.Mutex
	objects map[string][]byte
	// answer stands in for the mirror's own.
	answer http.HandlerFunc
}

// goodToken is the one that the mirror takes.
const goodToken = "a-token-of-the-mirrors-own-audience"

func newMirror(t testing.TB) *mirror {
	t.Helper()
	m := &mirror{dir: t.TempDir(), objects: map[string][]byte{}}
	m.Server = httptest.NewTLSServer(m)
	t.Cleanup(m.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.Certificate().Raw})
	if err := errors.Join(os.WriteFile(filepath.Join(m.dir, "ca.pem"), ca, 0o600),
		os.WriteFile(filepath.Join(m.dir, "token"), []byte(goodToken+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	return m
}

// ServeHTTP implements http.Handler.
func (m *mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answer != nil {
		m.answer(w, r)
		return
	}
	body, ok := m.objects[strings.TrimPrefix(r.URL.Path, "/v1/objects/")]
	switch {
	case r.Header.Get("Authorization") != "Bearer "+goodToken:
		http.Error(w, "who is "+r.Header.Get("Authorization"), http.StatusUnauthorized)
	case !ok:
		http.NotFound(w, r)
	default:
		_, _ = w.Write(body)
	}
}

func (m *mirror) options() kube.Mirror {
	return kube.Mirror{URL: m.URL, CAFile: filepath.Join(m.dir, "ca.pem"), TokenFile: filepath.Join(m.dir, "token"), ServerName: "example.com"}
}

// put offers an object and returns its digest.
func (m *mirror) put(body []byte) string {
	sum := sha256.Sum256(body)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[digest] = body
	return digest
}

// payload is an application of one program, which runs on every kernel.
func (w *world) payload(app string) intent.Payload {
	w.serial++
	return intent.Payload{
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: app},
		UID:         w.name + "-" + app, Serial: w.serial, ImageDigest: "sha256:image",
		ObjectDigest: w.mirror.put(programs.Object("raw_tp_count")),
		// Only this world's node: the others of the cluster keep away.
		NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "edge"}},
		Programs:     []v1alpha1.Program{{Name: "raw_tp_count", Attach: []v1alpha1.Attachment{{Hook: "raw_tp", Tracepoint: cmp.Or(w.tracepoint, "sys_enter")}}}},
	}
}

// tombstone takes the application away.
func (w *world) tombstone(p intent.Payload) intent.Payload {
	w.serial++
	return intent.Payload{Application: p.Application, UID: p.UID, Serial: w.serial, Tombstone: true, Reason: "it was deleted"}
}

// apply seals the payload and writes it as the controller does.
func (w *world) apply(p intent.Payload) {
	w.t.Helper()
	w.applyBy(w.sealer, p, func(e intent.Envelope) intent.Envelope { return e })
}

func (w *world) applyBy(by *intent.Sealer, p intent.Payload, change func(intent.Envelope) intent.Envelope) {
	w.t.Helper()
	e, err := by.Seal(p)
	if err != nil {
		w.t.Fatal(err)
	}
	i := &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: p.UID},
		Spec: v1alpha1.BpfIntentSpec{Envelope: change(e), Application: p.Application, Serial: p.Serial, Tombstone: p.Tombstone}}
	have := &v1alpha1.BpfIntent{}
	if err := w.admin.Get(w.t.Context(), client.ObjectKeyFromObject(i), have); apierrors.IsNotFound(err) {
		w.create(i)
		return
	} else if err != nil {
		w.t.Fatal(err)
	}
	have.Spec = i.Spec
	if err := w.admin.Update(w.t.Context(), have); err != nil {
		w.t.Fatal(err)
	}
}

// create makes an object that goes with the test.
func (w *world) create(o client.Object) {
	w.t.Helper()
	if err := w.admin.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = w.admin.Delete(context.Background(), o) })
}

// report is the node's BpfNode, nil where there is none.
func (w *world) report() *v1alpha1.BpfNode {
	w.t.Helper()
	n := &v1alpha1.BpfNode{}
	if err := w.admin.Get(w.t.Context(), client.ObjectKey{Name: w.name}, n); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// reported is what is reported of the application.
func (w *world) reported(p intent.Payload) v1alpha1.NodeApplication {
	if n := w.report(); n != nil {
		for _, a := range n.Status.Applications {
			if a.UID == p.UID {
				return a
			}
		}
	}
	return v1alpha1.NodeApplication{}
}

// awaits waits until the node reports the application so.
func (w *world) awaits(p intent.Payload, state v1alpha1.NodeState) v1alpha1.NodeApplication {
	w.t.Helper()
	until(w.t, fmt.Sprintf("%s %s", p.Application.Name, state), func() bool {
		is := w.reported(p)
		return is.State == state && is.Serial == p.Serial
	})
	return w.reported(p)
}

// pinned reports whether the application has anything in the kernel.
func (w *world) pinned(p intent.Payload) bool {
	found, err := filepath.Glob(filepath.Join(w.bpffs, p.UID, "+links", "*"))
	if err != nil {
		w.t.Fatal(err)
	}
	return len(found) > 0
}

// until waits for a condition.
func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	await.True(t, what, 3*time.Minute, condition)
}
