package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/command"
)

// repository is a folder of definitions, and the command line of those who work in it.
type repository struct {
	*world
	skep, dir string
}

func newRepository(t *testing.T) *repository {
	return &repository{world: newWorld(t), skep: command.Build(t, "skep"), dir: t.TempDir()}
}

// definition is a BpfApplication as an author writes it, without what the API server fills in.
func (r *repository) definition(name, image string, labels ...string) string {
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: %s, labels: {%s}}\n"+
		"spec: {bytecode: {image: %q}, programs: [{name: count_packets, attach: [{hook: xdp, pods: {}, interfaces: {names: [eth0]}}]}]}\n",
		v1alpha1.APIVersion, v1alpha1.KindBpfApplication, name, r.namespace, strings.Join(labels, ", "), image)
}

// write has the folder hold these definitions alone, by name.
func (r *repository) write(definitions ...string) {
	r.t.Helper()
	if err := errors.Join(os.RemoveAll(r.dir), os.Mkdir(r.dir, 0o700)); err != nil {
		r.t.Fatal(err)
	}
	for i, d := range definitions {
		if err := os.WriteFile(filepath.Join(r.dir, fmt.Sprintf("%d.yaml", i)), []byte(d), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
}

// applied has Flux's kustomize-controller apply a definition.
func (r *repository) applied(definition, kustomization string) {
	r.t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(definition), &o.Object); err != nil {
		r.t.Fatal(err)
	}
	labels := o.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels["kustomize.toolkit.fluxcd.io/name"], labels["kustomize.toolkit.fluxcd.io/namespace"] = kustomization, r.namespace
	o.SetLabels(labels)
	if err := admin.Apply(r.t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("kustomize-controller"),
		client.ForceOwnership); err != nil {
		r.t.Fatal(err)
	}
}

// kubeconfig is a user's.
func (r *repository) kubeconfig(user string) string {
	r.t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: plane.Config.Host, CertificateAuthorityData: plane.Config.CAData}
	file.AuthInfos["u"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: plane.Config.CertData, ClientKeyData: plane.Config.KeyData, Impersonate: user, ImpersonateGroups: []string{"system:authenticated"},
	}
	file.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: r.namespace}
	file.CurrentContext = "x"
	path := filepath.Join(r.t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// change is one of skep diff -o json.
type change struct {
	Action, Kind, Name, Answer, Diff string
	Reasons, Warnings                []string
}

// difference is what skep diff printed.
type difference struct {
	Changes   []change
	Unchanged int

	code   int
	stderr string
}

// of is the change of one object.
func (d difference) of(t *testing.T, name string) change {
	t.Helper()
	i := slices.IndexFunc(d.Changes, func(c change) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no change of %s in %+v", name, d)
	}
	return d.Changes[i]
}

// diff compares the folder with the cluster, as a user.
func (r *repository) diff(user string, flags ...string) (d difference) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), r.skep,
		append([]string{"diff", "--from-cluster", "-o", "json", "--kubeconfig", r.kubeconfig(user), r.dir}, flags...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		r.t.Fatal(err)
	}
	d.code, d.stderr = cmd.ProcessState.ExitCode(), said.String()
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &d); err != nil {
			r.t.Fatalf("%v in %s", err, out.String())
		}
	}
	return d
}

