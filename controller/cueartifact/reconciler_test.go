package cueartifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/cueartifact/archives"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/gate/evaluations"
)

func TestNothingIsWrittenAtRest(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.commit("main@sha1:1", yamlOf("one", "two"))
	o, again := w.reconcile()
	if c := ready(t, o); c.Status != metav1.ConditionTrue || again.RequeueAfter != time.Hour {
		t.Fatalf("%v, again after %s", c, again.RequeueAfter)
	}
	if got := w.external().Status.Artifact; got.URL != "http://artifacts.skep/"+got.Path || got.Metadata["org.opencontainers.image.revision"] != "main@sha1:1" {
		t.Errorf("the artifact is %v", got)
	}
	if out := w.get(http.MethodGet, "/"+w.external().Status.Artifact.Path); out.Code != http.StatusOK {
		t.Errorf("the archive is answered with %d", out.Code)
	}
	// All are evaluated, and others took the memory that the rendering had.
	w.memory.of(client.ObjectKeyFromObject(o)).answers.unknown = 0
	w.memory.renderings = newMemory().renderings
	w.reconcile()
	w.reads.Store(0)
	writes, downloads := w.writes.Load(), w.downloads.Load()
	for range 3 {
		w.reconcile()
	}
	if w.writes.Load() != writes || w.downloads.Load() != downloads || w.reads.Load() != 0 {
		t.Errorf("at rest there are %d writes, %d downloads and %d reads past the cache", w.writes.Load()-writes, w.downloads.Load()-downloads, w.reads.Load())
	}
}

func TestARestartWithoutStorageRendersTheSameRevision(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.commit("main@sha1:1", yamlOf("one"))
	w.reconcile()
	w.commit("main@sha1:2", yamlOf("one")+"-- README.md --\nequal\n")
	before, _ := w.reconcile()
	if !strings.HasPrefix(before.Status.Artifact.Revision, "main@sha1:1/sha256:") || before.Status.LastAttemptedRevision != "main@sha1:2" {
		t.Fatalf("equal content has revision %s", before.Status.Artifact.Revision)
	}
	external := w.external()
	w.restart(t.TempDir())
	after, _ := w.reconcile()
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(external, w.external()); diff != "" {
		t.Error(diff)
	}
	if out := w.get(http.MethodGet, "/"+external.Status.Artifact.Path); out.Code != http.StatusOK {
		t.Errorf("the archive is answered with %d", out.Code)
	}
}

