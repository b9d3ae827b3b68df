package rollout

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/kubeconfig"
	"github.com/skep-dev/skep/test/harness/controlplane"
	"github.com/skep-dev/skep/test/harness/hostile"
	"github.com/skep-dev/skep/text"
)

// fleet is a cluster with one application whose status tests write.
type fleet struct {
	client.Client
	t      *testing.T
	config string
	app    *v1alpha1.BpfApplication
}

func newFleet(t *testing.T) *fleet {
	plane, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Stop() })
	scheme := runtime.NewScheme()
	v1alpha1.AddToScheme(scheme)
	f := &fleet{t: t, config: filepath.Join(t.TempDir(), "config")}
	if f.Client, err = client.New(plane.Config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	if err := plane.WriteKubeconfig(f.config); err != nil {
		t.Fatal(err)
	}
	f.app = &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "default"}}
	f.app.Spec.Bytecode.Image, f.app.Spec.Programs = "r.example.com/x:v1", []v1alpha1.Program{{Name: "f"}}
	if err := f.Create(t.Context(), f.app); err != nil {
		t.Fatal(err)
	}
	return f
}

// says writes a status: its Ready condition, and all edit adds.
func (f *fleet) says(ready metav1.ConditionStatus, message string, edit func(*v1alpha1.BpfApplicationStatus)) {
	f.t.Helper()
	s := v1alpha1.BpfApplicationStatus{ObservedGeneration: f.app.Generation}
	now := metav1.Now()
	s.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: ready, Reason: "R", Message: message, LastTransitionTime: now}}
	edit(&s)
	f.app.Status = s
	if err := f.Status().Update(f.t.Context(), f.app); err != nil {
		f.t.Fatal(err)
	}
}

