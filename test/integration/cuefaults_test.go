package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/cueartifact"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// failed waits until a CueArtifact is not Ready for a reason, and returns the message.
func (f *flux) failed(o *v1alpha1.CueArtifact, reason string) string {
	f.t.Helper()
	return f.condition(o, v1alpha1.ConditionReady, metav1.ConditionFalse, reason).Message
}

func TestCueThatExhaustsHarmsNoOther(t *testing.T) {
	f := newFlux(t)
	image, _ := f.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	f.create(f.Signer("team-a"))
	faults := map[string]struct{ source, message string }{
		"memory": {`import "list"

x: {for i in list.Range(0, 100000000, 1) {"\(i)": {a: i, b: [i, i, i]}}}
`, "MiB of memory"},
		"output": {`import "strings"

_long: strings.Repeat("#", 200000)
all: [for i, _ in strings.Split(strings.Repeat("x,", 100), ",") {
	apiVersion: "skep.dev/v1alpha1", kind: "ClusterBpfPolicy", metadata: name: "p\(i)", spec: rego: "package skep.policy\n" + _long
}]
`, "it renders to more than 16 MiB"},
		"depth": {"x: " + strings.Repeat("{a: ", 200000) + "1" + strings.Repeat("}", 200000) + "\n", ""},
	}
	good := cueArtifact("good", "good")
	f.commit("good", "main@sha1:1", definitions(image, "good"))
	bad := map[string]*v1alpha1.CueArtifact{}
	for name := range faults {
		f.commit(name, "main@sha1:1", definitions(image, "former-"+name))
		bad[name] = cueArtifact(name, name)
		f.create(bad[name])
	}
	f.render()
	for _, o := range bad {
		f.ready(o, "main@sha1:1")
	}
	for name, fault := range faults {
		f.commit(name, "main@sha1:2", "-- a.cue --\npackage a\n\n"+fault.source)
	}
	f.create(good)
	f.ready(good, "main@sha1:1")
	for name, o := range bad {
		// A busy machine comes to the bound of time before the others.
		if got := f.failed(o, cueartifact.ReasonRenderFailed); !strings.Contains(got, faults[name].message) && !strings.Contains(got, "takes longer than 30s") {
			t.Errorf("%s: %s", name, got)
		}
		if _, content := f.announced(o); !strings.Contains(content, "name: former-"+name+"\n") {
			t.Errorf("%s: what was published is gone:\n%s", name, content)
		}
	}
	f.commit("good", "main@sha1:2", definitions(image, "better"))
	f.ready(good, "main@sha1:2")
}

func TestCueReadsNothingOfTheController(t *testing.T) {
	f := newFlux(t)
	t.Setenv("SKEP_TEST_TOKEN", "hunter2")
	var all []*v1alpha1.CueArtifact
	for name, source := range map[string]string{
		"embed-outside":  "@extern(embed)\n\npackage a\n\nx: string @embed(file=\"../../../../../../etc/passwd\",type=text)\n",
		"embed-absolute": "@extern(embed)\n\npackage a\n\nx: string @embed(file=\"/proc/self/environ\",type=text)\n",
		"exec":           "package a\n\nimport \"tool/exec\"\n\nx: exec.Run & {cmd: \"env\", stdout: string}\ny: x.stdout\n",
		"os":             "package a\n\nimport \"tool/os\"\n\nx: os.Environ\ny: x.SKEP_TEST_TOKEN\n",
		"another-source": "package a\n\nimport \"skep.dev/other\"\n\nx: other.secret\n",
	} {
		o := cueArtifact(name, name)
		f.commit(name, "main@sha1:1", "-- a.cue --\n"+source+"z: {apiVersion: \"skep.dev/v1alpha1\", kind: \"ClusterBpfApplication\", metadata: name: \"z\", "+
			"spec: {bytecode: image: x, programs: [{name: \"f\"}]}}\n")
		f.create(o)
		all = append(all, o)
	}
	f.render()
	for _, o := range all {
		if got := f.failed(o, cueartifact.ReasonRenderFailed); strings.Contains(got, "hunter2") || strings.Contains(got, "root:") {
			t.Errorf("%s: %s", o.Name, got)
		}
	}

	t.Log("and what is published has nothing of it either")
	o := cueArtifact("published", "published")
	f.commit("published", "main@sha1:1", definitions("none.example.com/x", "z")+
		"\nz: spec: variables: {token: _token}\n_token: string | *\"none\" @tag(token,var=username)\n")
	f.create(o)
	f.ready(o, "main@sha1:1")
	if _, content := f.announced(o); !strings.Contains(content, "token: none\n") || strings.Contains(content, "hunter2") {
		t.Errorf("the artifact has\n%s", content)
	}
}

