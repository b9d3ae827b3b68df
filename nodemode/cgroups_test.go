package nodemode

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestCgroupsOfAHostAreInThePlaceOfPods: a host without a container runtime has its own.
func TestCgroupsOfAHostAreInThePlaceOfPods(t *testing.T) {
	s := newStage(t)
	name := startInCgroup(t)
	a := &v1alpha1.ClusterBpfApplication{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindClusterBpfApplication}}
	a.Name, a.Spec.Bytecode.Image = "app", s.push(first, "app:v1", "team-a")
	a.Spec.Programs = []v1alpha1.Program{{Name: "tracepoint_count", Attach: []v1alpha1.Attachment{{
		Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getpgid",
		Pods: &v1alpha1.Pods{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{containers.LabelCgroup: name}}}}}}}
	if err := os.WriteFile(filepath.Join(s.defs, "app.yaml"), s.yaml(a), 0o600); err != nil {
		t.Fatal(err)
	}
	h := s.open()
	tick, end := time.NewTicker(50*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for {
		all := s.pass(h)
		if links, _ := filepath.Glob(filepath.Join(s.bpffs, "*", "+links", "*")); len(links) > 0 {
			return
		}
		select {
		case <-end:
			t.Fatalf("nothing is attached: %+v", all["app"])
		case <-tick.C:
		}
	}
}

// startInCgroup starts a process in a cgroup of its own below the root, and returns its name.
func startInCgroup(t *testing.T) string {
	t.Helper()
	root := need.Cgroup(t)
	name := fmt.Sprintf("skep-host-test-%d", os.Getpid())
	dir := filepath.Join(root, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	cgroup, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cgroup.Close()
	waits := exec.CommandContext(t.Context(), "sleep", "600")
	waits.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = waits.Wait() })
	return name
}

func TestARuntimeIsNamedByThePathOfItsSocket(t *testing.T) {
	s := newStage(t)
	h, err := New(t.Context(), Options{Source: s.defs, Policies: []string{s.policies}, Signers: []string{s.signersFile}, State: s.state, BPFFS: s.bpffs,
		RuntimeEndpoint: "run/containerd.sock"})
	if err == nil {
		_ = h.Close()
	}
	if err == nil || !strings.Contains(err.Error(), `"run/containerd.sock"`) {
		t.Errorf("New = %v", err)
	}
}
