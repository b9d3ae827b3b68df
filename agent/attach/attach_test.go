package attach_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/hook"
)

func TestTheAttachersAreTheHooksThatTheTableCallsAttachable(t *testing.T) {
	var want []string
	for _, h := range hook.All() {
		if h.Attachable {
			want = append(want, h.Name)
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, attach.Hooks()); diff != "" {
		t.Errorf("hook.Table and the attachers differ: %s", diff)
	}
}

func TestAHookTheAgentDoesNotAttachIsRefused(t *testing.T) {
	for _, name := range []string{"lsm", "kprobe", "nope"} {
		_, err := attach.To(attach.Request{Attachment: plan.Attachment{Program: "f", Hook: name}})
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "tcx/ingress") {
			t.Errorf("To %s = %v", name, err)
		}
	}
}

func TestTargetsAreResolvedByWhatTheyAre(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "pods", "one"), 0o755); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(root, "binary")
	write := func() {
		if err := os.WriteFile(binary+".new", []byte("x"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(binary+".new", binary); err != nil {
			t.Fatal(err)
		}
	}
	write()
	resolve := func(a plan.Attachment) plan.Attachment {
		t.Helper()
		got, err := attach.Resolve(a, root)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	cgroup := resolve(plan.Attachment{Hook: "cgroup/bind4", Target: plan.Target{Cgroup: "/pods/one"}})
	if other := resolve(plan.Attachment{Hook: "cgroup/bind4", Target: plan.Target{Cgroup: "/pods"}}); cgroup.CgroupID == 0 || other.CgroupID == cgroup.CgroupID {
		t.Errorf("cgroups %d and %d", cgroup.CgroupID, other.CgroupID)
	}
	// Dots do not lead out of the mount.
	if out := resolve(plan.Attachment{Hook: "cgroup/bind4", Target: plan.Target{Cgroup: "/../../pods/one"}}); out.CgroupID != cgroup.CgroupID {
		t.Errorf("a path with dots is %d, not %d", out.CgroupID, cgroup.CgroupID)
	}
	before := resolve(plan.Attachment{Hook: "uprobe", Target: plan.Target{Binary: binary}})
	// The old inode is kept busy, so that the new file gets another.
	held, err := os.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	write()
	if after := resolve(plan.Attachment{Hook: "uprobe", Target: plan.Target{Binary: binary}}); before.BinaryID == "" || after.Key() == before.Key() {
		t.Errorf("a replaced binary is still %s", after.BinaryID)
	}
	if own := resolve(plan.Attachment{Hook: "sk_lookup"}); own.NetnsID == 0 {
		t.Error("the own network namespace has no id")
	}
}

func TestATargetThatIsNotThereMayCome(t *testing.T) {
	for sentence, a := range map[string]plan.Attachment{
		"a cgroup":            {Hook: "cgroup/bind4", Target: plan.Target{Cgroup: "/nope"}},
		"a binary":            {Hook: "uprobe", Target: plan.Target{Binary: "/nope"}},
		"a network namespace": {Hook: "sk_lookup", Target: plan.Target{NetworkNamespace: "/run/netns/nope"}},
	} {
		if _, err := attach.Resolve(a, t.TempDir()); !errors.Is(err, attach.ErrTarget) {
			t.Errorf("%s: Resolve = %v", sentence, err)
		}
	}
	if _, err := attach.Resolve(plan.Attachment{Hook: "nope"}, ""); err == nil || errors.Is(err, attach.ErrTarget) {
		t.Errorf("an unknown hook: Resolve = %v", err)
	}
}

func TestMalformedTargetsAreRefused(t *testing.T) {
	for _, tracepoint := range []string{"", "sys_enter", "/x", "x/"} {
		_, err := attach.To(attach.Request{Attachment: plan.Attachment{Program: "f", Hook: "tracepoint", Target: plan.Target{Tracepoint: tracepoint}}})
		if err == nil || !strings.Contains(err.Error(), "category/name") {
			t.Errorf("tracepoint %q: To = %v", tracepoint, err)
		}
	}
	_, err := attach.To(attach.Request{Attachment: plan.Attachment{Program: "f", Hook: "uprobe", Target: plan.Target{Binary: "/nope"}}})
	if !errors.Is(err, attach.ErrTarget) {
		t.Errorf("a binary that is not there: To = %v", err)
	}
	if _, err := attach.OrderTCX("tcx/ingress", 1<<30); err == nil {
		t.Error("OrderTCX of an interface that is not there succeeds")
	}
}
