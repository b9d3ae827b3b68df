package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/recommended"
)

const viewBase = "/apis/" + view.GroupVersion

// manages runs controllers of Kubernetes' own until the test ends.
func (w *mapsWorld) manages(controllers string) {
	t := w.t
	t.Helper()
	binary := filepath.Join(filepath.Dir(w.plane.Kubectl), "kube-controller-manager")
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("SKIPPED: these binaries have no kube-controller-manager: %v", err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := writeKubeconfig(w.plane.Config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "--kubeconfig="+kubeconfig, "--controllers="+controllers, "--leader-elect=false", "--secure-port=0")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := child.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(said.String()[max(0, said.Len()-4000):])
		}
	})
}

// kubectl runs kubectl as a user with a client certificate.
func (w *mapsWorld) kubectl(as *rest.Config, args ...string) (string, error) {
	w.t.Helper()
	kubeconfig := filepath.Join(w.t.TempDir(), "kubeconfig")
	if err := writeKubeconfig(as, kubeconfig); err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(w.t.Context(), w.plane.Kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HOME="+w.t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// edits gives a user the role edit in a namespace.
func (w *mapsWorld) edits(name, namespace string) *rest.Config {
	w.t.Helper()
	w.create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}}})
	return w.as(name)
}

// viewOf is the path of the description of exec-snoop of a namespace.
func viewOf(namespace string) string {
	return viewBase + "/namespaces/" + namespace + "/bpfapplications/exec-snoop/view"
}

// podless is a container runtime without pods.
type podless struct {
	cri.UnimplementedRuntimeServiceServer
}

// ListPodSandbox implements cri.RuntimeServiceServer.
func (podless) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{}, nil
}

// ListContainers implements cri.RuntimeServiceServer.
func (podless) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	return &cri.ListContainersResponse{}, nil
}

// hasRuntime starts the node anew, with a container runtime.
func (w *mapsWorld) hasRuntime() {
	w.t.Helper()
	socket := filepath.Join(w.t.TempDir(), "cri.sock")
	l, err := (&net.ListenConfig{}).Listen(w.t.Context(), "unix", socket)
	if err != nil {
		w.t.Fatal(err)
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, podless{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	w.t.Cleanup(func() {
		server.Stop()
		<-served
	})
	w.node.kill()
	w.node.flags = append(w.node.flags, "--container-runtime-endpoint", "unix://"+socket)
	w.node.start()
}

// snoops has a namespace run exec-snoop, of which the node has no pods.
func (w *mapsWorld) snoops(namespace string) {
	w.t.Helper()
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	var cluster v1alpha1.ClusterBpfApplication
	if err := w.Get(w.t.Context(), client.ObjectKey{Name: "exec-snoop"}, &cluster); err != nil {
		w.t.Fatal(err)
	}
	cluster.Spec.Programs[0].Attach[0].Pods = &v1alpha1.Pods{}
	w.create(&v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "exec-snoop"}, Spec: cluster.Spec})
}