func TestADiffIsWhatFluxWouldChange(t *testing.T) {
	r := newRepository(t)
	image := r.signed()
	r.user("ci", "skep-application-editor")
	same, tiered := r.definition("same", image), r.definition("tiered", image, "tier: front")
	r.applied(same, "apps")
	r.applied(tiered, "apps")
	r.applied(r.definition("gone", image), "apps")
	r.applied(r.definition("elsewhere", image), "others")
	r.applied(strings.Replace(r.definition("retained", image), "labels: {}", "labels: {}, annotations: {kustomize.toolkit.fluxcd.io/prune: disabled}", 1), "apps")

	// Neither defaults, nor who asked, nor Flux's own labels are changes; what PATH lacks is removed.
	r.write(same, tiered)
	d := r.diff("ci")
	if len(d.Changes) != 1 || d.of(t, "gone").Action != "removed" || d.Unchanged != 2 || d.code != 1 {
		t.Fatalf("exit code %d, %+v", d.code, d)
	}
	r.write(same, tiered, r.definition("gone", image))
	if d := r.diff("ci"); d.code != 0 || len(d.Changes) != 0 || d.Unchanged != 3 {
		t.Fatalf("exit code %d, %+v", d.code, d)
	}

	// A field that Flux applied and PATH has no more is taken away, by no other manager's name.
	r.write(same, r.definition("tiered", image), r.definition("gone", image), r.definition("fresh", image))
	d = r.diff("ci")
	if c := d.of(t, "tiered"); c.Action != "changed" || c.Answer != "allowed" || !strings.Contains(c.Diff, "\n-    tier: front\n") ||
		strings.Count(c.Diff, "\n-") != 1 ||
		strings.Count(c.Diff, "\n+") != 1 {
		t.Errorf("%+v", c)
	}
	if c := d.of(t, "fresh"); c.Action != "added" || c.Answer != "allowed" || !strings.Contains(c.Diff, "+    - hook: xdp") ||
		strings.Contains(c.Diff, "requester") {
		t.Errorf("%+v", c)
	}
	if d.code != 1 || len(d.Changes) != 2 {
		t.Errorf("exit code %d, %q, %+v", d.code, d.stderr, d)
	}
	if c := r.diff("ci", "--field-manager", "somebody"); len(c.Changes) != 1 || c.Unchanged != 3 {
		t.Errorf("as another manager: %+v", c)
	}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: r.namespace, Name: "fresh"}, &v1alpha1.BpfApplication{}); client.IgnoreNotFound(err) != nil ||
		err == nil {
		t.Errorf("a dry run stored the application: %v", err)
	}
}

// TestADiffTakesWhatTheAPIServerTakes has what kustomize and kubectl add to a definition.
func TestADiffTakesWhatTheAPIServerTakes(t *testing.T) {
	r := newRepository(t)
	name := r.namespace + "-signer"
	signer := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: %s, creationTimestamp: null}\nstatus: {}\n"+
		"spec: {key: {publicKey: k}, revoked: yes}\n", v1alpha1.APIVersion, v1alpha1.KindBpfSigner, name, r.namespace)
	r.user("ci", "skep-policy-admin")
	r.write(signer)
	d := r.diff("ci")
	if c := d.of(t, name); c.Action != "added" || c.Answer == "invalid" || d.stderr != "" && strings.Contains(d.stderr, "not known") {
		t.Errorf("exit code %d, %q, %+v", d.code, d.stderr, c)
	}
}

func TestADiffSaysWhatTheClustersPoliciesAnswer(t *testing.T) {
	r := newRepository(t)
	image := r.signed()
	r.user("ci", "skep-application-editor")
	r.policy("mondays", noMonday)
	r.denies(r.app("app", image), "mondays")
	r.policy("soft", `deny contains {"msg": "late", "path": "spec", "fix": "be early"} if input.application.metadata.labels.late`,
		func(s *v1alpha1.BpfPolicySpec) { s.Admission = v1alpha1.AdmissionWarn })
	away := "127.0.0.1:1/away@sha256:" + strings.Repeat("0", 64)

	r.write(r.definition("spared", image), r.definition("monday", image))
	d := r.diff("ci")
	if c := d.of(t, "monday"); c.Answer != "denied" ||
		!strings.Contains(strings.Join(c.Reasons, "\n"), "mondays/deny at spec.programs: no counting on mondays (come back on tuesday)") ||
		!strings.Contains(c.Diff, "+  name: monday\n") {
		t.Errorf("%+v", c)
	}
	if d.code != 2 || d.of(t, "spared").Answer != "allowed" || !strings.Contains(d.stderr, "/monday: denied; the reasons are above") {
		t.Errorf("exit code %d, %q, %+v", d.code, d.stderr, d)
	}

	r.write(r.definition("spared", image, `late: "true"`))
	r.until(func() error {
		if d = r.diff("ci"); d.code != 2 {
			return fmt.Errorf("the policy is not active: %+v", d)
		}
		return nil
	})
	if c := d.of(t, "spared"); c.Answer != "denied" || len(c.Reasons) != 1 || !strings.HasSuffix(c.Reasons[0], "soft/deny at spec: late (be early)") {
		t.Errorf("%+v", c)
	}

	r.write(r.definition("spared", away))
	d = r.diff("ci")
	if c := d.of(t, "spared"); c.Answer != "unverified" || d.code != 1 || !strings.Contains(strings.Join(c.Reasons, "\n"), "is not verified yet") {
		t.Errorf("exit code %d, %+v", d.code, c)
	}

	// Of a live object that would be denied, the diff is what is known without the API server.
	r.applied(r.definition("spared", image), "apps")
	r.write(strings.Replace(r.definition("spared", image), "count_packets", "count_pakets", 1))
	d = r.diff("ci")
	if c := d.of(t, "spared"); c.Action != "changed" || c.Answer != "denied" || strings.Count(c.Diff, "\n+") != 2 ||
		!strings.Contains(c.Diff, "+    name: count_pakets") ||
		!strings.Contains(c.Reasons[0], "inspect/program at spec.programs[0].name") {
		t.Errorf("%+v", c)
	}
}

