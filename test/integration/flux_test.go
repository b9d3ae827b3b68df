package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/convert"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/test/fixture/gitrepo"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/controlplane"
	fluxcd "github.com/skep-dev/skep/test/harness/flux"
	"github.com/skep-dev/skep/test/harness/need"
)

// gitopsEnv has the tests of Flux run: make test-gitops sets it.
const gitopsEnv = "SKEP_GITOPS"

// gitops is a cluster of real nodes whose definitions Flux's own controllers take from a git repository.
type gitops struct {
	*cluster
	repo  *gitrepo.Repository
	nodes []*machine
}

// newGitops has everything run that there is, with admission, on a control plane of its own: nobody else's
// has Flux's CRDs.
func newGitops(t testing.TB, change ...func(*controller.Options)) *gitops {
	t.Helper()
	if os.Getenv(gitopsEnv) == "" {
		t.Skip("SKIPPED: tests with Flux's controllers are run by make test-gitops")
	}
	need.Kernel(t)
	fluxcd.Need(t)
	plane, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Stop() })
	g := &gitops{cluster: newClusterOn(t, plane), repo: gitrepo.New(t)}
	if err := fluxcd.CRDs(t.Context(), plane.Config); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := writeKubeconfig(plane.Config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	fluxcd.SourceController(t, kubeconfig)
	fluxcd.KustomizeController(t, kubeconfig)
	webhook, admission := g.admission()
	g.nodes, _ = g.begin(3, append(change, admission)...)
	g.admits(webhook)

	server := httptest.NewServer(gitrepo.Handler(t, filepath.Dir(g.repo.Dir)))
	t.Cleanup(server.Close)
	g.create(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
		"metadata": map[string]any{"namespace": "default", "name": "definitions"},
		"spec": map[string]any{
			"interval": "1h", "url": server.URL + "/" + filepath.Base(g.repo.Dir) + "/.git", "ref": map[string]any{"branch": "main"},
		},
	}})
	return g
}

// commit commits files, removing those that are empty, and has Flux look at once, as a webhook of the
// git server does.
func (g *gitops) commit(files map[string]string) (revision string) {
	g.t.Helper()
	hash := g.repo.Commit(files)
	repository := object("source.toolkit.fluxcd.io/v1", "GitRepository", "definitions")
	g.change(repository, func() { repository.SetAnnotations(map[string]string{gate.AnnotationRequestedAt: hash}) })
	return "main@sha1:" + hash
}

// object is an object of Flux's by its address.
func object(version, kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(version)
	o.SetKind(kind)
	o.SetNamespace("default")
	o.SetName(name)
	return o
}

// kustomization has Flux apply the folder of a Kustomization's name and wait for what it applied. Retries are
// slower than a test: what happens once, happens by itself.
func (g *gitops) kustomization(name string, spec map[string]any) *unstructured.Unstructured {
	g.t.Helper()
	o := object("kustomize.toolkit.fluxcd.io/v1", "Kustomization", name)
	o.Object["spec"] = map[string]any{
		"interval": "1h", "retryInterval": "1h", "timeout": "2m", "prune": true, "wait": true, "force": true, "path": "./" + name,
		"sourceRef": map[string]any{"kind": "GitRepository", "name": "definitions"},
	}
	for field, value := range spec {
		_ = unstructured.SetNestedField(o.Object, value, "spec", field)
	}
	g.create(o)
	return o
}

