package agent_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/recommended"
)

// silent mounts a file system whose server answers nothing. A caller waits until the
// server ends, or the mount is taken away by force.
func silent(t *testing.T, dir string) {
	t.Helper()
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("SKIPPED: needs FUSE:", err)
	}
	if err := unix.Mount("skep-test", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server)); err != nil {
		_ = unix.Close(server)
		t.Skip("SKIPPED: needs FUSE:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
		if err := unix.Close(server); err != nil {
			t.Error(err)
		}
	})
}

// TestAPathThatDoesNotAnswerDelaysNobodyElse has the targets of an application lie on a
// file system whose server hangs.
func TestAPathThatDoesNotAnswerDelaysNobodyElse(t *testing.T) {
	need.Kernel(t)
	for sentence, at := range map[string]func(path string) v1alpha1.Attachment{
		"a binary": func(path string) v1alpha1.Attachment {
			return v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: path, Symbol: "main"}}
		},
		"a network namespace": func(path string) v1alpha1.Attachment {
			return v1alpha1.Attachment{Hook: "sk_lookup", NetworkNamespace: path}
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			veth(t, "cn0", "cn1")
			a, _ := w.start()
			dir := t.TempDir()
			body, symbol, offset := probed(t, false)
			shell := filepath.Join(t.TempDir(), "shell")
			if err := os.WriteFile(shell, body, 0o755); err != nil {
				t.Fatal(err)
			}
			silent(t, dir)
			gone := w.intent("gone", "raw_tp_count", rawProgram())
			if err := w.accept(a, gone, w.member("heals", "xdp_count", "count_packets", 1)); err != nil {
				t.Fatal(err)
			}
			var hung []v1alpha1.Attachment
			for i := range 9 {
				hung = append(hung, at(filepath.Join(dir, fmt.Sprint(i))))
			}
			p := w.version("1", hung[0])
			p.Application.Name, p.UID = "hung", "uid-hung"
			p.Programs[0].Attach = hung
			waits := w.accept(a, p)
			if waits == nil || !strings.Contains(waits.Error(), filepath.Join(dir, "0")+": its file system does not answer") {
				t.Fatalf("Settled = %v", waits)
			}
			if n := a.Lookups(); n != 4 {
				t.Errorf("%d look-ups wait", n)
			}
			l, err := link.NewFromID(link.ID(chainsOf(t, a)[0].LinkID))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			if err := errors.Join(l.Detach(),
				a.Accept(w.seal(w.tombstone(gone)),
					w.seal(w.version("2", v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: shell, Symbol: symbol, Offset: offset}})))); err != nil {
				t.Fatal(err)
			}
			for what, done := range map[string]func() bool{
				"a link to be healed":                      func() bool { return !chainsOf(t, a)[0].Severed },
				"a tombstone to act":                       func() bool { return statusOf(a, "gone") == nil },
				"another application with a path to be in": func() bool { s := statusOf(a, "hooks"); return s != nil && s.Conditions[0].Status == "True" },
			} {
				until(t, what, time.Minute, done)
			}
			for _, l := range statusOf(a, "hung").Programs[0].Links {
				if l.State != agent.Waiting || l.Error == "" {
					t.Errorf("the link is told as %+v", l)
				}
			}
			recommended.Run(t, waits.Error(), "umount -f -l %s")
			until(t, "all to be answered", time.Minute, func() bool {
				return a.Lookups() == 0 && !strings.Contains(statusOf(a, "hung").Error, "does not answer")
			})
		})
	}
}

// TestALinkStaysWhereItsPathDoesNotAnswerAnyMore mounts a file system that hangs over the
// folder of a binary that is probed, and starts the agent anew.
func TestALinkStaysWhereItsPathDoesNotAnswerAnyMore(t *testing.T) {
	need.Kernel(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "shell")
	body, symbol, offset := probed(t, false)
	if err := os.WriteFile(path, body, 0o755); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	a, stop := w.start()
	if err := w.accept(a,
		w.version("1", v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: path, Symbol: symbol, Offset: offset}})); err != nil {
		t.Fatal(err)
	}
	first := attached(t, a)
	stop()
	silent(t, dir)
	a, _ = w.start()
	until(t, "the look-up to wait", time.Minute, func() bool { return a.Lookups() == 1 })
	turns(t, a, 3)
	if now := attached(t, a); now != first {
		t.Errorf("the link is %d, and was %d", now, first)
	}
}
