package cueartifact

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions/check"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"golang.org/x/tools/txtar"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/cueartifact/archives"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/test/harness/workers"
)

// engine evaluates the policies of all tests.
var engine = policies.NewEngine(policies.EngineOptions{})

func TestMain(m *testing.M) {
	schemas.MaybeRenderChild()
	workers.Main(m, engine)
}

// world is an API server in memory, a server of sources' artifacts, and a Reconciler.
type world struct {
	*Reconciler
	t      testing.TB
	api    client.WithWatch
	events *events.FakeRecorder
	// storage is the folder of artifacts, and room what they may take.
	storage string
	room    int64
	// server serves what is in archives; downloads counts.
	server    *httptest.Server
	downloads atomic.Int64
	archives  sync.Map
	// writes and reads are requests to the API server that a client without a cache makes.
	writes, reads atomic.Int64
	// deny is asked before a status is written; nil denies nothing.
	deny func(client.Object) error
	// unread is why Namespaces cannot be read.
	unread error
}

// keeper knows signers and policies at once.
type keeper struct{}

func (keeper) Wait(context.Context) error { return nil }

func newWorld(t testing.TB, objects ...client.Object) *world {
	t.Helper()
	w := &world{t: t, events: events.NewFakeRecorder(1000)}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), sourcev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	w.api = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.CueArtifact{}, &sourcev1.ExternalArtifact{}, &sourcev1.GitRepository{}).Build()
	w.server = httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(w.server.Close)
	w.restart(t.TempDir())
	return w
}