func TestAFailureKeepsWhatIsPublished(t *testing.T) {
	const good = "main@sha1:good"
	for name, c := range map[string]struct {
		fail    func(*world)
		edit    func(*v1alpha1.CueArtifact)
		reason  string
		stalled bool
		message string
	}{
		"broken CUE": {
			fail:   func(w *world) { w.commit("main@sha1:2", "-- a.cue --\npackage a\n\nx: 1 & 2\n") },
			reason: ReasonRenderFailed, stalled: true, message: "a.cue:3:",
		},
		"a definition that the schema denies": {
			fail: func(w *world) {
				w.commit("main@sha1:2", yamlOf("one")+strings.Replace(yamlOf("two"), "programs:", "progams:", 1))
			},
			reason: ReasonRenderFailed, stalled: true, message: "two.yaml:",
		},
		"nothing is defined": {
			fail:   func(w *world) { w.commit("main@sha1:2", "-- README.md --\nempty\n") },
			reason: ReasonRenderFailed, stalled: true, message: "nothing is defined",
		},
		"a path that is not there": {
			fail: func(w *world) { w.commit("main@sha1:2", "-- README.md --\nempty\n") }, edit: func(o *v1alpha1.CueArtifact) { o.Spec.Path = "./apps" },
			reason: ReasonRenderFailed, stalled: true, message: "read the definitions at apps",
		},
		"a path out of the source": {
			fail: func(w *world) { w.commit("main@sha1:2", yamlOf("one")) }, edit: func(o *v1alpha1.CueArtifact) { o.Spec.Path = "../../../etc" },
			reason: ReasonRenderFailed, stalled: true, message: "read the definitions at etc",
		},
		"the source is gone": {
			fail: func(w *world) {
				if err := w.api.Delete(w.t.Context(), w.commit("main@sha1:2", "")); err != nil {
					w.t.Fatal(err)
				}
			},
			reason: ReasonSourceNotReady, message: "GitRepository team/src: it is not there",
		},
		"the source has no artifact": {
			fail: func(w *world) {
				w.announceSource("x", "", func(o *sourcev1.GitRepository) { o.Status.Artifact = nil })
			},
			reason: ReasonSourceNotReady, message: "it has no artifact yet",
		},
		"a kind that the cluster lacks": {
			edit:   func(o *v1alpha1.CueArtifact) { o.Spec.SourceRef.Kind = sourcev1.BucketKind },
			reason: ReasonSourceNotReady, stalled: true, message: "had no such kind",
		},
		"what it publishes itself": {
			edit: func(o *v1alpha1.CueArtifact) {
				o.Spec.SourceRef = v1alpha1.CueArtifactSource{Kind: sourcev1.ExternalArtifactKind, Name: "apps"}
			},
			reason: ReasonAccessDenied, stalled: true, message: "it is what this CueArtifact publishes",
		},
		"what is rendered from what it publishes": {
			fail: func(w *world) {
				other := cueArtifact(func(o *v1alpha1.CueArtifact) {
					o.Name, o.UID, o.Spec.SourceRef = "other", "2", v1alpha1.CueArtifactSource{Kind: sourcev1.ExternalArtifactKind, Name: "apps"}
				})
				if err := w.api.Create(w.t.Context(), other); err != nil {
					w.t.Fatal(err)
				}
			},
			edit: func(o *v1alpha1.CueArtifact) {
				o.Spec.SourceRef = v1alpha1.CueArtifactSource{Kind: sourcev1.ExternalArtifactKind, Name: "other"}
			},
			reason: ReasonAccessDenied, stalled: true, message: "rendered from team/other from team/apps",
		},
		"a source of another namespace": {
			edit:   func(o *v1alpha1.CueArtifact) { o.Spec.SourceRef.Namespace = "other" },
			reason: ReasonAccessDenied, stalled: true, message: "--no-cross-namespace-refs",
		},
		"an unverified source": {
			edit:   func(o *v1alpha1.CueArtifact) { o.Spec.RequireVerifiedSource = true },
			reason: ReasonSourceNotVerified, message: "SourceVerified is not True",
		},
		"another digest": {
			fail: func(w *world) {
				w.commit("main@sha1:2", yamlOf("two"))
				w.announceSource("main@sha1:2", "sha256:"+strings.Repeat("0", 64))
			},
			reason: ReasonFetchFailed, message: "digest",
		},
		"an artifact that is gone": {
			fail:   func(w *world) { w.announceSource("main@sha1:3", "sha256:"+strings.Repeat("0", 64)) },
			reason: ReasonFetchFailed, message: "the source's server has it no longer",
		},
		"a password in the address": {
			fail: func(w *world) {
				w.announceSource("main@sha1:3", "sha256:"+strings.Repeat("0", 64), func(o *sourcev1.GitRepository) {
					o.Status.Artifact.URL = "http://user:hunter2@127.0.0.1:1/x?token=hunter2"
				})
			},
			reason: ReasonFetchFailed, message: "fetch revision main@sha1:3",
		},
		"a redirect with a signature": {
			fail: func(w *world) {
				w.archives.Store("/main@sha1:3", redirect("http://user:hunter2@127.0.0.1:1/bucket?X-Amz-Signature=hunter2#hunter2"))
				w.announceSource("main@sha1:3", "sha256:"+strings.Repeat("0", 64))
			},
			reason: ReasonFetchFailed, message: "http://127.0.0.1:1/bucket\"",
		},
		"an archive that is too large": {
			fail: func(w *world) {
				data := make([]byte, maxDownload+1)
				w.archives.Store("/main@sha1:2", data)
				w.announceSource("main@sha1:2", digestOf(data))
			},
			reason: ReasonFetchFailed, message: "52428800",
		},
		"no archive": {
			fail: func(w *world) {
				w.archives.Store("/main@sha1:2", []byte("text"))
				w.announceSource("main@sha1:2", digestOf([]byte("text")))
			},
			reason: ReasonFetchFailed, message: "unpack revision main@sha1:2",
		},
		"a source that does not answer": {
			fail: func(w *world) {
				w.archives.Store("/main@sha1:2", make(chan struct{}))
				w.announceSource("main@sha1:2", digestOf(nil))
			},
			edit:   func(o *v1alpha1.CueArtifact) { o.Spec.Timeout = &metav1.Duration{Duration: 100 * time.Millisecond} },
			reason: ReasonFetchFailed, message: "it takes longer than 100ms",
		},
		"too many files": {
			fail: func(w *world) {
				data := archive(w.t, listOf(archives.MaxFiles+1, func(i int) file { return file{fmt.Sprintf("d/%d", i), ""} }))
				w.archives.Store("/main@sha1:2", data)
				w.announceSource("main@sha1:2", digestOf(data))
			},
			reason: ReasonFetchFailed, message: "more than 20000 files",
		},
		"too many folders": {
			fail: func(w *world) {
				data := archive(w.t, listOf(archives.MaxFiles/50, func(i int) file { return file{fmt.Sprintf("%d/", i) + strings.Repeat("d/", 55) + "f", ""} }))
				w.archives.Store("/main@sha1:2", data)
				w.announceSource("main@sha1:2", digestOf(data))
			},
			reason: ReasonFetchFailed, message: "more than 20000 folders",
		},
		"a definition that is a link": {
			fail: func(w *world) {
				data := archive(w.t, []file{{"one.yaml", "kind: x\n"}, {"apps/two.yaml", linkTo + "../one.yaml"}})
				w.archives.Store("/main@sha1:2", data)
				w.announceSource("main@sha1:2", digestOf(data))
			},
			reason: ReasonFetchFailed, message: "apps/two.yaml is a symbolic link",
		},
		"a definition that is a hard link": {
			fail: func(w *world) {
				data := archive(w.t, []file{{"one.yaml", "kind: x\n"}, {"two.yaml", hardLinkTo + "one.yaml"}})
				w.archives.Store("/main@sha1:2", data)
				w.announceSource("main@sha1:2", digestOf(data))
			},
			reason: ReasonFetchFailed, message: "two.yaml is a hard link to one.yaml",
		},
		"a folder that is a link": {
			fail: func(w *world) {
				data := archive(w.t, []file{{"one.yaml", "kind: x\n"}, {"prod/apps", linkTo + "../shared"}})
				w.archives.Store("/main@sha1:2", data)
				w.announceSource("main@sha1:2", digestOf(data))
			},
			reason: ReasonFetchFailed, message: "prod/apps is a symbolic link",
		},
		"folders nested too deep": {
			fail:   func(w *world) { w.commit("main@sha1:2", "-- "+strings.Repeat("d/", archives.MaxDepth+1)+"a.yaml --\n") },
			reason: ReasonFetchFailed, message: "nested deeper than 64",
		},
		"files that are too large": {
			fail: func(w *world) {
				data := archive(w.t, []file{{"large.bin", strings.Repeat("\x00", archives.MaxUnpacked+1)}})
				w.archives.Store("/main@sha1:2", data)
				w.announceSource("main@sha1:2", digestOf(data))
			},
			reason: ReasonFetchFailed, message: "bigger than max archive size",
		},
		"a ConfigMap that is not there": {
			edit: func(o *v1alpha1.CueArtifact) {
				o.Spec.Tags = []v1alpha1.CueTag{{Name: "env", ValueFrom: &v1alpha1.CueTagSource{ConfigMapKeyRef: &v1alpha1.CueKeyRef{Name: "m", Key: "k"}}}}
			},
			reason: ReasonTagsFailed, message: "get ConfigMap team/m: it is not there",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, cueArtifact())
			w.commit(good, yamlOf("one"))
			before, _ := w.reconcile()
			external := w.external()
			w.told()
			if c.fail != nil {
				c.fail(w)
			}
			if c.edit != nil {
				c.edit(before)
				before.Generation++
				if err := w.api.Update(t.Context(), before); err != nil {
					t.Fatal(err)
				}
			}
			w.NoCrossNamespaceRefs = true
			after, again := w.reconcile()
			got := ready(t, after)
			if got.Status != metav1.ConditionFalse || got.Reason != c.reason || !strings.Contains(got.Message, c.message) {
				t.Errorf("Ready is %v, want %s: %s", got, c.reason, c.message)
			}
			if strings.Contains(got.Message, "hunter2") || strings.Contains(got.Message, w.storage) {
				t.Errorf("the message has what nobody is to see: %s", got.Message)
			}
			if is := apimeta.IsStatusConditionTrue(after.Status.Conditions, v1alpha1.ConditionStalled); is != c.stalled {
				t.Errorf("it is stalled: %t", is)
			}
			if want := map[bool]time.Duration{true: time.Hour, false: time.Minute}[c.stalled]; again.RequeueAfter != want {
				t.Errorf("it is looked at again after %s, want %s", again.RequeueAfter, want)
			}
			if diff := cmp.Diff(before.Status.Artifact, after.Status.Artifact); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(external, w.external()); diff != "" {
				t.Error(diff)
			}
			if told := w.told(); len(told) != 1 || !strings.HasPrefix(told[0], "Warning "+c.reason) {
				t.Errorf("events are %q", told)
			}
			w.reconcile()
			if told := w.told(); len(told) != 0 {
				t.Errorf("the same failure is told again: %q", told)
			}
			if left, err := os.ReadDir(filepath.Join(w.storage, "tmp")); err != nil || len(left) != 0 {
				t.Errorf("left over: %v, %v", left, err)
			}
		})
	}
}

