package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/command"
)

// plugin runs kubectl skep with the kubeconfig of a user, and returns what it prints.
func plugin(t testing.TB, config *rest.Config, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "config")
	if err := writeKubeconfig(config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return pluginBy(t, kubeconfig, args...)
}

// pluginBy runs kubectl skep with a kubeconfig.
func pluginBy(t testing.TB, kubeconfig string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubectl-skep")
	if err := os.Symlink(command.Build(t, "skep"), path); err != nil {
		t.Fatal(err)
	}
	var out, aside bytes.Buffer
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "NO_COLOR=1")
	cmd.Stdout, cmd.Stderr = &out, &aside
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), aside.String(), cmd.ProcessState.ExitCode()
}

// otherTeam is a namespace of others.
const otherTeam = "other-team"

// application makes one in a namespace, with a status that says that a policy denies it.
func (c *cluster) deniedApplication(namespace, name string) {
	c.t.Helper()
	app := &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	app.Spec.Bytecode.Image = "r.example.com/" + name + ":v1"
	app.Spec.Programs = []v1alpha1.Program{{Name: "count", Attach: []v1alpha1.Attachment{{Hook: "tcx/ingress", Pods: &v1alpha1.Pods{}}}}}
	if err := c.Create(c.t.Context(), app); err != nil {
		c.t.Fatal(err)
	}
	app.Status.ObservedGeneration = app.Generation
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionAllowed} {
		app.Status.Conditions = append(app.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: "Denied",
			LastTransitionTime: metav1.Now(), ObservedGeneration: app.Generation,
			Message: "front/priority at spec.programs[0].attach[0].priority: it asks for priority 10 (ask for 100)"})
	}
	if err := c.Status().Update(c.t.Context(), app); err != nil {
		c.t.Fatal(err)
	}
}

// teams has an application in the namespace default and one of another team, and two nodes that report.
func teams(t testing.TB) *cluster {
	c := newCluster(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: otherTeam}}
	if err := c.Create(t.Context(), namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.DeleteAllOf(context.Background(), &v1alpha1.BpfApplication{}, client.InNamespace(otherTeam)); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"a", "b"} {
		n := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Agent.Version = "v9"
		if err := c.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// editor is a user with a client certificate, who may edit applications of the namespace default as by the chart's roles.
func (c *cluster) editor() *rest.Config {
	c.t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "edit"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.Group}, Resources: []string{"bpfapplications"}, Verbs: []string{"get", "list", "watch", "patch"}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "jane"}}}
	for _, o := range []client.Object{role, binding} {
		if err := c.Create(c.t.Context(), o); err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() {
			if err := c.Delete(context.Background(), o); err != nil {
				c.t.Error(err)
			}
		})
	}
	user, err := c.plane.Env.AddUser(envtest.User{Name: "jane"}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return user.Config()
}

// TestTheStatusOfAClusterIsWhatItsCallerMayRead by kubectl's plug-in, of a real API server.
func TestTheStatusOfAClusterIsWhatItsCallerMayRead(t *testing.T) {
	c := teams(t)
	c.deniedApplication("default", "mine")
	c.deniedApplication(otherTeam, "theirs")
	jane := c.editor()
	const why = "\ndefault/mine (Denied for "
	const denied = "  denied  front/priority at spec.programs[0].attach[0].priority\n          it asks for priority 10\n          fix: ask for 100\n"
	for sentence, on := range map[string]struct {
		config     *rest.Config
		args       []string
		has, lacks []string
	}{
		"an admin sees all": {c.plane.Config, []string{"status"}, []string{
			"\nagents             OK       2 report: v9 on 2\n", "\npolicies           OK       0, all ready\n", why, denied, "\nother-team/theirs  False",
			"\ncontroller         Warning  there is no deployments.apps skep-controller in namespace skep-system"}, []string{"Unknown"}},
		"an editor of a namespace sees that": {jane, []string{"status"}, []string{
			"\n8 parts of Skep are not shown: they need rights of an administrator; -o wide names each\n", why, denied,
			"some are not shown: it needs the right to list bpfapplications.skep.dev in every namespace\n"}, []string{"theirs", otherTeam}},
		"with the right of each part": {jane, []string{"status", "-o", "wide"}, []string{
			"\nagents             Unknown  unknown: it needs the right to list bpfnodes.skep.dev\n"}, []string{"theirs", otherTeam}},
		"an admin as that user": {c.plane.Config, []string{"status", "--as", "jane", "-n", "default"}, []string{why, denied}, []string{"theirs", otherTeam}},
		"one application":       {jane, []string{"explain", "mine"}, []string{"BpfApplication default/mine\n", denied, "view.skep.dev"}, []string{"theirs"}},
		"as JSON":               {jane, []string{"status", "-o", "json"}, []string{`"rule": "front/priority"`, `"needs": [`}, []string{"theirs"}},
		"another look at it":    {jane, []string{"reconcile", "default/mine"}, []string{"the controller looks again"}, nil},
	} {
		t.Run(sentence, func(t *testing.T) {
			stdout, stderr, code := plugin(t, on.config, on.args...)
			if code != 0 {
				t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
			}
			for _, want := range on.has {
				if !strings.Contains(stdout, want) {
					t.Errorf("it says:\n%s\nwant %q in it", stdout, want)
				}
			}
			if slices.ContainsFunc(on.lacks, func(not string) bool { return strings.Contains(stdout+stderr, not) }) {
				t.Errorf("it says:\n%s%s\nwant none of %q in it", stdout, stderr, on.lacks)
			}
		})
	}
	for _, args := range [][]string{{"status", "other-team/theirs"}, {"explain", "other-team/theirs"}, {"history", "other-team/theirs"}} {
		if stdout, stderr, code := plugin(t, jane, args...); code == 0 || strings.Contains(stdout+stderr, "priority") {
			t.Errorf("%q of another team: exit code %d, %s%s", args, code, stdout, stderr)
		}
	}
}

// BenchmarkStatusOfACluster with a thousand applications: kubectl's plug-in, from its start to its end.
func BenchmarkStatusOfACluster(b *testing.B) {
	c := teams(b)
	for i := range 1000 {
		c.deniedApplication("default", fmt.Sprintf("app-%d", i))
	}
	longest := time.Duration(0)
	for b.Loop() {
		began := time.Now()
		if stdout, stderr, code := plugin(b, c.plane.Config, "status"); code != 0 || !strings.Contains(stdout, "default/app-999 ") {
			b.Fatal(stderr)
		}
		longest = max(longest, time.Since(began))
	}
	b.ReportMetric(float64(longest.Milliseconds()), "longest-ms")
}
