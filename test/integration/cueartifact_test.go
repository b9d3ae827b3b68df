package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/cueartifact"
	"github.com/skep-dev/skep/controller/cueartifact/archives"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// fluxKinds are the kinds of sources as an API server needs them to store any.
func fluxKinds() (crds []*apiextensionsv1.CustomResourceDefinition) {
	open := true
	for plural, kind := range map[string]string{
		"gitrepositories": sourcev1.GitRepositoryKind, "ocirepositories": sourcev1.OCIRepositoryKind,
		"buckets": sourcev1.BucketKind, "externalartifacts": sourcev1.ExternalArtifactKind,
	} {
		group := sourcev1.GroupVersion.Group
		crds = append(crds, &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: group, Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
					Name: sourcev1.GroupVersion.Version, Served: true, Storage: true,
					Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
					Schema:       &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &open}},
				}},
			},
		})
	}
	return crds
}

// flux is a cluster with Flux's kinds, a server of artifacts, and a controller that renders.
type flux struct {
	*cluster
	// server serves the artifacts of sources; slow has it wait.
	server *httptest.Server
	// storage is where the controller keeps artifacts.
	storage string

	mu       sync.Mutex
	archives map[string][]byte
	hold     chan struct{}
}

// newFlux is a cluster with Flux's kinds.
func newFlux(t testing.TB) *flux {
	t.Helper()
	f := &flux{cluster: newCluster(t), storage: t.TempDir(), archives: map[string][]byte{}}
	if _, err := envtest.InstallCRDs(f.plane.Config, envtest.CRDInstallOptions{CRDs: fluxKinds()}); err != nil {
		t.Fatal(err)
	}
	f.server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.server.Close)
	t.Cleanup(f.clear)
	return f
}

// clear removes what the test made.
func (f *flux) clear() {
	ctx := context.Background()
	var all v1alpha1.CueArtifactList
	if err := f.List(ctx, &all); err != nil {
		f.t.Error(err)
	}
	for i := range all.Items {
		o := &all.Items[i]
		_ = f.Delete(ctx, o)
	}
	for _, o := range []client.Object{&sourcev1.ExternalArtifact{}, &sourcev1.GitRepository{}, &corev1.Secret{}} {
		if err := f.DeleteAllOf(ctx, o, client.InNamespace("default")); err != nil {
			f.t.Error(err)
		}
	}
}

func (f *flux) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	data, ok := f.archives[r.URL.Path]
	hold := f.hold
	f.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done():
			return
		}
	}
	if !ok {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write(data)
}

// render runs a controller that renders CueArtifacts.
func (f *flux) render(change ...func(*controller.Options)) (stop func()) {
	f.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = l.Close() })
	address := l.Addr().String()
	return f.control(append([]func(*controller.Options){func(o *controller.Options) {
		o.Cue.Store = archives.Options{Dir: f.storage, Address: address, Advertised: "127.0.0.1:" + address[strings.LastIndex(address, ":")+1:]}
		o.Cue.Listen = func() (net.Listener, error) { return l, nil }
	}}, change...)...)
}

