package attach_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/hook"
)

func TestTheAttachersAreTheHooksThatTheTableCallsAttachable(t *testing.T) {
	var want []string
	for _, h := range hook.All() {
		if h.Attachable && !h.RunsOnce() {
			want = append(want, h.Name)
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, attach.Hooks()); diff != "" {
		t.Errorf("hook.Table and the attachers differ: %s", diff)
	}
}

func TestAHookTheAgentDoesNotAttachIsRefused(t *testing.T) {
	for _, name := range []string{"struct_ops", "freplace", "nope"} {
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
		got, err := resolve(a, attach.Host{CgroupRoot: root})
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
		if _, err := resolve(a, attach.Host{CgroupRoot: t.TempDir()}); !errors.Is(err, attach.ErrTarget) {
			t.Errorf("%s: Resolve = %v", sentence, err)
		}
	}
	if _, err := resolve(plan.Attachment{Hook: "nope"}, attach.Host{}); err == nil || errors.Is(err, attach.ErrTarget) {
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
	if _, err := attach.Order("tcx/ingress", plan.Device{Index: 1 << 30}, nil); err == nil {
		t.Error("Order of an interface that is not there succeeds")
	}
}

// TestATargetOfAnotherKindIsRefusedAtOnce: open(2) of a named pipe waits for who
// writes to it, and nobody does.
func TestATargetOfAnotherKindIsRefusedAtOnce(t *testing.T) {
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "file")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for sentence, c := range map[string]struct {
		at   plan.Attachment
		root string
		want []string
	}{
		"a pipe for a binary": {
			plan.Attachment{Hook: "uprobe", Target: plan.Target{Binary: pipe, Symbol: "main"}}, dir, []string{pipe, "named pipe", "regular file"},
		},
		"a pipe for a returning one": {plan.Attachment{Hook: "uretprobe", Target: plan.Target{Binary: pipe, Symbol: "main"}}, dir, []string{pipe, "named pipe"}},
		"a device for a binary":      {plan.Attachment{Hook: "uprobe", Target: plan.Target{Binary: "/dev/null"}}, dir, []string{"a device"}},
		"a directory for a binary":   {plan.Attachment{Hook: "uprobe", Target: plan.Target{Binary: dir}}, dir, []string{"a directory"}},
		"a pipe for a namespace": {
			plan.Attachment{Hook: "sk_lookup", Target: plan.Target{NetworkNamespace: pipe}}, dir, []string{pipe, "named pipe", "network namespace"},
		},
		"a file for a namespace": {plan.Attachment{Hook: "sk_lookup", Target: plan.Target{NetworkNamespace: file}}, dir, []string{"a file", "network namespace"}},
		"a pipe for a cgroup":    {plan.Attachment{Hook: "cgroup/bind4", Target: plan.Target{Cgroup: "/pipe"}}, dir, []string{pipe, "named pipe", "a cgroup"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			for name, try := range map[string]func() error{
				"Resolve": func() error { _, err := resolve(c.at, attach.Host{CgroupRoot: c.root}); return err },
				"To": func() error {
					_, err := attach.To(attach.Request{Attachment: c.at, Host: attach.Host{CgroupRoot: c.root}})
					return err
				},
			} {
				done := make(chan error, 1)
				go func() { done <- try() }()
				select {
				case err := <-done:
					if !errors.Is(err, attach.ErrTarget) {
						t.Errorf("%s = %v", name, err)
						continue
					}
					for _, want := range c.want {
						if !strings.Contains(err.Error(), want) {
							t.Errorf("%s: %q does not say %q", name, err, want)
						}
					}
				case <-time.After(time.Minute):
					t.Fatalf("%s waits for a writer", name)
				}
			}
		})
	}
}

func TestWithoutAMountedHierarchyOnlyCgroupsAreRefused(t *testing.T) {
	at := plan.Attachment{Hook: "cgroup/bind4", Target: plan.Target{Cgroup: "/"}}
	if _, err := resolve(at, attach.Host{}); err == nil || !strings.Contains(err.Error(), "mount -t cgroup2") {
		t.Errorf("Resolve of a cgroup = %v", err)
	}
	if _, err := resolve(plan.Attachment{Hook: "sk_lookup"}, attach.Host{}); err != nil {
		t.Errorf("Resolve of a network namespace = %v", err)
	}
}

// resolve returns the attachment with its one target.
func resolve(a plan.Attachment, host attach.Host) (plan.Attachment, error) {
	all, err := attach.Resolve(a, host)
	if err == nil {
		a.Target = all[0]
	}
	return a, err
}
