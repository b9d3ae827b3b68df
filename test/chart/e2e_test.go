package chart

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestTheChartCarriesAnApplicationIntoTheKernelAndOut(t *testing.T) {
	// The registry of tests is at loopback, which no tenant may name unless it is listed.
	values := []string{`uninstall.unload=true`, `registries.allowed=["127.0.0.1:*"]`}
	i := newInstall(t, values...)
	i.install(values...)
	controller := i.controller()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	signer := i.Signer("team-a")
	image, _ := i.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	app := &v1alpha1.ClusterBpfApplication{ObjectMeta: metav1.ObjectMeta{Name: "app"}}
	app.Spec.Bytecode.Image = image
	app.Spec.Programs = []v1alpha1.Program{{Name: "tracepoint_count"}}
	for _, o := range []client.Object{node, signer, app} {
		// The API server's own policies learn of new kinds a little later.
		i.until(o.GetName()+" to be taken", func() error { return admin.Create(t.Context(), o) })
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := admin.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	i.until("the application to be sealed", func() error {
		return admin.Get(t.Context(), client.ObjectKey{Name: string(app.UID)}, &v1alpha1.BpfIntent{})
	})
	if !leaks.Isolated() {
		i.stop(controller)
		need.Kernel(t)
	}
	i.loads(app, controller)
}

// loads has the application run on the node, until the chart is uninstalled.
func (i *install) loads(app *v1alpha1.ClusterBpfApplication, controller *process) {
	t := i.t
	bpffs, err := os.MkdirTemp("/sys/fs/bpf", "skepchart")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(bpffs) })
	agent := i.agent("one", bpffs)
	i.until("the application to be ready", func() error {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(app.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("%v", app.Status.Conditions)
		}
		return nil
	})
	if pins(bpffs) == 0 {
		t.Error("nothing is pinned")
	}

	uninstalled := make(chan error, 1)
	go func() {
		_, err := i.helm(t.Context(), "uninstall", "skep")
		uninstalled <- err
	}()
	i.unloads(agent, bpffs)
	i.stop(controller)
	i.completes()
	if err := <-uninstalled; err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{&appsv1.Deployment{}, &appsv1.DaemonSet{}, &batchv1.Job{}, &corev1.Service{}} {
		for _, name := range []string{"skep-controller", "skep-agent", "skep-unload", "skep-webhook"} {
			if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o); !apierrors.IsNotFound(err) {
				t.Errorf("%T %s is left: %v", o, name, err)
			}
		}
	}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
		t.Errorf("the application went with the chart: %v", err)
	}
}

// unloads is what happens while helm waits for its hook: the Job waits for the
// node, and the node is not clean while its agent runs.
func (i *install) unloads(agent *process, bpffs string) {
	t := i.t
	i.until("the Job", func() error {
		return admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "skep-unload"}, &batchv1.Job{})
	})
	cleaner := typed[appsv1.DaemonSet](t, i.objects, "DaemonSet", "skep-unload").Spec.Template
	clean := cleaner.Spec.InitContainers[0]
	more := []string{"--bpffs=" + bpffs, "--state=" + filepath.Join(i.dir, "state")}
	if err := i.start("skep-agent", clean, nil, more...).ends(); err == nil || !strings.Contains(err.Error(), "another agent holds it") {
		t.Errorf("a node is cleaned while its agent runs: %v", err)
	}
	pod := i.cleaning(cleaner)
	if err := i.unload("--timeout=2s").ends(); err == nil || !strings.Contains(err.Error(), "0 of 1 nodes are clean; waiting for one") {
		t.Errorf("it does not wait for the node: %v", err)
	}
	set := &appsv1.DaemonSet{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "skep-agent"}, set); !apierrors.IsNotFound(err) {
		t.Errorf("the agents are still there: %v", err)
	}
	i.stop(agent)
	if pins(bpffs) == 0 {
		t.Error("the program went with the agent")
	}
	if err := i.start("skep-agent", clean, nil, more...).ends(); err != nil {
		t.Errorf("the node is not cleaned: %v", err)
	}
	if n := pins(bpffs); n != 0 {
		t.Errorf("%d pins are left", n)
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}
	if err := admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := i.unload().ends(); err != nil {
		t.Errorf("it waits for a node that is clean: %v", err)
	}
}

// completes has the Job look as its controller leaves it. API servers of 1.30
// know no Job that met its criteria but those with a policy of success.
func (i *install) completes() {
	i.t.Helper()
	job, now := &batchv1.Job{}, metav1.Now()
	if err := admin.Get(i.t.Context(), client.ObjectKey{Namespace: namespace, Name: "skep-unload"}, job); err != nil {
		i.t.Fatal(err)
	}
	job.Status.StartTime, job.Status.CompletionTime, job.Status.Succeeded = &now, &now, 1
	met, complete := batchv1.JobCondition{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, LastTransitionTime: now},
		batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now}
	job.Status.Conditions = []batchv1.JobCondition{met, complete}
	err := admin.Status().Update(i.t.Context(), job.DeepCopy())
	if apierrors.IsInvalid(err) {
		job.Status.Conditions = []batchv1.JobCondition{complete}
		err = admin.Status().Update(i.t.Context(), job)
	}
	if err != nil {
		i.t.Fatal(err)
	}
}

// cleaning has the DaemonSet of cleaners look as its controller makes it: one
// node, one Pod.
func (i *install) cleaning(template corev1.PodTemplateSpec) *corev1.Pod {
	i.t.Helper()
	pod, _ := i.place(template.Spec, template.Labels, "one")
	set := &appsv1.DaemonSet{}
	if err := admin.Get(i.t.Context(), client.ObjectKey{Namespace: namespace, Name: "skep-unload"}, set); err != nil {
		i.t.Fatal(err)
	}
	set.Status.ObservedGeneration, set.Status.DesiredNumberScheduled = set.Generation, 1
	if err := admin.Status().Update(i.t.Context(), set); err != nil {
		i.t.Fatal(err)
	}
	return pod
}

// unload runs the hook's Job.
func (i *install) unload(more ...string) *process {
	i.t.Helper()
	template := typed[batchv1.Job](i.t, i.objects, "Job", "skep-unload").Spec.Template
	_, kubeconfig := i.place(template.Spec, template.Labels, "")
	return i.start("skep-controller", template.Spec.Containers[0], []string{"POD_NAMESPACE=" + namespace}, append(more, "--kubeconfig="+kubeconfig)...)
}

// pins counts the files below a folder.
func pins(folder string) int {
	n := 0
	_ = filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && !d.IsDir() {
			n++
		}
		return nil
	})
	return n
}