func TestADiffOfWhatKubectlApplied(t *testing.T) {
	r := newRepository(t)
	image := r.signed()
	r.user("ci", "skep-application-editor")
	file := filepath.Join(t.TempDir(), "app.yaml")
	if err := os.WriteFile(file, []byte(r.definition("spared", image, "tier: front", "set: mine")+"---\n"+r.definition("other", image, "set: mine")),
		0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), plane.Kubectl, "apply", "--kubeconfig", r.kubeconfig("ci"), "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
	r.write(r.definition("spared", image, "tier: front", "set: mine"))
	if d := r.diff("ci"); d.code != 0 || d.Unchanged != 1 {
		t.Errorf("exit code %d, %+v", d.code, d)
	}
	if d := r.diff("ci", "-l", "set=mine"); len(d.Changes) != 1 || d.of(t, "other").Action != "removed" {
		t.Errorf("by labels: %+v", d)
	}
	r.write(r.definition("spared", image, "set: mine"))
	if c := r.diff("ci").of(t, "spared"); !strings.Contains(c.Diff, "\n-    tier: front\n") || strings.Contains(c.Diff, "last-applied") ||
		strings.Count(c.Diff, "\n-") != 1 {
		t.Errorf("%+v", c)
	}
}

func TestADiffWithoutRightsIsUnknown(t *testing.T) {
	r := newRepository(t)
	image := r.signed()
	r.applied(r.definition("same", image), "apps")
	r.applied(r.definition("gone", image), "apps")
	r.write(r.definition("same", image, "new: label"))
	d := r.diff("nobody")
	if c := d.of(t, "same"); c.Answer != "unknown" || d.code != 2 || !strings.Contains(strings.Join(c.Reasons, ""), "is forbidden") {
		t.Errorf("exit code %d, %+v", d.code, d)
	}

	// With the rights of one namespace, what would be removed is shown of that one.
	r.create(admin, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "team"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "skep-application-editor"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "team-" + r.namespace}},
	})
	r.until(func() error {
		if d = r.diff("team-" + r.namespace); d.code != 1 {
			return fmt.Errorf("the role is not active: %+v", d)
		}
		return nil
	})
	if len(d.Changes) != 2 || d.of(t, "gone").Action != "removed" || d.of(t, "same").Answer != "allowed" {
		t.Errorf("%+v", d)
	}
	for _, caution := range []string{
		"removed objects of the kinds BpfApplication are shown for the namespaces of PATH alone",
		"removed objects of the kinds ClusterBpfApplication, BpfPolicy, ClusterBpfPolicy, BpfSigner, CueArtifact are shown nowhere",
	} {
		if !strings.Contains(d.stderr, caution) {
			t.Errorf("%q is not in %s", caution, d.stderr)
		}
	}
}
