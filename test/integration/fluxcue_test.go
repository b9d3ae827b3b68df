package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/cueartifact"
	"github.com/skep-dev/skep/controller/cueartifact/archives"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/deployment"
)

// newCUE is gitops whose controller renders CueArtifacts.
func newCUE(t testing.TB) *gitops {
	t.Helper()
	address, err := deployment.Free(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	storage := t.TempDir()
	return newGitops(t, func(o *controller.Options) {
		o.Cue.Store = archives.Options{Dir: storage, Address: address, Advertised: address}
	})
}

// counters is a package of CUE with an application for each name.
func counters(names ...string) string {
	var b strings.Builder
	b.WriteString("package apps\n\nimport \"skep.dev/schemas\"\n\nimage: string @tag(image)\n")
	for _, name := range names {
		fmt.Fprintf(&b, `
%s: schemas.#ClusterBpfApplication & {
	metadata: name: %[1]q
	spec: {
		bytecode: "image": image
		programs: [{name: "count_packets", attach: [{hook: "xdp", interfaces: names: ["eth0"]}]}]
	}
}
`, name)
	}
	return b.String()
}

// renders makes a CueArtifact of the folder cue, and a Kustomization that applies what it comes to.
func (g *gitops) renders(image string) *v1alpha1.CueArtifact {
	g.t.Helper()
	o := &v1alpha1.CueArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "apps"}}
	o.Spec = v1alpha1.CueArtifactSpec{
		SourceRef: v1alpha1.CueArtifactSource{Kind: sourcev1.GitRepositoryKind, Name: "definitions"},
		Path:      "./cue", Package: "apps", Tags: []v1alpha1.CueTag{{Name: "image", Value: &image}},
		Interval: metav1.Duration{Duration: time.Hour},
	}
	g.create(o)
	g.kustomization("apps", map[string]any{"path": "./", "sourceRef": map[string]any{"kind": sourcev1.ExternalArtifactKind, "name": "apps"}})
	return o
}

// TestFluxAppliesWhatCUEComesTo has commits of CUE reach the kernel of three nodes, and a broken one change nothing.
func TestFluxAppliesWhatCUEComesTo(t *testing.T) {
	g := newCUE(t)
	image, _ := g.Push("count:v1", programs.Object("xdp_count"), "team-a")
	revision := g.commit(map[string]string{"cue/apps.cue": counters("first", "second")})
	o := g.renders(image)
	g.is("apps", revision, metav1.ConditionTrue, "ReconciliationSucceeded")
	for _, name := range []string{"first", "second"} {
		g.summary(named(name, ""), "3/3")
	}
	for _, m := range g.nodes {
		m.counts()
	}

	t.Log("a broken commit is told with its place, and what runs goes on")
	before := g.artifact(o)
	broken := strings.Replace(counters("first"), `name: "first"`, "name: 7", 1)
	revision = g.commit(map[string]string{"cue/apps.cue": broken})
	g.until("the broken commit to be told", func() error {
		if err := g.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if o.Status.LastAttemptedRevision != revision {
			return fmt.Errorf("the last attempt was at %s", o.Status.LastAttemptedRevision)
		}
		return nil
	})
	said := g.condition(o, v1alpha1.ConditionReady, metav1.ConditionFalse, cueartifact.ReasonRenderFailed).Message
	if !strings.Contains(said, "cue/apps.cue:8:") || !strings.Contains(said, "metadata.name") {
		t.Errorf("it is told as %q", said)
	}
	if now := g.artifact(o); now != before {
		t.Errorf("the artifact was %s and is %s", before, now)
	}
	if found, _, err := g.ready("apps"); err != nil || found.Status != metav1.ConditionTrue {
		t.Errorf("the Kustomization is %+v, %v", found, err)
	}
	for _, m := range g.nodes {
		m.counts()
	}

	t.Log("the next good one is applied: what it leaves out is unloaded")
	revision = g.commit(map[string]string{"cue/apps.cue": counters("second", "third")})
	g.is("apps", revision, metav1.ConditionTrue, "ReconciliationSucceeded")
	for _, name := range []string{"second", "third"} {
		g.summary(named(name, ""), "3/3")
	}
	if err := g.Get(t.Context(), client.ObjectKey{Name: "first"}, named("first", "")); !apierrors.IsNotFound(err) {
		t.Errorf("the first is still there: %v", err)
	}
	for _, m := range g.nodes {
		g.until(m.name+" to have two", func() error {
			if _, n := m.counted(); n != 2 {
				return fmt.Errorf("it has %d", n)
			}
			return nil
		})
	}

	t.Log("docs/gitops.md, from an empty repository on")
	// Nothing collects garbage here: what a CueArtifact owns stays.
	for _, own := range []client.Object{
		object("kustomize.toolkit.fluxcd.io/v1", "Kustomization", "apps"), o, object("source.toolkit.fluxcd.io/v1", "ExternalArtifact", "apps"),
	} {
		if err := g.Delete(t.Context(), own); err != nil {
			t.Fatal(err)
		}
	}
	g.clean()
	newWalk(t, g).all()
}

// artifact is the revision that a CueArtifact's ExternalArtifact announces.
func (g *gitops) artifact(o *v1alpha1.CueArtifact) string {
	g.t.Helper()
	ea := &sourcev1.ExternalArtifact{}
	if err := g.Get(g.t.Context(), client.ObjectKeyFromObject(o), ea); err != nil {
		g.t.Fatal(err)
	}
	if ea.Status.Artifact == nil {
		g.t.Fatal(errors.New("it announces none"))
	}
	return ea.Status.Artifact.Revision
}

// firstCUE is an application that is there before any other: without one, nothing is rendered.
const firstCUE = "package apps\n\nfirst: #app & {metadata: name: \"first\"}\n"

// spreadCUE is a package with so many applications as spread has them.
func spreadCUE(many int) string {
	return fmt.Sprintf(`package apps

import (
	"list"

	"skep.dev/schemas"
)

image: string @tag(image)
calls: ["%s"]
#app: schemas.#ClusterBpfApplication & {
	_call: *"getpid" | string
	spec: {
		bytecode: "image": image
		rollout: steps: ["100%%"]
		programs: [{name: "tracepoint_count", attach: [{hook: "tracepoint", tracepoint: "syscalls/sys_enter_\(_call)"}]}]
	}
}
for i in list.Range(0, %d, 1) {
	"app-\(i)": #app & {metadata: name: "app-\(i)", _call: calls[mod(i, len(calls))]}
}
`, strings.Join(traced(), `", "`), many)
}