// skep runs a command and returns what it printed.
func (f *fleet) skep(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	root := &cobra.Command{SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(New())
	root.SetOut(&out)
	root.SetErr(os.Stderr)
	root.SetArgs(append(args, "--kubeconfig="+f.config))
	err := root.ExecuteContext(ctx)
	return out.String(), err
}

// annotation is what the application has.
func (f *fleet) annotation(name string) string {
	f.t.Helper()
	if err := f.Get(f.t.Context(), client.ObjectKeyFromObject(f.app), f.app); err != nil {
		f.t.Fatal(err)
	}
	return f.app.Annotations[name]
}

func TestRolloutsAreFollowedAndSteered(t *testing.T) {
	f := newFleet(t)
	stalled := func(s *v1alpha1.BpfApplicationStatus) {
		s.Conditions = append(s.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: metav1.Now(),
		})
	}
	f.says(metav1.ConditionTrue, "loaded on 3 of 3 nodes", func(s *v1alpha1.BpfApplicationStatus) { s.Serial = 7 })
	out, err := f.skep(t.Context(), "rollout", "status", "bpfapp/app")
	if want := "bpfapplication.skep.dev/app: loaded on 3 of 3 nodes\n"; err != nil || out != want {
		t.Errorf("status of what is everywhere: %q, %v; want %q", out, err, want)
	}
	if _, err := f.skep(t.Context(), "rollout", "resume", "bpfapp/app"); err == nil || !strings.Contains(err.Error(), "nothing to resume") {
		t.Errorf("resume of what is everywhere: %v", err)
	}
	if _, err := f.skep(t.Context(), "rollout", "undo", "bpfapp/app"); err == nil || !strings.Contains(err.Error(), "no version before") {
		t.Errorf("undo of a first version: %v", err)
	}

	digest := "sha256:" + strings.Repeat("a", 64)
	f.says(metav1.ConditionFalse, "stopped at step 1 of 2: node-1: R1 is scalar", func(s *v1alpha1.BpfApplicationStatus) {
		stalled(s)
		s.Serial, s.PreviousDigest = 8, digest
		s.Rollout = &v1alpha1.RolloutStatus{State: v1alpha1.RolloutStopped, Step: 1, Steps: 2}
	})
	if _, err := f.skep(t.Context(), "rollout", "status", "bpfapplications.skep.dev/app", "-n", "default"); err == nil ||
		!strings.Contains(err.Error(), "app: stopped at step 1 of 2: node-1: R1 is scalar") {
		t.Errorf("status of what is stopped: %v", err)
	}
	if _, err := f.skep(t.Context(), "rollout", "resume", "bpfapp/app"); err != nil || f.annotation(v1alpha1.AnnotationResume) != "8" {
		t.Errorf("resume: %v; annotated %q", err, f.app.Annotations)
	}
	out, err = f.skep(t.Context(), "rollout", "undo", "bpfapp/app")
	if err != nil || !strings.Contains(out, "aaaaaaaaaaaa") || f.annotation(v1alpha1.AnnotationUndo) != strconv.FormatInt(f.app.Generation, 10) {
		t.Errorf("undo: %q, %v; annotated %q", out, err, f.app.Annotations)
	}

	f.says(metav1.ConditionFalse, "rolled back", func(s *v1alpha1.BpfApplicationStatus) {
		stalled(s)
		s.Rollout = &v1alpha1.RolloutStatus{State: v1alpha1.RolloutRolledBack}
	})
	if _, err := f.skep(t.Context(), "rollout", "undo", "bpfapp/app"); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("undo of what is rolled back: %v", err)
	}
	if _, err := f.skep(t.Context(), "rollout", "resume", "bpfapp/app"); err != nil || f.annotation(v1alpha1.AnnotationUndo) != "" {
		t.Errorf("resume of what is rolled back: %v; annotated %q", err, f.app.Annotations)
	}

	t.Log("of what is suspended it says what waits for that")
	for want, rollout := range map[string]v1alpha1.RolloutStatus{
		"app: the rollout waits at step 1 of 2: it is suspended": {State: v1alpha1.RolloutPaused, Step: 1, Steps: 2},
		"app: the version before comes back once it is not; it is suspended": {
			State: v1alpha1.RolloutStopped, Message: "the version before comes back once it is not",
		},
	} {
		f.says(metav1.ConditionTrue, "it is suspended", func(s *v1alpha1.BpfApplicationStatus) { s.Rollout = &rollout })
		if _, err := f.skep(t.Context(), "rollout", "status", "bpfapp/app"); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("status of what is suspended: %v, want %q", err, want)
		}
	}

	t.Log("it is waited for")
	f.says(metav1.ConditionFalse, "step 1 of 2", func(*v1alpha1.BpfApplicationStatus) {})
	if _, err := f.skep(t.Context(), "rollout", "status", "bpfapp/app", "--timeout=10ms"); err == nil ||
		!strings.Contains(err.Error(), "it is not over: step 1 of 2") {
		t.Errorf("status that times out: %v", err)
	}
	done := make(chan string, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		out, err := f.skep(ctx, "rollout", "status", "bpfapp/app")
		done <- out + errText(err)
	}()
	f.says(metav1.ConditionTrue, "loaded on 3 of 3 nodes", func(*v1alpha1.BpfApplicationStatus) {})
	if out := <-done; !strings.HasSuffix(out, "loaded on 3 of 3 nodes\n") {
		t.Errorf("it waited and said %q", out)
	}

	t.Log("no message reaches the terminal as it is")
	for ready, rollout := range map[metav1.ConditionStatus]*v1alpha1.RolloutStatus{
		metav1.ConditionFalse: nil, metav1.ConditionTrue: {State: v1alpha1.RolloutStopped, Message: hostile.Text}, metav1.ConditionUnknown: nil,
	} {
		f.says(ready, hostile.Text, func(s *v1alpha1.BpfApplicationStatus) {
			s.PreviousDigest, s.Rollout = hostile.Text, rollout
			if ready == metav1.ConditionUnknown {
				stalled(s)
			}
		})
		for _, args := range [][]string{{"status", "--watch=false"}, {"status", "--timeout=10ms"}, {"undo"}} {
			out, err := f.skep(t.Context(), append([]string{"rollout", args[0], "bpfapp/app"}, args[1:]...)...)
			hostile.Check(t, "rollout "+args[0], out+text.Printable(errText(err)))
		}
		f.annotation(v1alpha1.AnnotationUndo)
	}

	for arg, want := range map[string]string{
		"app":         "names no application",
		"pod/app":     "is no application's type",
		"cbpfapp/app": "not found",
	} {
		if _, err := f.skep(t.Context(), "rollout", "status", arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestReconcileAsksAsFluxDoes looks at the annotation that the controller answers.
func TestReconcileAsksAsFluxDoes(t *testing.T) {
	f := newFleet(t)
	reconcile := func(arg string) (string, error) {
		var (
			k   kubeconfig.Flags
			out bytes.Buffer
		)
		cmd := &cobra.Command{
			Use: "reconcile", SilenceUsage: true, SilenceErrors: true,
			RunE: func(cmd *cobra.Command, args []string) error { return Reconcile(cmd.Context(), &out, &k, args[0]) },
		}
		k.Register(cmd)
		skep := &cobra.Command{}
		skep.AddCommand(cmd)
		skep.SetArgs([]string{"reconcile", arg, "-n", "default", "--kubeconfig=" + f.config})
		return out.String(), skep.ExecuteContext(t.Context())
	}
	if _, err := reconcile("bpfapp/another"); err == nil {
		t.Error("what is not there is looked at")
	}
	before := ""
	for range 2 {
		if _, err := reconcile("bpfapp/app"); err != nil {
			t.Fatal(err)
		}
		asked := f.annotation("reconcile.fluxcd.io/requestedAt")
		if _, err := time.Parse(time.RFC3339Nano, asked); err != nil || asked == before {
			t.Errorf("it has the annotation %q after %q", asked, before)
		}
		before = asked
	}
	if IsTarget("app") || IsTarget("team/app") || !IsTarget("cbpfapp/app") {
		t.Error("names of a host's applications are taken for those of a cluster")
	}
}