// TestWhatRunsIsSeenByRightsOfKubernetes with the roles of the chart, kubectl, client certificates and a real agent.
func TestWhatRunsIsSeenByRightsOfKubernetes(t *testing.T) {
	w := newMapsWorld(t)
	w.installs("roles.yaml")
	w.manages("namespace-controller,clusterrole-aggregation-controller")
	w.hasRuntime()
	for _, namespace := range []string{"team-a", "team-b"} {
		w.snoops(namespace)
	}
	editor := w.edits("editor", "team-a")
	w.bind("operator", "skep-cluster-viewer")
	operator, node := w.as("operator"), w.node.name
	w.until("an editor to see the attachments of the namespace", func() error {
		out, err := w.kubectl(editor, "get", "bpfattachments", "-n", "team-a")
		if err != nil || !strings.Contains(out, "NoPods") {
			return fmt.Errorf("%w: %s", errors.Join(err, errors.New("no attachment")), out)
		}
		return nil
	})
	w.until("the operator to see both", func() error {
		if out, err := w.kubectl(operator, "get", "bpfattachments", "-A"); err != nil || strings.Count(out, "NoPods") != 2 {
			return fmt.Errorf("%w: %s", errors.Join(err, errors.New("not both")), out)
		}
		return nil
	})
	w.until("kubectl to explain a field", func() error {
		out, err := w.kubectl(editor, "explain", "clusterbpfattachments.target")
		if err != nil || !strings.Contains(out, "KIND:       ClusterBpfAttachment") || !strings.Contains(out, "Tracepoint is a tracepoint") {
			return fmt.Errorf("%w: %s", errors.Join(err, errors.New("it is not explained")), out)
		}
		return nil
	})
	names, err := w.kubectl(editor, "get", "bpfat", "-n", "team-a", "-o", "name")
	name := strings.TrimSpace(names)
	if err != nil || !strings.HasPrefix(name, "bpfattachment.view.skep.dev/exec-snoop."+node+".") {
		t.Fatal(err, names)
	}
	for sentence, c := range map[string]struct {
		as    *rest.Config
		args  string
		wants []string
		lacks string
		fails bool
	}{
		"the namespace":                {editor, "get bpfattachments -n team-a", []string{"NODE", "TARGET", node, "snoop", "NoPods"}, "MESSAGE", false},
		"more of it":                   {editor, "get bpfattachments -n team-a -o wide", []string{"MESSAGE", "POSITION", "NAME"}, "team-b", false},
		"an object":                    {editor, "get -n team-a -o yaml " + name, []string{"kind: BpfAttachment", "namespace: team-a"}, "team-b", false},
		"what of it chooses":           {editor, "get bpfat -n team-a --field-selector state=Attached", []string{"No resources found"}, node, false},
		"by a label":                   {editor, "get bpfat -n team-a -o json -l view.skep.dev/node=" + node, []string{`"program": "snoop"`}, "team-b", false},
		"in the order of a field":      {editor, "get bpfat -n team-a --sort-by=.state", []string{"STATE", "NoPods"}, "team-b", false},
		"no watch, whatever the right": {w.plane.Config, "get bpfattachments -A -w", []string{"(MethodNotAllowed)", "this API has no watch"}, "forbidden", true},
		"its application":              {editor, "get --raw " + viewOf("team-a"), []string{`"kind":"NodeViewList"`, `"namespace":"team-a"`}, "team-b", false},
		"a description":                {editor, "describe -n team-a " + name, []string{"Hook:", "tracepoint"}, "team-b", false},
		"an application":               {editor, "describe -n team-a bpfview exec-snoop", []string{"Attachments:", node, "NoPods", "Age", "From"}, "team-b", false},
		"all of the namespace":         {editor, "describe -n team-a bpfview", []string{"Attachments:", "NoPods"}, "team-b", false},
		"a list of them":               {editor, "get -n team-a bpfview", []string{"NAME", "READY", "exec-snoop"}, "team-b", false},
		"no application of another":    {editor, "describe -n team-b bpfview exec-snoop", []string{"forbidden"}, node, true},
		"plain names are of objects":   {editor, "get -n team-a bpfapplications,bpfapplication,bpfapp -o name", []string{"bpfapplication.skep.dev/"}, "view.", false},
		"no other namespace":           {editor, "get bpfattachments -n team-b", []string{"forbidden"}, node, true},
		"no object of another":         {editor, "get -n team-b " + name, []string{"forbidden"}, node + " ", true},
		"no description of another":    {editor, "get --raw " + viewOf("team-b"), []string{"orbidden"}, node, true},
		"not all namespaces":           {editor, "get bpfattachments -A", []string{"forbidden"}, node, true},
		"none of the cluster":          {editor, "get clusterbpfattachments", []string{"forbidden"}, node, true},
		"no list of nodes":             {editor, "get nodeviews", []string{"forbidden"}, node, true},
		"no node":                      {editor, "get nodeviews " + node, []string{"forbidden"}, "KERNEL", true},
		"nothing":                      {w.as("nobody"), "get bpfattachments -n team-a", []string{"forbidden"}, node, true},
		"by the operator: all":         {operator, "get bpfattachments -A", []string{"NAMESPACE", "team-a", "team-b"}, "MESSAGE", false},
		"by the operator: the cluster": {operator, "get cbpfat", []string{"tracepoint", "sys_enter_execve", "Attached"}, "team-a", false},
		"by the operator: one of them": {operator, "describe cbpfview exec-snoop", []string{"sys_enter_execve", "Attached"}, "team-b", false},
		"with its events":              {w.plane.Config, "describe cbpfview exec-snoop", []string{"sys_enter_execve", "Age", "From", "loaded on 1 of 1"}, "", false},
		"by the operator: nodes":       {operator, "get nodeviews", []string{"APPLICATIONS", "KERNEL", "AGENT", node}, "", false},
		"by the operator: a node":      {operator, "get nodeviews " + node + " -o json", []string{`"namespace": "team-b"`, `"kind": "NodeView"`}, "", false},
		"by the operator: no maps":     {operator, "get --raw " + mapsOf + "?node=" + node, []string{"orbidden"}, "events", true},
	} {
		t.Run(sentence, func(t *testing.T) {
			out, err := w.kubectl(c.as, strings.Fields(c.args)...)
			t.Logf("$ kubectl %s\n%s", c.args, out)
			if (err != nil) != c.fails || c.lacks != "" && strings.Contains(out, c.lacks) {
				t.Errorf("%v, with %q", err, c.lacks)
			}
			for _, want := range c.wants {
				if !strings.Contains(out, want) {
					t.Errorf("it lacks %q", want)
				}
			}
		})
	}
	w.refusesOthers(t, viewBase+"/nodeviews/"+node, operator)
	w.day(t, editor, operator)
	t.Run("the page", func(t *testing.T) { w.page(t, editor) })
	w.describesMuch(t, operator)
	w.losesItsNode(t, operator)
	w.losesItsController(t)
}