// listOf makes a list by index.
func listOf[T any](n int, f func(int) T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = f(i)
	}
	return all
}

func TestTagsAndTheirSecrets(t *testing.T) {
	const secret = "hunter2-hunter2"
	tag := func(name, kind, object string) v1alpha1.CueTag {
		ref := &v1alpha1.CueKeyRef{Name: object, Key: "k"}
		if kind == "Secret" {
			return v1alpha1.CueTag{Name: name, ValueFrom: &v1alpha1.CueTagSource{SecretKeyRef: ref}}
		}
		return v1alpha1.CueTag{Name: name, ValueFrom: &v1alpha1.CueTagSource{ConfigMapKeyRef: ref}}
	}
	w := newWorld(t,
		cueArtifact(func(o *v1alpha1.CueArtifact) {
			one := "one"
			o.Spec.Tags = []v1alpha1.CueTag{{Name: "name", Value: &one}, tag("map", "ConfigMap", "m"), tag("again", "ConfigMap", "m"), tag("secret", "Secret", "s")}
		}),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "m"}, Data: map[string]string{"k": "v1"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "s"}, Data: map[string][]byte{"k": []byte(secret)}},
	)
	const source = `
-- a.cue --
package a

name: string @tag(name)
map: string @tag(map)
again: string & map @tag(again)
secret: string @tag(secret)
app: {
	apiVersion: "skep.dev/v1alpha1"
	kind: "ClusterBpfApplication"
	metadata: "name": name
	spec: {bytecode: image: "none.example.com/x:" + map, programs: [{"name": "f"}], variables: key: secret}
}
`
	w.commit("main@sha1:1", source)
	w.reads.Store(0)
	o, _ := w.reconcile()
	if c := ready(t, o); c.Status != metav1.ConditionTrue {
		t.Fatal(c)
	}
	if got := w.reads.Load(); got != 2 {
		t.Errorf("a ConfigMap and a Secret are read by %d requests", got)
	}
	content, err := w.Store.Read(*w.external().Status.Artifact)
	if err != nil || !strings.Contains(string(content), "none.example.com/x:v1") || !strings.Contains(string(content), secret) {
		t.Errorf("%v, the artifact has\n%s", err, content)
	}

	t.Log("a fault that repeats the Secret is told by its place alone")
	w.commit("main@sha1:2", strings.Replace(source, "variables: key: secret", `variables: key: secret, bad: secret & "other", "x\(secret)": 1&2`, 1))
	o, _ = w.reconcile()
	c := ready(t, o)
	if c.Reason != ReasonRenderFailed || !strings.Contains(c.Message, "a.cue:") {
		t.Errorf("Ready is %v", c)
	}
	for _, text := range append(w.told(), c.Message) {
		if strings.Contains(text, "hunter2") {
			t.Errorf("the Secret is told: %s", text)
		}
	}

	t.Log("a changed ConfigMap is rendered at the next look")
	w.commit("main@sha1:3", source)
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "m"}, Data: map[string]string{"k": "v2"}}
	if err := w.api.Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	o, _ = w.reconcile()
	if content, err := w.Store.Read(*w.external().Status.Artifact); err != nil || !strings.Contains(string(content), "none.example.com/x:v2") {
		t.Errorf("%v, %v, the artifact has\n%s", ready(t, o), err, content)
	}
}

