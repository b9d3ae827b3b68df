package chart

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/helm"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/recommended"
)

// TestTheCommandsOfTheNotesRun does what helm prints after an installation, in that order.
func TestTheCommandsOfTheNotesRun(t *testing.T) {
	need.Program(t, "sh", "dash")
	i := &install{Chain: supply.New(t), t: t, dir: t.TempDir()}
	i.file("admin", plane.Env.KubeConfig)
	printed, err := i.helm(t.Context(), "install", "skep", folder(), "--take-ownership")
	if err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	t.Cleanup(func() {
		_, _ = i.helm(context.WithoutCancel(t.Context()), "uninstall", "skep", "--no-hooks", "--ignore-not-found")
	})
	i.rolledOut()
	binary, err := helm.Binary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"kubectl": plane.Kubectl, "helm": binary, "skep": command.Build(t, "skep")} {
		if err := os.Symlink(target, filepath.Join(i.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	i.file("application.yaml", []byte("apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: notes}\n"+
		"spec:\n  bytecode: {image: registry.example.com/notes:v1}\n  programs:\n  - name: xdp_count\n    attach: [{hook: xdp, interfaces: {names: [eth0]}}]\n"))
	i.file("xdp_count.o", programs.Object("xdp_count"))
	i.shell("skep image build -f xdp_count.o oci:img:v1")
	found := regexp.MustCompile(`(?m)^ {5}([a-z]+ .+)$`).FindAllStringSubmatch(printed, -1)
	want := []string{
		"kubectl --namespace … rollout status deployment/skep-controller",
		"kubectl --namespace … rollout status daemonset/skep-agent",
		"kubectl get bpfnodes",
		"skep key generate",
		"kubectl apply -f skep.signer.yaml",
		"skep sign --key skep.key REGISTRY/IMAGE:TAG",
		"kubectl apply -f application.yaml",
		"kubectl get clusterbpfapplications,bpfapplications --all-namespaces",
		"helm upgrade … CHART --namespace … --reuse-values --set uninstall.unload=true",
	}
	if len(found) != len(want) {
		t.Fatalf("helm printed\n%s\nwith %d commands, want %d", printed, len(found), len(want))
	}
	for n, m := range found {
		if !recommended.Has(m[1], want[n]) {
			t.Errorf("%q is not %q", m[1], want[n])
		}
		i.shell(strings.NewReplacer("REGISTRY/IMAGE:TAG", "oci:img:v1", "CHART", folder()).Replace(m[1]))
	}
}

// shell runs a command as the admin, in the folder of the test's files.
func (i *install) shell(line string) {
	i.t.Helper()
	run := exec.CommandContext(i.t.Context(), "sh", "-c", line)
	run.Dir = i.dir
	run.Env = append(os.Environ(), "PATH="+i.dir+":"+os.Getenv("PATH"), "KUBECONFIG="+filepath.Join(i.dir, "admin"))
	if out, err := run.CombinedOutput(); err != nil {
		i.t.Errorf("%s: %v\n%s", line, err, out)
	}
}

// rolledOut says of the chart's Pods that they run, as controllers of a cluster would, and has no webhook of theirs asked.
func (i *install) rolledOut() {
	i.t.Helper()
	var d appsv1.Deployment
	var a appsv1.DaemonSet
	for name, o := range map[string]client.Object{"skep-controller": &d, "skep-agent": &a} {
		if err := admin.Get(i.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o); err != nil {
			i.t.Fatal(err)
		}
	}
	n := *d.Spec.Replicas
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
	a.Status = appsv1.DaemonSetStatus{ObservedGeneration: a.Generation, DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, UpdatedNumberScheduled: 1,
		NumberReady: 1, NumberAvailable: 1}
	for _, o := range []client.Object{&d, &a} {
		if err := admin.Status().Update(i.t.Context(), o); err != nil {
			i.t.Fatal(err)
		}
	}
	for _, o := range []client.Object{
		&admissionregistrationv1.ValidatingWebhookConfiguration{}, &admissionregistrationv1.MutatingWebhookConfiguration{},
	} {
		o.SetName("skep")
		if err := client.IgnoreNotFound(admin.Delete(i.t.Context(), o)); err != nil {
			i.t.Fatal(err)
		}
	}
}