// restart is another process, with a folder for artifacts.
func (w *world) restart(storage string) {
	w.t.Helper()
	w.storage = storage
	store, err := archives.New(archives.Options{Dir: storage, MaxBytes: w.room, Address: ":9790", Advertised: "artifacts.skep"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.Reconciler = &Reconciler{
		Flux:   w.api,
		Client: interceptor.NewClient(w.api, w.counting()), Live: interceptor.NewClient(w.api, interceptor.Funcs{Get: w.countReads}),
		Evaluator: newEvaluator(w.t), Keeper: keeper{}, Store: store, Events: w.events,
		kinds:  map[string]bool{sourcev1.GitRepositoryKind: true, sourcev1.ExternalArtifactKind: true},
		memory: newMemory(), changed: make(signal, 1),
	}
}

func (w *world) countReads(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	w.reads.Add(1)
	return c.Get(ctx, key, o, opts...)
}

// counting counts writes.
func (w *world) counting() interceptor.Funcs {
	return interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, ok := o.(*metav1.PartialObjectMetadata); ok && w.unread != nil {
				return w.unread
			}
			return c.Get(ctx, key, o, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			w.writes.Add(1)
			return c.Create(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			w.writes.Add(1)
			return c.Patch(ctx, o, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			w.writes.Add(1)
			if w.deny != nil {
				if err := w.deny(o); err != nil {
					return err
				}
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	}
}

// newEvaluator is a gate that trusts nobody, has no policies and reaches no registry.
func newEvaluator(t testing.TB) *gate.Evaluator {
	t.Helper()
	trust, err := signing.NewTrust(nil)
	if err != nil {
		t.Fatal(err)
	}
	set, err := engine.Compile(t.Context(), nil, policies.Options{})
	if err != nil {
		t.Fatal(err)
	}
	images, err := registry.NewClient(registry.Options{CacheDir: t.TempDir(), AllowedRegistries: []string{"none.example.com"}}.ForInspection())
	if err != nil {
		t.Fatal(err)
	}
	evaluator, err := gate.New(gate.Options{Images: images, Trust: trust, Policies: set})
	if err != nil {
		t.Fatal(err)
	}
	return evaluator
}

func (w *world) serve(out http.ResponseWriter, r *http.Request) {
	w.downloads.Add(1)
	data, ok := w.archives.Load(r.URL.Path)
	switch data := data.(type) {
	case []byte:
		_, _ = out.Write(data)
	case chan struct{}:
		select {
		case <-data:
		case <-r.Context().Done():
		}
	case redirect:
		http.Redirect(out, r, string(data), http.StatusFound)
	default:
		_ = ok
		http.NotFound(out, r)
	}
}

// redirect is where a request is redirected to.
type redirect string

// file is one of an archive.
type file struct{ name, content string }

// files are those of a txtar.
func files(source string) (all []file) {
	for _, f := range txtar.Parse([]byte(source)).Files {
		all = append(all, file{f.Name, string(f.Data)})
	}
	return all
}

// These begin the content of a file that is a symbolic link, or a hard one.
const (
	linkTo     = "link to "
	hardLinkTo = "hard link to "
)

// archive packs files.
func archive(t testing.TB, all []file) []byte {
	t.Helper()
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	out := tar.NewWriter(zipped)
	for _, f := range all {
		header := &tar.Header{Name: f.name, Mode: 0o600, Size: int64(len(f.content)), Typeflag: tar.TypeReg}
		if target, ok := strings.CutPrefix(f.content, linkTo); ok {
			header.Typeflag, header.Size, header.Linkname, f.content = tar.TypeSymlink, 0, target, ""
		}
		if target, ok := strings.CutPrefix(f.content, hardLinkTo); ok {
			header.Typeflag, header.Size, header.Linkname, f.content = tar.TypeLink, 0, target, ""
		}
		if err := out.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write([]byte(f.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(out.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// digestOf is the digest of an archive.
func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// commit has the source announce files of a txtar as a revision.
func (w *world) commit(revision, source string) *sourcev1.GitRepository {
	w.t.Helper()
	data := archive(w.t, files(source))
	w.archives.Store("/"+revision, data)
	return w.announceSource(revision, digestOf(data))
}

// announceSource has the source announce a revision.
func (w *world) announceSource(revision, digest string, edit ...func(*sourcev1.GitRepository)) *sourcev1.GitRepository {
	w.t.Helper()
	o := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "src"}}
	if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		if err := w.api.Create(w.t.Context(), o); err != nil {
			w.t.Fatal(err)
		}
	}
	o.Status.Artifact = &meta.Artifact{URL: w.server.URL + "/" + revision, Path: revision, Digest: digest, Revision: revision, LastUpdateTime: metav1.Now()}
	for _, f := range edit {
		f(o)
	}
	if err := w.api.Status().Update(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
	return o
}

// cueArtifact is one of the source.
func cueArtifact(edit ...func(*v1alpha1.CueArtifact)) *v1alpha1.CueArtifact {
	o := &v1alpha1.CueArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "apps", UID: "1", Generation: 1}, Spec: v1alpha1.CueArtifactSpec{
		SourceRef: v1alpha1.CueArtifactSource{Kind: sourcev1.GitRepositoryKind, Name: "src"},
		Interval:  metav1.Duration{Duration: time.Hour}, RetryInterval: &metav1.Duration{Duration: time.Minute},
	}}
	for _, f := range edit {
		f(o)
	}
	return o
}

// reconcile reconciles the CueArtifact, and returns it as it is then. Its conditions conform.
func (w *world) reconcile() (*v1alpha1.CueArtifact, ctrl.Result) {
	w.t.Helper()
	key := client.ObjectKey{Namespace: "team", Name: "apps"}
	again, err := w.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: key})
	if err != nil {
		w.t.Fatal(err)
	}
	o := &v1alpha1.CueArtifact{}
	if err := client.IgnoreNotFound(w.api.Get(w.t.Context(), key, o)); err != nil {
		w.t.Fatal(err)
	}
	if len(o.Status.Conditions) > 0 {
		checker := check.NewChecker(w.api, &check.Conditions{NegativePolarity: []string{v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled}})
		checker.DisableFetch = true
		if fail, warn := checker.Check(w.t.Context(), o); fail != nil || warn != nil {
			w.t.Errorf("FAIL %v, WARN %v", fail, warn)
		}
	}
	return o, again
}

// ready is the condition Ready.
func ready(t testing.TB, o *v1alpha1.CueArtifact) metav1.Condition {
	t.Helper()
	c := apimeta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil {
		t.Fatal("there is no condition Ready")
	}
	return *c
}

// external is the ExternalArtifact.
func (w *world) external() *sourcev1.ExternalArtifact {
	w.t.Helper()
	ea := &sourcev1.ExternalArtifact{}
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Namespace: "team", Name: "apps"}, ea); err != nil {
		w.t.Fatal(err)
	}
	return ea
}

// get asks the server of artifacts.
func (w *world) get(method, path string) *httptest.ResponseRecorder {
	w.t.Helper()
	out := httptest.NewRecorder()
	(&archives.Server{Store: w.Store}).ServeHTTP(out, httptest.NewRequestWithContext(w.t.Context(), method, path, nil))
	return out
}

// told are the events so far.
func (w *world) told() (all []string) {
	for {
		select {
		case e := <-w.events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// yamlOf is a definition of an application.
func yamlOf(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "-- %s.yaml --\napiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: %s}\nspec: {bytecode: {image: "+
			"none.example.com/x}, programs: [{name: f}]}\n", name, name)
	}
	return b.String()
}