func TestNothingBesideCountsIsToldOfWhatSecretsGave(t *testing.T) {
	const secret = "hunter2"
	w := newWorld(t, cueArtifact(func(o *v1alpha1.CueArtifact) {
		o.Spec.RequireAllowed = true
		o.Spec.Tags = []v1alpha1.CueTag{{Name: "secret", ValueFrom: &v1alpha1.CueTagSource{SecretKeyRef: &v1alpha1.CueKeyRef{Name: "s", Key: "k"}}}}
	}), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "s"}, Data: map[string][]byte{"k": []byte(secret)}})
	const source = `
-- a.cue --
package a

import "strings"

secret: string @tag(secret)
app: {
	apiVersion: "skep.dev/v1alpha1"
	kind: "ClusterBpfApplication"
	metadata: name: strings.Replace(secret, "2", "-two", -1)
	spec: {bytecode: image: "forbidden.example.com/\(secret)", programs: [{name: "f"}]}
}
`
	w.commit("main@sha1:1", source)
	told := func(o *v1alpha1.CueArtifact) {
		t.Helper()
		status, err := json.Marshal(o.Status)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range append(w.told(), string(status)) {
			if strings.Contains(text, "hunter") {
				t.Errorf("the Secret is told: %s", text)
			}
		}
	}
	held, _ := w.reconcile()
	if c := ready(t, held); c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "1 application, 1 of them") {
		t.Errorf("Ready is %v", c)
	}
	told(held)
	edit := func(f func(*v1alpha1.CueArtifact)) *v1alpha1.CueArtifact {
		f(held)
		held.Generation++
		if err := w.api.Update(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		held, _ = w.reconcile()
		if c := ready(t, held); c.Status != metav1.ConditionTrue {
			t.Errorf("Ready is %v", c)
		}
		return held
	}
	told(edit(func(o *v1alpha1.CueArtifact) { o.Spec.RequireAllowed = false }))
	t.Log("what the Secret gave is not named as removed either")
	other := "other"
	told(edit(func(o *v1alpha1.CueArtifact) { o.Spec.Tags = []v1alpha1.CueTag{{Name: "secret", Value: &other}} }))
}

func TestANamespaceThatCannotBeReadHoldsBack(t *testing.T) {
	w := newWorld(t, cueArtifact(func(o *v1alpha1.CueArtifact) { o.Spec.RequireAllowed = true }))
	w.unread = errors.New("the API server is away")
	w.commit("main@sha1:1", "-- one.yaml --\napiVersion: skep.dev/v1alpha1\nkind: BpfApplication\nmetadata: {name: one, namespace: team}\n"+
		"spec: {bytecode: {image: none.example.com/x}, programs: [{name: f}]}\n")
	o, again := w.reconcile()
	if c := ready(t, o); c.Reason != ReasonNotEvaluated || !strings.Contains(c.Message, "get Namespace team") || again.RequeueAfter != time.Minute {
		t.Errorf("Ready is %v, again after %s", c, again.RequeueAfter)
	}
}