// archive is a source's archive of files in txtar, and its digest.
func archive(t testing.TB, files string) (data []byte, digest string) {
	t.Helper()
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	w := tar.NewWriter(zipped)
	for _, file := range txtar.Parse([]byte(files)).Files {
		if err := w.WriteHeader(&tar.Header{Name: file.Name, Mode: 0o600, Size: int64(len(file.Data)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(file.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	return b.Bytes(), "sha256:" + hex.EncodeToString(sum[:])
}

// commit has a GitRepository announce files in txtar as a revision.
func (f *flux) commit(name, revision, files string) *sourcev1.GitRepository {
	f.t.Helper()
	data, digest := archive(f.t, files)
	return f.announce(name, revision, data, digest)
}

// announce has a GitRepository announce an archive with a digest.
func (f *flux) announce(name, revision string, data []byte, digest string) *sourcev1.GitRepository {
	f.t.Helper()
	at := "/" + name + "/" + revision + ".tar.gz"
	f.mu.Lock()
	f.archives[at] = data
	f.mu.Unlock()
	o := &sourcev1.GitRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: sourcev1.GitRepositorySpec{URL: "https://example.com/" + name},
	}
	if err := f.Create(f.t.Context(), o); err != nil && !apierrors.IsAlreadyExists(err) {
		f.t.Fatal(err)
	}
	if err := f.Get(f.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		f.t.Fatal(err)
	}
	before := o.DeepCopy()
	o.Status.Artifact = &meta.Artifact{URL: f.server.URL + at, Path: at, Digest: digest, Revision: revision, LastUpdateTime: metav1.Now()}
	if err := f.Status().Patch(f.t.Context(), o, client.MergeFrom(before)); err != nil {
		f.t.Fatal(err)
	}
	return o
}

// cueArtifact is one of a GitRepository.
func cueArtifact(name, source string, edit ...func(*v1alpha1.CueArtifactSpec)) *v1alpha1.CueArtifact {
	o := &v1alpha1.CueArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1alpha1.CueArtifactSpec{
		SourceRef: v1alpha1.CueArtifactSource{Kind: sourcev1.GitRepositoryKind, Name: source}, Interval: metav1.Duration{Duration: time.Hour},
	}}
	for _, f := range edit {
		f(&o.Spec)
	}
	return o
}

// definitions is CUE of applications of an image by their names.
func definitions(image string, names ...string) string {
	var b strings.Builder
	b.WriteString("-- apps/a.cue --\npackage apps\n\nimport \"skep.dev/schemas\"\n\n")
	fmt.Fprintf(&b, "_app: schemas.#ClusterBpfApplication & {spec: {bytecode: image: %q, programs: [{name: \"tracepoint_count\"}]}}\n", image)
	for _, name := range names {
		fmt.Fprintf(&b, "%q: _app & {metadata: name: %q}\n", name, name)
	}
	return b.String()
}

// external is the ExternalArtifact of a CueArtifact, which has an artifact.
func (f *flux) external(o *v1alpha1.CueArtifact) *sourcev1.ExternalArtifact {
	f.t.Helper()
	ea := &sourcev1.ExternalArtifact{}
	if err := f.Get(f.t.Context(), client.ObjectKeyFromObject(o), ea); err != nil {
		f.t.Fatal(err)
	}
	if ea.Status.Artifact == nil {
		f.t.Fatal("the ExternalArtifact has no artifact")
	}
	return ea
}

// announced is the ExternalArtifact of a CueArtifact, and what its archive has.
func (f *flux) announced(o *v1alpha1.CueArtifact) (*sourcev1.ExternalArtifact, string) {
	f.t.Helper()
	ea := f.external(o)
	return ea, f.download(*ea.Status.Artifact)
}

// download reads what an artifact has, as Flux does.
func (f *flux) download(a meta.Artifact) string {
	f.t.Helper()
	response, err := http.Get(a.URL)
	if err != nil {
		f.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		f.t.Fatalf("%s: %s, %v", a.URL, response.Status, err)
	}
	if sum := sha256.Sum256(data); a.Digest != "sha256:"+hex.EncodeToString(sum[:]) {
		f.t.Errorf("digest of %s is not %s", a.URL, a.Digest)
	}
	zipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		f.t.Fatal(err)
	}
	for r := tar.NewReader(zipped); ; {
		h, err := r.Next()
		if err != nil {
			f.t.Fatal(err)
		}
		if h.Name == "definitions.yaml" {
			content, err := io.ReadAll(r)
			if err != nil {
				f.t.Fatal(err)
			}
			return string(content)
		}
	}
}

// ready waits until a CueArtifact says that something with a revision is published.
func (f *flux) ready(o *v1alpha1.CueArtifact, revision string) {
	f.t.Helper()
	f.until(o.Name+" is published at "+revision, func() error {
		if err := f.Get(f.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if c := o.Status.Conditions; o.Status.Artifact == nil || !strings.HasPrefix(o.Status.Artifact.Revision, revision+"/sha256:") ||
			o.Status.ObservedGeneration != o.Generation {
			return fmt.Errorf("artifact %v, conditions %v", o.Status.Artifact, c)
		}
		return nil
	})
	f.condition(o, v1alpha1.ConditionReady, metav1.ConditionTrue, cueartifact.ReasonPublished)
}

func TestCueIsRenderedAndPublished(t *testing.T) {
	f := newFlux(t)
	image, _ := f.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	f.create(f.Signer("team-a"))
	f.commit("src", "main@sha1:1", definitions(image, "one", "two"))
	o := cueArtifact("apps", "src")
	f.create(o)
	f.render()
	f.ready(o, "main@sha1:1")
	ea, content := f.announced(o)
	if !strings.Contains(content, "name: one\n") || !strings.Contains(content, "name: two\n") {
		t.Errorf("the artifact has\n%s", content)
	}
	if !metav1.IsControlledBy(ea, o) || ea.Spec.SourceRef == nil || ea.Spec.SourceRef.Kind != "CueArtifact" || ea.Spec.SourceRef.Name != "apps" {
		t.Errorf("the ExternalArtifact is of %v, owned by %v", ea.Spec.SourceRef, ea.OwnerReferences)
	}
	if got := ea.Status.Artifact; got.Revision != o.Status.Artifact.Revision || got.Digest != o.Status.Artifact.Digest {
		t.Errorf("the ExternalArtifact has %v, the CueArtifact %v", got, o.Status.Artifact)
	}
	f.until("both are evaluated", func() error {
		if err := f.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		allowed := func(r v1alpha1.RenderedApplication) bool { return r.Allowed == metav1.ConditionTrue }
		if apps := o.Status.Applications; len(apps) != 2 || !slices.ContainsFunc(apps, allowed) {
			return fmt.Errorf("applications are %v", apps)
		}
		return nil
	})

	t.Log("equal content is no new revision, and another one is")
	version := ea.ResourceVersion
	f.commit("src", "main@sha1:2", definitions(image, "one", "two")+"// A remark.\n")
	f.until("the new commit was rendered", func() error {
		if err := f.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if o.Status.LastAttemptedRevision != "main@sha1:2" {
			return fmt.Errorf("last attempted is %s", o.Status.LastAttemptedRevision)
		}
		return nil
	})
	if ea, _ = f.announced(o); ea.ResourceVersion != version {
		t.Error("the ExternalArtifact was written for equal content")
	}
	f.commit("src", "main@sha1:3", definitions(image, "one", "three"))
	f.ready(o, "main@sha1:3")
	if _, content = f.announced(o); strings.Contains(content, "name: two\n") || !strings.Contains(content, "name: three\n") {
		t.Errorf("the artifact has\n%s", content)
	}
}