// describesMuch has an application run on more interfaces than a description shows: its sentence has the command that lists all.
func (w *mapsWorld) describesMuch(t *testing.T, operator *rest.Config) {
	t.Run("what a description leaves out", func(t *testing.T) {
		const pairs = 60
		w.node.inNode("sh", "-c", fmt.Sprintf("for i in $(seq %d); do ip link add many$i type veth peer name many-$i || exit 1; done", pairs))
		ref, _ := w.Push("everywhere:v1", programs.Object("tcx_count"), "team-a")
		app := fleet(ref)
		app.Name, app.Spec.Programs = "everywhere", []v1alpha1.Program{{Name: "count_ingress", Attach: []v1alpha1.Attachment{
			{Hook: "tcx/ingress", Interfaces: &v1alpha1.Interfaces{Names: []string{"many*"}}}}}}
		w.create(app)
		w.summary(app, "1/1")
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		if err := writeKubeconfig(operator, kubeconfig); err != nil {
			t.Fatal(err)
		}
		t.Setenv("KUBECONFIG", kubeconfig)
		t.Setenv("PATH", filepath.Dir(w.plane.Kubectl)+":"+os.Getenv("PATH"))
		out, err := w.kubectl(operator, "describe", "cbpfview", "everywhere")
		if err != nil || strings.Count(out, "tcx/ingress") != 100 {
			t.Fatal(err, out)
		}
		all := recommended.Run(t, out, "kubectl get clusterbpfattachments --field-selector application=…")
		if got := strings.Count(all, "tcx/ingress"); got != 2*pairs {
			t.Errorf("%d attachments, not %d:\n%s", got, 2*pairs, all)
		}
	})
}

// losesItsNode kills the agent: a list shows the rest and warns.
func (w *mapsWorld) losesItsNode(t *testing.T, operator *rest.Config) {
	t.Run("a node that does not answer is a warning", func(t *testing.T) {
		w.node.kill()
		out, err := w.kubectl(operator, "get", "bpfattachments", "-A")
		if err != nil || !strings.Contains(out, "Warning: node "+w.node.name) {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// losesItsController ends the controller, measures how long a namespace is not deleted, and begins another.
func (w *mapsWorld) losesItsController(t *testing.T) {
	t.Run("a namespace is deleted once the controller is back", func(t *testing.T) {
		deletes := func(name string) (gone func() error) {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
			w.create(namespace)
			if err := w.Delete(t.Context(), namespace); err != nil {
				t.Fatal(err)
			}
			return func() error {
				if err := w.Get(t.Context(), client.ObjectKeyFromObject(namespace), namespace); !apierrors.IsNotFound(err) {
					return fmt.Errorf("it is there: %w, %v", err, namespace.Status.Conditions)
				}
				return nil
			}
		}
		began := time.Now()
		w.until("a namespace to be deleted", deletes("first"))
		t.Logf("with the controller: %s", time.Since(began))
		w.stop()
		w.until("the API to be away", func() error {
			if out, err := w.kubectl(w.plane.Config, "get", "apiservice", "v1alpha1.view.skep.dev"); err != nil || !strings.Contains(out, "False") {
				return errors.Join(err, errors.New(out))
			}
			return nil
		})
		began = time.Now()
		gone := deletes("second")
		w.until("the namespace to say why it stays", func() error {
			var namespace corev1.Namespace
			if err := w.Get(t.Context(), client.ObjectKey{Name: "second"}, &namespace); err != nil {
				return err
			}
			for _, c := range namespace.Status.Conditions {
				if c.Type == corev1.NamespaceDeletionDiscoveryFailure && c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "view.skep.dev") {
					t.Logf("after %s: %s", time.Since(began), c.Message)
					return nil
				}
			}
			return fmt.Errorf("%v", namespace.Status.Conditions)
		})
		if err := gone(); err == nil {
			t.Error("it is deleted without the controller")
		}
		w.again()
		began = time.Now()
		w.until("the namespace to be deleted after all", gone)
		t.Logf("after the controller is back: %s", time.Since(began))
	})
}