func TestTheListOfApplicationsIsBoundedInBytes(t *testing.T) {
	a := &answers{all: listOf(maxApplications+1, func(int) v1alpha1.RenderedApplication {
		return v1alpha1.RenderedApplication{Message: strings.Repeat("<", maxMessage)}
	})}
	data, err := json.Marshal(a.listed())
	if err != nil || len(data) > maxListedBytes || len(data) < maxListedBytes/2 {
		t.Errorf("%v, the list has %d bytes", err, len(data))
	}
	a.all = listOf(maxApplications+1, func(int) v1alpha1.RenderedApplication { return v1alpha1.RenderedApplication{Name: "x"} })
	if len(a.listed()) != maxApplications {
		t.Errorf("%d short ones are listed", len(a.listed()))
	}
}

func TestApplicationsOfOneCueArtifactAreBounded(t *testing.T) {
	if err := fewEnough(maxRendered, "main@sha1:1"); err != nil {
		t.Error(err)
	}
	if err := fewEnough(maxRendered+1, "main@sha1:1"); !isStalled(err) || !strings.Contains(err.Error(), "split it into several CueArtifacts") {
		t.Errorf("one more: %v", err)
	}
}

func TestApplicationsOfANamespaceAreBounded(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.commit("main@sha1:1", yamlOf("one"))
	full := func(namespace string) {
		w.memory.of(types.NamespacedName{Namespace: namespace, Name: "full"}).answered(&answers{all: make([]v1alpha1.RenderedApplication, maxOfNamespace)})
	}
	full("team")
	o, again := w.reconcile()
	if c := ready(t, o); c.Reason != ReasonRenderFailed || !strings.Contains(c.Message, "share of one namespace") || again.RequeueAfter != time.Minute {
		t.Errorf("Ready is %v, again after %s", c, again.RequeueAfter)
	}
	w.memory.forget(types.NamespacedName{Namespace: "team", Name: "full"})
	full("other")
	if o, _ = w.reconcile(); ready(t, o).Status != metav1.ConditionTrue {
		t.Error(ready(t, o))
	}
}

func TestARenderingIsOneCueArtifactsAlone(t *testing.T) {
	one, other := cueArtifact(), cueArtifact(func(o *v1alpha1.CueArtifact) { o.UID = "2" })
	source := meta.Artifact{Digest: digestOf(nil)}
	if inputs(one, source, tagValues{}) == inputs(other, source, tagValues{}) {
		t.Error("two CueArtifacts share a rendering")
	}
}

func TestSuspendedIsLeftAlone(t *testing.T) {
	w := newWorld(t, cueArtifact(func(o *v1alpha1.CueArtifact) { o.Spec.Suspend = true }))
	w.commit("main@sha1:1", yamlOf("one"))
	if o, again := w.reconcile(); len(o.Status.Conditions) != 0 || again.RequeueAfter != 0 || w.writes.Load() != 0 {
		t.Errorf("status %v, again after %s, %d writes", o.Status, again.RequeueAfter, w.writes.Load())
	}
}

func TestDeletedRemovesItsArchives(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.commit("main@sha1:1", yamlOf("one"))
	o, _ := w.reconcile()
	path := w.external().Status.Artifact.Path
	if err := w.api.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if o, _ = w.reconcile(); o.Name != "" {
		t.Errorf("it is there still: %v", o.Finalizers)
	}
	if out := w.get(http.MethodGet, "/"+path); out.Code != http.StatusNotFound {
		t.Errorf("the archive is answered with %d", out.Code)
	}
}

func TestARequestIsAnswered(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.commit("main@sha1:1", yamlOf("one"))
	o, _ := w.reconcile()
	o.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
	if err := w.api.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if o, _ = w.reconcile(); o.Status.LastHandledReconcileAt != "now" {
		t.Errorf("last handled is %q", o.Status.LastHandledReconcileAt)
	}
}

func TestAnExternalArtifactOfAnotherIsLeftAlone(t *testing.T) {
	other := &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "apps"}}
	w := newWorld(t, cueArtifact(), other)
	w.commit("main@sha1:1", yamlOf("one"))
	o, _ := w.reconcile()
	if c := ready(t, o); c.Reason != ReasonStorageFailed || !strings.Contains(c.Message, "is not this CueArtifact's") {
		t.Errorf("Ready is %v", c)
	}
	if got := w.external(); got.Status.Artifact != nil || got.Spec.SourceRef != nil {
		t.Errorf("it is changed: %v", got)
	}
}

func TestWhatOthersWriteIsRestored(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.commit("main@sha1:1", yamlOf("one"))
	w.reconcile()
	before := w.external()
	forged := before.DeepCopy()
	forged.Status.Artifact.URL, forged.Spec.SourceRef.Name = "http://evil.example.com/x", "evil"
	if err := w.api.Update(t.Context(), forged); err != nil {
		t.Fatal(err)
	}
	if err := w.api.Status().Update(t.Context(), forged); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	after := w.external()
	if diff := cmp.Diff(before.Status.Artifact, after.Status.Artifact); diff != "" || after.Spec.SourceRef.Name != "apps" {
		t.Errorf("%s, %v", diff, after.Spec.SourceRef)
	}
}