func TestTagsFromObjectsAreBounded(t *testing.T) {
	f := newFlux(t)
	tagged := func(name string, n int) *v1alpha1.CueArtifact {
		return cueArtifact(name, "src", func(s *v1alpha1.CueArtifactSpec) {
			for i := range n {
				s.Tags = append(s.Tags, v1alpha1.CueTag{
					Name: fmt.Sprintf("t%d", i), ValueFrom: &v1alpha1.CueTagSource{SecretKeyRef: &v1alpha1.CueKeyRef{Name: "s", Key: "k"}},
				})
			}
		})
	}
	if err := f.Create(t.Context(), tagged("few", 16)); err != nil {
		t.Error(err)
	}
	if err := f.Create(t.Context(), tagged("many", 17)); err == nil || !strings.Contains(err.Error(), "at most 16 tags have valueFrom") {
		t.Errorf("17 are answered with %v", err)
	}
}

func TestASourceThatGoesKeepsWhatIsPublished(t *testing.T) {
	f := newFlux(t)
	image, _ := f.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	src := f.commit("src", "main@sha1:1", definitions(image, "one"))
	o := cueArtifact("apps", "src")
	f.create(o)
	f.render()
	f.ready(o, "main@sha1:1")

	t.Log("another archive than announced")
	data, _ := archive(t, definitions(image, "forged"))
	f.announce("src", "main@sha1:2", data, "sha256:"+strings.Repeat("0", 64))
	if got := f.failed(o, cueartifact.ReasonFetchFailed); !strings.Contains(got, "digest") {
		t.Error(got)
	}

	t.Log("a force-push back to what was there")
	f.commit("src", "main@sha1:1", definitions(image, "one"))
	f.ready(o, "main@sha1:1")

	t.Log("a server that does not answer, while another source is rendered")
	hold := make(chan struct{})
	f.mu.Lock()
	f.hold = hold
	f.mu.Unlock()
	f.change(o, func() { o.Spec.Timeout = &metav1.Duration{Duration: time.Second} })
	f.commit("src", "main@sha1:3", definitions(image, "three"))
	if got := f.failed(o, cueartifact.ReasonFetchFailed); !strings.Contains(got, "it takes longer than 1s") {
		t.Error(got)
	}
	f.mu.Lock()
	f.hold = nil
	f.mu.Unlock()
	close(hold)

	t.Log("no source")
	if err := f.Delete(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	if got := f.failed(o, cueartifact.ReasonSourceNotReady); !strings.Contains(got, "it is not there") {
		t.Error(got)
	}
	if _, content := f.announced(o); !strings.Contains(content, "name: one\n") {
		t.Errorf("the artifact has\n%s", content)
	}
	f.change(o, func() { o.Spec.Timeout = nil })
	f.commit("src", "main@sha1:4", definitions(image, "four"))
	f.ready(o, "main@sha1:4")

	t.Log("and deleted, nothing is left")
	stored := filepath.Join(f.storage, "cueartifact", o.Namespace, o.Name)
	if _, err := os.Stat(stored); err != nil {
		t.Error(err)
	}
	if err := f.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if err := f.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
		t.Errorf("it waits for somebody, with finalizers %v: %v", o.Finalizers, err)
	}
	f.until("its archives go", func() error {
		if _, err := os.Stat(stored); !os.IsNotExist(err) {
			return fmt.Errorf("%s is there: %w", stored, err)
		}
		return nil
	})
}