// ready returns a Kustomization's condition.
func (g *gitops) ready(name string) (metav1.Condition, string, error) {
	o := object("kustomize.toolkit.fluxcd.io/v1", "Kustomization", name)
	if err := g.Get(g.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		return metav1.Condition{}, "", err
	}
	var said struct {
		Status struct {
			Conditions            []metav1.Condition `json:"conditions"`
			LastAttemptedRevision string             `json:"lastAttemptedRevision"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &said); err != nil {
		return metav1.Condition{}, "", err
	}
	found := apimeta.FindStatusCondition(said.Status.Conditions, "Ready")
	if found == nil {
		return metav1.Condition{}, "", errors.New("it has no condition Ready")
	}
	return *found, said.Status.LastAttemptedRevision, nil
}

// is waits until a Kustomization is Ready or not, with a reason, at a revision, and returns its message.
func (g *gitops) is(name, revision string, want metav1.ConditionStatus, reason string) string {
	g.t.Helper()
	var message string
	g.until(fmt.Sprintf("Kustomization %s: Ready=%s %s at %s", name, want, reason, revision), func() error {
		found, attempted, err := g.ready(name)
		if err != nil {
			return err
		}
		if message = found.Message; found.Status != want || found.Reason != reason || !strings.Contains(attempted, revision) {
			return fmt.Errorf("at %s it is %s %s: %s", attempted, found.Status, found.Reason, message)
		}
		return nil
	})
	return message
}

// clean waits until no node has a program of Skep's.
func (g *gitops) clean() {
	g.t.Helper()
	g.until("every node to be clean", func() error {
		if slices.ContainsFunc(g.nodes, func(m *machine) bool { return m.pins() > 0 }) {
			return errors.New("there are pins")
		}
		return nil
	})
}

// about is what a folder has in it beside applications: Flux fails where a folder is not there.
func (g *gitops) about(folder string) string {
	g.t.Helper()
	return g.manifests(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "about-" + folder}})
}

// named is fleet under another name.
func named(name, image string) *v1alpha1.ClusterBpfApplication {
	app := fleet(image)
	app.Name = name
	return app
}

// TestFlux has a commit reach the kernel of three nodes by Flux's controllers, and back.
func TestFlux(t *testing.T) {
	g := newGitops(t)
	t.Log("a Kustomization is Ready once programs run on every node")
	g.waitsForNodes()
	t.Log("a denial fails it in the rule's words, and what runs goes on")
	g.deniesWithoutDeleting()
	t.Log("what is deleted from git is unloaded")
	g.prunes()
	t.Log("applications wait for the policy and the signer they depend on")
	g.depends()
	t.Log("Rego sees the service account that Flux impersonates")
	g.impersonates()
	t.Log("what bpfman ran is converted and runs")
	g.comesFromBpfman()
}

// comesFromBpfman commits what an application of bpfman's comes to.
func (g *gitops) comesFromBpfman() {
	g.t.Helper()
	image, _ := g.Push("bpfman:v1", programs.Object("xdp_count"), "team-a")
	converted, err := convert.Convert(g.t.Context(), fmt.Appendf(nil, `apiVersion: bpfman.io/v1alpha1
kind: ClusterBpfApplication
metadata: {name: fleet}
spec:
  nodeSelector: {matchLabels: {role: edge}}
  byteCode: {image: {url: %s}}
  programs:
  - name: count_packets
    type: XDP
    xdp: {links: [{interfaceSelector: {interfaces: [eth0]}, priority: 55}]}
`, image), convert.Options{})
	if err != nil {
		g.t.Fatal(err)
	}
	if len(converted.Documents) != 1 || len(converted.Left) > 0 {
		g.t.Fatalf("it comes to %+v", converted)
	}
	revision := g.commit(map[string]string{"bpfman/fleet.yaml": string(converted.Documents[0].YAML)})
	g.kustomization("bpfman", nil)
	g.is("bpfman", revision, metav1.ConditionTrue, "ReconciliationSucceeded")
	for _, m := range g.nodes {
		m.counts()
	}
	g.commit(map[string]string{"bpfman/fleet.yaml": "", "bpfman/about.yaml": g.about("bpfman")})
	g.until("it to go", func() error {
		err := g.Get(g.t.Context(), client.ObjectKeyFromObject(fleet("")), fleet(""))
		if err == nil {
			err = errors.New("it is there")
		}
		return client.IgnoreNotFound(err)
	})
}

func (g *gitops) waitsForNodes() {
	g.t.Helper()
	image, _ := g.Push("count:v1", programs.Object("xdp_count"), "team-a")
	app := named("counter", image)
	// The first step's node is another one each time: it may be the one that is away.
	app.Spec.Rollout = &v1alpha1.Rollout{Steps: []intstr.IntOrString{intstr.FromString("100%")}}
	g.until("the signer to be active", func() error { return g.Create(g.t.Context(), app.DeepCopy(), client.DryRunAll) })
	away := g.nodes[2]
	// One that never told of itself is unreachable, and nothing waits for it.
	g.until("the node to tell of itself", func() error {
		n := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: away.name}}
		if err := g.Get(g.t.Context(), client.ObjectKeyFromObject(n), n); err != nil {
			return err
		}
		if n.Status.Kernel.Release == "" {
			return errors.New("it did not yet")
		}
		return nil
	})
	away.kill()
	revision := g.commit(map[string]string{"apps/counter.yaml": g.manifests(app)})
	g.kustomization("apps", nil)
	g.until("two nodes to run it", func() error {
		if err := g.Get(g.t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		if n := app.Status.Nodes; n == nil || n.Loaded < 2 {
			return fmt.Errorf("nodes %+v", n)
		}
		return nil
	})
	if found, _, err := g.ready("apps"); err != nil || found.Status == metav1.ConditionTrue {
		g.t.Errorf("with a node that does not run it, Ready is %s, %v", found.Status, err)
	}
	away.start()
	g.is("apps", revision, metav1.ConditionTrue, "ReconciliationSucceeded")
	for _, m := range g.nodes {
		if m.pins() == 0 {
			g.t.Errorf("it is Ready, and %s has no program", m.name)
		}
		m.counts()
	}
}

// deniesWithoutDeleting commits two versions that are denied: one without a signature, and one in words by which Flux
// tells that a field cannot change. With force, it would delete the application and create it anew.
func (g *gitops) deniesWithoutDeleting() {
	g.t.Helper()
	frozen := clusterPolicy("frozen", `deny contains "the image is immutable, as every immutable field" if input.application.metadata.labels.frozen`, "")
	g.create(frozen)
	g.condition(frozen, v1alpha1.ConditionReady, metav1.ConditionTrue, "Active")
	unsigned, _ := g.Push("unsigned:v1", programs.Object("xdp_count_v2"))
	signed, _ := g.Push("count:v2", programs.Object("xdp_count_v2"), "team-a")
	changed := named("counter", signed)
	changed.Labels = map[string]string{"frozen": "yes"}
	uid := g.uid(named("counter", ""))
	for _, c := range []struct {
		app   *v1alpha1.ClusterBpfApplication
		words string
	}{
		{named("counter", unsigned), "ClusterBpfApplication counter: baseline/signed at spec.bytecode.image: no known signer signed"},
		{changed, "the image is unchangeable, as every unchangeable field"},
	} {
		revision := g.commit(map[string]string{"apps/counter.yaml": g.manifests(c.app)})
		message := g.is("apps", revision, metav1.ConditionFalse, "ReconciliationFailed")
		if !strings.Contains(message, c.words) {
			g.t.Errorf("the message does not say %q: %s", c.words, message)
		}
		if now := g.uid(named("counter", "")); now != uid {
			g.t.Fatalf("Flux made it anew: it was %s and is %s", uid, now)
		}
		for _, m := range g.nodes {
			m.counts()
		}
	}
}

// uid is the API server's name of an object: another one where it was deleted and made anew.
func (g *gitops) uid(o client.Object) types.UID {
	g.t.Helper()
	if err := g.Get(g.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		g.t.Fatal(err)
	}
	return o.GetUID()
}

func (g *gitops) prunes() {
	g.t.Helper()
	revision := g.commit(map[string]string{"apps/counter.yaml": "", "apps/about.yaml": g.about("apps")})
	g.is("apps", revision, metav1.ConditionTrue, "ReconciliationSucceeded")
	g.clean()
}

// depends commits a policy that is no Rego, a signer and an application by it, and then corrects the policy.
func (g *gitops) depends() {
	g.t.Helper()
	image, _ := g.Push("ordered:v1", programs.Object("xdp_count"), "team-b")
	app := named("ordered", image)
	names := clusterPolicy("names", `deny contains "nameless" if input.application.metadata.name == ""`, "")
	broken := clusterPolicy("names", "deny contains", "")
	revision := g.commit(map[string]string{
		"ordered-policies/policy.yaml": g.manifests(broken), "ordered-signers/signer.yaml": g.manifests(g.Signer("team-b")),
		"ordered-apps/app.yaml": g.manifests(app),
	})
	on := func(names ...string) map[string]any {
		var refs []any
		for _, n := range names {
			refs = append(refs, map[string]any{"name": n})
		}
		return map[string]any{"dependsOn": refs}
	}
	g.kustomization("ordered-apps", on("ordered-policies", "ordered-signers"))
	g.kustomization("ordered-signers", on("ordered-policies"))
	g.kustomization("ordered-policies", nil)
	g.is("ordered-policies", revision, metav1.ConditionFalse, "ReconciliationFailed")
	g.is("ordered-signers", "", metav1.ConditionFalse, "DependencyNotReady")
	g.is("ordered-apps", "", metav1.ConditionFalse, "DependencyNotReady")
	for _, o := range []client.Object{app, g.Signer("team-b")} {
		if err := g.Get(g.t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			g.t.Errorf("%s is applied before what it depends on: %v", o.GetName(), err)
		}
	}
	revision = g.commit(map[string]string{"ordered-policies/policy.yaml": g.manifests(names)})
	g.is("ordered-apps", revision, metav1.ConditionTrue, "ReconciliationSucceeded")
	g.summary(app, "3/3")
	if failures := g.events("ordered-apps", "ReconciliationFailed"); len(failures) > 0 {
		g.t.Errorf("it was applied too early: %v", failures)
	}
	g.commit(map[string]string{"ordered-apps/app.yaml": "", "ordered-apps/about.yaml": g.about("ordered-apps")})
	g.clean()
}

// events are the messages of a Kustomization's events of a reason.
func (g *gitops) events(name, reason string) (messages []string) {
	g.t.Helper()
	var all corev1.EventList
	if err := g.List(g.t.Context(), &all, client.InNamespace("default")); err != nil {
		g.t.Fatal(err)
	}
	for i := range all.Items {
		if e := &all.Items[i]; e.InvolvedObject.Kind == "Kustomization" && e.InvolvedObject.Name == name && e.Reason == reason {
			messages = append(messages, e.Message)
		}
	}
	return messages
}

// impersonates has two service accounts of the same rights apply the same, of which a policy lets one.
func (g *gitops) impersonates() {
	g.t.Helper()
	for _, account := range []string{"deployer", "other"} {
		g.grants(account)
	}
	only := clusterPolicy("requesters", `deny contains msg if {
	startswith(input.application.metadata.name, "by-")
	input.requester.username != "system:serviceaccount:default:deployer"
	msg := sprintf("requested by %s", [input.requester.username])
}`, "")
	g.create(only)
	g.condition(only, v1alpha1.ConditionReady, metav1.ConditionTrue, "Active")
	image, _ := g.Push("count:v1", programs.Object("xdp_count"), "team-a")
	revision := g.commit(map[string]string{
		"by-deployer/app.yaml": g.manifests(named("by-deployer", image)), "by-other/app.yaml": g.manifests(named("by-other", image)),
	})
	g.kustomization("by-other", map[string]any{"serviceAccountName": "other"})
	g.kustomization("by-deployer", map[string]any{"serviceAccountName": "deployer"})
	message := g.is("by-other", revision, metav1.ConditionFalse, "ReconciliationFailed")
	if words := "requested by system:serviceaccount:default:other"; !strings.Contains(message, words) {
		g.t.Errorf("the message does not say %q: %s", words, message)
	}
	g.is("by-deployer", revision, metav1.ConditionTrue, "ReconciliationSucceeded")
	g.summary(named("by-deployer", image), "3/3")
}

// grants lets a service account write cluster-wide applications.
func (g *gitops) grants(account string) {
	g.t.Helper()
	g.create(
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: account}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: account}, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{v1alpha1.Group}, Resources: []string{"clusterbpfapplications"}, Verbs: []string{"*"},
		}}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: account},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: account}},
		},
	)
}

// BenchmarkCommit commits 1 and 100 applications for three nodes, as YAML and as CUE, and reports the seconds from the
// commit until each is attached on every node, and until the Kustomization is Ready. Flux is told of the commit at once.
func BenchmarkCommit(b *testing.B) {
	for _, many := range []int{1, 100} {
		b.Run(fmt.Sprintf("yaml/%d", many), func(b *testing.B) {
			for b.Loop() {
				g := newGitops(b)
				ref, _ := g.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
				revision := g.commit(map[string]string{"apps/about.yaml": g.about("apps")})
				g.kustomization("apps", nil)
				g.is("apps", revision, metav1.ConditionTrue, "ReconciliationSucceeded")
				files := map[string]string{}
				for i := range many {
					files[fmt.Sprintf("apps/%d.yaml", i)] = g.manifests(spread(i, ref))
				}
				g.measure(b, files, many)
			}
		})
		b.Run(fmt.Sprintf("cue/%d", many), func(b *testing.B) {
			for b.Loop() {
				g := newCUE(b)
				ref, _ := g.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
				revision := g.commit(map[string]string{"cue/apps.cue": spreadCUE(0), "cue/first.cue": firstCUE})
				g.renders(ref)
				g.is("apps", revision, metav1.ConditionTrue, "ReconciliationSucceeded")
				g.measure(b, map[string]string{"cue/apps.cue": spreadCUE(many)}, many+1)
			}
		})
	}
}

// measure commits files and waits until so many applications are there in all.
func (g *gitops) measure(b *testing.B, files map[string]string, many int) {
	b.Helper()
	start := time.Now()
	revision := g.commit(files)
	g.until("every application to be attached", func() error { return g.attached(b.Context(), many) })
	b.ReportMetric(time.Since(start).Seconds(), "s/attached")
	g.is("apps", revision, metav1.ConditionTrue, "ReconciliationSucceeded")
	b.ReportMetric(time.Since(start).Seconds(), "s/Ready")
	b.ReportMetric(0, "ns/op")
}

// traced are ten system calls whose tracepoints are there everywhere.
func traced() []string {
	return []string{"getpid", "getppid", "getuid", "geteuid", "getgid", "getegid", "gettid", "getpgid", "getsid", "getcpu"}
}

// spread is an application that counts one of ten tracepoints, since the kernel takes 64 programs of all nodes on each.
func spread(i int, image string) *v1alpha1.ClusterBpfApplication {
	app := application(fmt.Sprintf("app-%d", i), image)
	app.Spec.Programs[0].Attach = []v1alpha1.Attachment{{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_" + traced()[i%len(traced())]}}
	return app
}

// attached reports how many applications are not on all nodes.
func (g *gitops) attached(ctx context.Context, want int) error {
	var all v1alpha1.ClusterBpfApplicationList
	if err := g.List(ctx, &all); err != nil {
		return err
	}
	n := 0
	for i := range all.Items {
		if nodes := all.Items[i].Status.Nodes; nodes != nil && nodes.Summary == "3/3" {
			n++
		}
	}
	if n < want {
		return fmt.Errorf("%d of %d are", n, want)
	}
	return nil
}