func TestWhatCouldNotBeAnnouncedIsNotTakenForPublished(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.commit("main@sha1:1", yamlOf("one"))
	before, _ := w.reconcile()
	announced := w.external().Status.Artifact
	denied := false
	w.deny = func(o client.Object) error {
		if _, ok := o.(*sourcev1.ExternalArtifact); !ok || denied {
			return nil
		}
		denied = true
		return errors.New("denied once")
	}
	w.commit("main@sha1:2", yamlOf("two"))
	after, _ := w.reconcile()
	if c := ready(t, after); c.Reason != ReasonStorageFailed || !strings.Contains(c.Message, "denied once") {
		t.Errorf("Ready is %v", c)
	}
	if diff := cmp.Diff(before.Status.Artifact, after.Status.Artifact) + cmp.Diff(announced, w.external().Status.Artifact); diff != "" {
		t.Error(diff)
	}
	if out := w.get(http.MethodGet, "/"+announced.Path); out.Code != http.StatusOK {
		t.Errorf("what is announced is answered with %d", out.Code)
	}
	if after, _ = w.reconcile(); !strings.HasPrefix(after.Status.Artifact.Revision, "main@sha1:2/") ||
		w.external().Status.Artifact.Revision != after.Status.Artifact.Revision {
		t.Errorf("then %s is published", after.Status.Artifact.Revision)
	}
}

func TestEventsSayWhatChanged(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.commit("main@sha1:1", yamlOf("one", "two"))
	w.reconcile()
	former := filepath.Join(w.storage, w.external().Status.Artifact.Path)
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(former, long, long); err != nil {
		t.Fatal(err)
	}
	w.commit("main@sha1:2", strings.Replace(yamlOf("one"), "name: f", "name: g", 1)+yamlOf("three"))
	w.reconcile()
	if _, err := os.Stat(former); err != nil {
		t.Errorf("what was replaced just now is not kept: %v", err)
	}
	if err := os.Chtimes(former, long, long); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	if _, err := os.Stat(former); !os.IsNotExist(err) {
		t.Errorf("what was replaced an hour ago is kept: %v", err)
	}
	told := w.told()
	want := []string{
		"; 2 added: ClusterBpfApplication one, ClusterBpfApplication two",
		"; 1 added: ClusterBpfApplication three; 1 changed: ClusterBpfApplication one; 1 removed: ClusterBpfApplication two",
	}
	if len(told) != len(want) {
		t.Fatalf("events are %q", told)
	}
	for i := range want {
		if !strings.HasSuffix(told[i], want[i]) || !strings.Contains(told[i], "main@sha1:") {
			t.Errorf("event %q, want %q", told[i], want[i])
		}
	}
}

func TestANamespaceLeavesOthersAPlace(t *testing.T) {
	w := newWorld(t, cueArtifact(func(o *v1alpha1.CueArtifact) {
		o.Spec.Tags = []v1alpha1.CueTag{{Name: "env", ValueFrom: &v1alpha1.CueTagSource{ConfigMapKeyRef: &v1alpha1.CueKeyRef{Name: "m", Key: "k"}}}}
	}), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "m"}, Data: map[string]string{"k": "one"}})
	w.commit("main@sha1:1", "-- a.cue --\npackage a\n\nenv: string @tag(env)\napp: {apiVersion: \"skep.dev/v1alpha1\", kind: \"ClusterBpfApplication\", "+
		"metadata: name: env, "+
		"spec: {bytecode: image: \"none.example.com/x\", programs: [{name: \"f\"}]}}\n")
	w.reads.Store(0)
	leave, ok := w.memory.enter("team", 2)
	if !ok {
		t.Fatal("there is no place")
	}
	o, again := w.reconcile()
	if len(o.Status.Conditions) != 0 || again.RequeueAfter == 0 || w.downloads.Load() != 0 || w.reads.Load() != 0 {
		t.Errorf("it did not wait: %v, %s", o.Status, again.RequeueAfter)
	}
	if other, ok := w.memory.enter("other", 2); !ok {
		t.Error("another namespace waits as well")
	} else {
		other()
	}
	leave()
	if o, _ = w.reconcile(); ready(t, o).Status != metav1.ConditionTrue {
		t.Error(ready(t, o))
	}
}

// TestANamespaceAsksAsOne has as many questions of a namespace wait for registries as may.
func TestANamespaceAsksAsOne(t *testing.T) {
	for owner, want := range map[string]string{"team": "others are asked about first", "other": "waiting for registry none.example.com"} {
		w := newWorld(t, cueArtifact())
		w.commit("main@sha1:1", yamlOf("one"))
		ctx, cancel := context.WithCancel(t.Context())
		queue := evaluations.NewQueue(time.Now)
		w.set(ctx, queue)
		for i := range evaluations.MaxOfAnOwner {
			name := fmt.Sprint(i)
			queue.Ask(ctx, evaluations.Question{Name: name, Registry: name, Owner: owner, Ask: func(ctx context.Context) evaluations.Answer {
				<-ctx.Done()
				return evaluations.Answer{Err: ctx.Err()}
			}}, false)
		}
		if o, _ := w.reconcile(); len(o.Status.Applications) != 1 || !strings.Contains(o.Status.Applications[0].Message, want) {
			t.Errorf("questions of namespace %s: %v, want %q", owner, o.Status.Applications, want)
		}
		cancel()
		queue.Wait()
	}
}