func TestRequireAllowedHoldsAllBack(t *testing.T) {
	f := newFlux(t)
	signed, _ := f.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	unsigned, _ := f.Push("unsigned:v1", programs.Object("tracepoint_count"))
	f.create(f.Signer("team-a"))
	f.commit("src", "main@sha1:1", definitions(signed, "one"))
	o := cueArtifact("apps", "src", func(s *v1alpha1.CueArtifactSpec) { s.RequireAllowed = true })
	f.create(o)
	f.render()
	f.ready(o, "main@sha1:1")
	f.commit("src", "main@sha1:2",
		definitions(signed, "one", "two")+strings.ReplaceAll(strings.ReplaceAll(definitions(unsigned, "three"), "apps/a.cue", "unsigned/a.cue"), "package apps",
			"package unsigned"))
	got := f.failed(o, cueartifact.ReasonNotAllowed)
	if !strings.Contains(got, "ClusterBpfApplication three") || !strings.Contains(got, "1 of them denied") {
		t.Error(got)
	}
	if len(o.Status.Applications) != 3 || o.Status.Applications[0].Name != "three" || o.Status.Applications[0].Allowed != metav1.ConditionFalse ||
		len(o.Status.Applications[0].Rules) == 0 {
		t.Errorf("applications are %v", o.Status.Applications)
	}
	if _, content := f.announced(o); strings.Contains(content, "name: two\n") {
		t.Errorf("the artifact has\n%s", content)
	}

	t.Log("a policy in force that denies nothing lets it through")
	f.create(&v1alpha1.ClusterBpfPolicy{ObjectMeta: metav1.ObjectMeta{Name: "baseline"}, Spec: v1alpha1.ClusterBpfPolicySpec{
		BpfPolicySpec: v1alpha1.BpfPolicySpec{
			Rego: "package skep.policy\n\ndeny contains {\"rule\": \"never\", \"msg\": \"never\"} if input.application.metadata.name == \"never\"\n",
		}, Replaces: []v1alpha1.BuiltinPolicy{"baseline"},
	}})
	f.ready(o, "main@sha1:2")
}

func TestAnotherNamespacesSecretIsNotUsed(t *testing.T) {
	f := newFlux(t)
	f.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tag"}, StringData: map[string]string{"k": "hunter2"}})
	other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "cue-other"}}
	err := f.Create(t.Context(), other)
	if client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	f.commit("src", "main@sha1:1", definitions("127.0.0.1:1/x", "one"))
	o := cueArtifact("apps", "src", func(s *v1alpha1.CueArtifactSpec) {
		s.SourceRef.Namespace = "default"
		s.Tags = []v1alpha1.CueTag{{Name: "t", ValueFrom: &v1alpha1.CueTagSource{SecretKeyRef: &v1alpha1.CueKeyRef{Name: "tag", Key: "k"}}}}
	})
	o.Namespace = other.Name
	f.create(o)
	refused := cueArtifact("crossing", "src", func(s *v1alpha1.CueArtifactSpec) { s.SourceRef.Namespace = "default" })
	refused.Namespace = other.Name
	f.create(refused)
	stop := f.render()
	if got := f.failed(o, cueartifact.ReasonTagsFailed); !strings.Contains(got, "Secret cue-other/tag: it is not there") {
		t.Error(got)
	}
	f.ready(refused, "main@sha1:1")
	stop()
	f.change(refused, func() { refused.Spec.Path = "apps" })
	f.render(func(o *controller.Options) { o.Cue.NoCrossNamespaceRefs = true })
	if got := f.failed(refused, cueartifact.ReasonAccessDenied); !strings.Contains(got, "--no-cross-namespace-refs") {
		t.Error(got)
	}
}