// TestAnAnswerIsNoVerdict would keep the facts of each application's object, and who signed it.
func TestAnAnswerIsNoVerdict(t *testing.T) {
	app := &v1alpha1.ClusterBpfApplication{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	app.Spec.Bytecode.Image = "other.example.com/x"
	verdict, err := newEvaluator(t).Evaluate(t.Context(), gate.Request{Application: app})
	if err != nil || verdict.Application() == nil {
		t.Fatal(err)
	}
	a := answer(app.Identity(), verdict, nil)
	if a.Verdict.Application() != nil || a.Told.Allowed != metav1.ConditionFalse || len(a.Told.Rules) == 0 || a.Told.Name != "one" {
		t.Errorf("the answer is %+v", a)
	}
}

func TestRoomIsBounded(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.room = 10
	w.restart(t.TempDir())
	w.commit("main@sha1:1", yamlOf("one"))
	o, _ := w.reconcile()
	if c := ready(t, o); c.Reason != ReasonStorageFailed || !strings.Contains(c.Message, "is the room there is") {
		t.Errorf("Ready is %v", c)
	}
}

func TestTheServerServesArchivesAlone(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.commit("main@sha1:1", yamlOf("one"))
	w.reconcile()
	path := "/" + w.external().Status.Artifact.Path
	link := strings.Replace(path, path[strings.LastIndex(path, "/")+1:], strings.Repeat("0", 64)+".tar.gz", 1)
	if err := os.Symlink("/etc/passwd", filepath.Join(w.storage, link)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{http.MethodGet, path, http.StatusOK},
		{http.MethodHead, path, http.StatusOK},
		{http.MethodPost, path, http.StatusMethodNotAllowed},
		{http.MethodGet, "/", http.StatusNotFound},
		{http.MethodGet, "/cueartifact/team/apps/", http.StatusNotFound},
		{http.MethodGet, "/cueartifact/team/../apps/" + strings.Repeat("0", 64) + ".tar.gz", http.StatusNotFound},
		{http.MethodGet, path + ".lock", http.StatusNotFound},
		{http.MethodGet, link, http.StatusNotFound},
	} {
		if got := w.get(c.method, c.path); got.Code != c.want {
			t.Errorf("%s %s is answered with %d, want %d", c.method, c.path, got.Code, c.want)
		}
	}
}

func TestASweepRemovesWhatIsGone(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.commit("main@sha1:1", yamlOf("one"))
	w.reconcile()
	gone := filepath.Join(w.storage, "cueartifact", "team", "gone")
	if err := os.MkdirAll(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(gone); !os.IsNotExist(err) {
		t.Errorf("it is there still: %v", err)
	}
	if !w.Store.Has(w.external().Status.Artifact) {
		t.Error("what is published was removed")
	}
}

// stuck never knows signers and policies.
type stuck struct{ waits func() }

func (s stuck) Wait(ctx context.Context) error {
	s.waits()
	<-ctx.Done()
	return ctx.Err()
}

func TestEvaluatingHasThePlaceAndTheTimeOfRendering(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.commit("main@sha1:1", yamlOf("one"))
	o, _ := w.reconcile()
	o.Spec.Timeout = &metav1.Duration{Duration: 100 * time.Millisecond}
	if err := w.api.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	// What is rendered is in memory, and its application is not evaluated.
	free := true
	w.Keeper = stuck{func() { _, free = w.memory.enter("team", 2) }}
	o, again := w.reconcile()
	if c := ready(t, o); c.Reason != ReasonNotEvaluated || !strings.Contains(c.Message, "spec.timeout") || again.RequeueAfter != time.Minute {
		t.Errorf("Ready is %v, again after %s", c, again.RequeueAfter)
	}
	if free {
		t.Error("its namespace has another place while it is evaluated")
	}
}

func TestALostArchiveIsNotAnnounced(t *testing.T) {
	for name, c := range map[string]struct {
		edit    func(*v1alpha1.CueArtifact)
		message string
	}{
		"suspended": {func(o *v1alpha1.CueArtifact) { o.Spec.Suspend = true }, "the CueArtifact is suspended"},
		"failing":   {func(o *v1alpha1.CueArtifact) { o.Spec.Path = "none" }, "read the definitions at none"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, cueArtifact())
			w.commit("main@sha1:1", yamlOf("one"))
			o, _ := w.reconcile()
			before := w.external()
			c.edit(o)
			if err := w.api.Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			w.reconcile()
			if diff := cmp.Diff(before.Status, w.external().Status); diff != "" {
				t.Errorf("while its archive is stored: %s", diff)
			}
			w.restart(t.TempDir())
			o, _ = w.reconcile()
			after := w.external()
			got := apimeta.FindStatusCondition(after.Status.Conditions, meta.ReadyCondition)
			if after.Status.Artifact != nil || got == nil || got.Status != metav1.ConditionFalse || got.Reason != ReasonArtifactLost ||
				!strings.Contains(got.Message, c.message) {
				t.Errorf("artifact %v, Ready is %v", after.Status.Artifact, got)
			}
			for i := range o.Status.Conditions {
				o.Status.Conditions[i].LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
			}
			if err := w.api.Status().Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			writes := w.writes.Load()
			o, _ = w.reconcile()
			if w.writes.Load() != writes {
				t.Error("it is written at rest")
			}

			t.Log("rendered again, it is the same revision")
			o.Spec.Suspend, o.Spec.Path = false, ""
			if err := w.api.Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			w.reconcile()
			if diff := cmp.Diff(before.Status.Artifact, w.external().Status.Artifact); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhatIsOfTheMachineIsTriedAgain(t *testing.T) {
	if err := (tagValues{}).notRendered("main@sha1:1", fmt.Errorf("start the renderer: %w", syscall.EAGAIN)); isStalled(err) ||
		!strings.Contains(err.Error(), "tries again") {
		t.Errorf("a machine without room for a process: %v", err)
	}
	if err := (tagValues{}).notRendered("main@sha1:1", os.ErrNotExist); !isStalled(err) {
		t.Errorf("a path that is not there: %v", err)
	}
}

func TestOneOfOtherLabelsKeepsItsArchives(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.commit("main@sha1:1", yamlOf("one"))
	o, _ := w.reconcile()
	if len(o.Finalizers) != 0 {
		t.Errorf("finalizers are %v", o.Finalizers)
	}
	if err := w.forget(t.Context(), client.ObjectKeyFromObject(o)); err != nil || !w.Store.Has(w.external().Status.Artifact) {
		t.Errorf("it is removed, %v", err)
	}
}

func TestAVerifiedSourceIsRendered(t *testing.T) {
	w := newWorld(t, cueArtifact(func(o *v1alpha1.CueArtifact) { o.Spec.RequireVerifiedSource = true }))
	data := archive(t, files(yamlOf("one")))
	w.archives.Store("/main@sha1:1", data)
	verified := func(generation int64) func(*sourcev1.GitRepository) {
		return func(o *sourcev1.GitRepository) {
			o.Status.Conditions = []metav1.Condition{{
				Type: sourcev1.SourceVerifiedCondition, Status: metav1.ConditionTrue, ObservedGeneration: generation, Reason: "Verified", LastTransitionTime: metav1.Now(),
			}}
		}
	}
	w.announceSource("main@sha1:1", digestOf(data), verified(7))
	if o, _ := w.reconcile(); ready(t, o).Reason != ReasonSourceNotVerified {
		t.Errorf("of another generation: %v", ready(t, o))
	}
	including := func(o *sourcev1.GitRepository) {
		o.Status.IncludedArtifacts = []*meta.Artifact{{Revision: "main@sha1:2", Path: "other", URL: "http://source/other", LastUpdateTime: metav1.Now()}}
	}
	included := w.announceSource("main@sha1:1", digestOf(data), verified(0), including)
	if o, _ := w.reconcile(); ready(t, o).Reason != ReasonSourceNotVerified || !strings.Contains(ready(t, o).Message, "includes other repositories") {
		t.Errorf("with another repository in it: %v", ready(t, o))
	}
	alone := w.announceSource("main@sha1:1", digestOf(data), verified(0), func(o *sourcev1.GitRepository) { o.Status.IncludedArtifacts = nil })
	if o, _ := w.reconcile(); ready(t, o).Status != metav1.ConditionTrue {
		t.Error(ready(t, o))
	}
	if !revised().Update(event.UpdateEvent{ObjectOld: cached(t, included), ObjectNew: cached(t, alone)}) {
		t.Error("it is not looked at again when nothing is included any more")
	}
}

// cached is a source as the cache has it.
func cached(t *testing.T, o client.Object) *unstructured.Unstructured {
	t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: fields}
}

func TestAnswersAreAskedForOnceWhileAllAreKnown(t *testing.T) {
	w := newWorld(t, cueArtifact())
	w.commit("main@sha1:1", yamlOf("one"))
	asked := 0
	w.Keeper = counted{&asked}
	o, _ := w.reconcile()
	w.reconcile()
	if asked != 2 {
		t.Errorf("one that is not evaluated is asked about %d times in two looks", asked)
	}
	w.memory.of(client.ObjectKeyFromObject(o)).answers.unknown = 0
	w.reconcile()
	if asked != 2 {
		t.Error("what the policies answered is asked again")
	}
	w.memory.of(client.ObjectKeyFromObject(o)).answers.revision = "other policies"
	w.reconcile()
	if asked != 3 {
		t.Error("other policies are not asked")
	}
}

// counted counts how often the policies are asked.
type counted struct{ times *int }

func (c counted) Wait(context.Context) error { *c.times++; return nil }
