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
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/fixture/world"
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
			w := world.New(t)
			world.Veth(t, "cn0", "cn1")
			a, _ := w.Start()
			dir := t.TempDir()
			body, symbol, offset := world.Probed(t, false)
			shell := filepath.Join(t.TempDir(), "shell")
			if err := os.WriteFile(shell, body, 0o755); err != nil {
				t.Fatal(err)
			}
			silent(t, dir)
			gone := w.Intent("gone", "raw_tp_count", world.RawProgram())
			if err := w.Accept(a, gone, world.Member(w, "heals", "xdp_count", "count_packets", 1)); err != nil {
				t.Fatal(err)
			}
			var hung []v1alpha1.Attachment
			for i := range 9 {
				hung = append(hung, at(filepath.Join(dir, fmt.Sprint(i))))
			}
			p := world.Version(w, "1", hung[0])
			p.Application.Name, p.UID = "hung", "uid-hung"
			p.Programs[0].Attach = hung
			waits := w.Accept(a, p)
			if waits == nil || !strings.Contains(waits.Error(), filepath.Join(dir, "0")+": its file system does not answer") {
				t.Fatalf("Settled = %v", waits)
			}
			if n := a.Lookups(); n != 4 {
				t.Errorf("%d look-ups wait", n)
			}
			l, err := link.NewFromID(link.ID(world.ChainsOf(t, a)[0].LinkID))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			if err := errors.Join(l.Detach(),
				a.Accept(w.Seal(w.Tombstone(gone)),
					w.Seal(world.Version(w, "2", v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: shell, Symbol: symbol,
						Offset: offset}})))); err != nil {
				t.Fatal(err)
			}
			for what, done := range map[string]func() bool{
				"a link to be healed":                      func() bool { return !world.ChainsOf(t, a)[0].Severed },
				"a tombstone to act":                       func() bool { return world.StatusOf(a, "gone") == nil },
				"another application with a path to be in": func() bool { s := world.StatusOf(a, "hooks"); return s != nil && s.Conditions[0].Status == "True" },
			} {
				world.Until(t, what, time.Minute, done)
			}
			for _, l := range world.StatusOf(a, "hung").Programs[0].Links {
				if l.State != agent.Waiting || l.Error == "" {
					t.Errorf("the link is told as %+v", l)
				}
			}
			recommended.Run(t, waits.Error(), "umount -f -l %s")
			world.Until(t, "all to be answered", time.Minute, func() bool {
				return a.Lookups() == 0 && !strings.Contains(world.StatusOf(a, "hung").Error, "does not answer")
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
	body, symbol, offset := world.Probed(t, false)
	if err := os.WriteFile(path, body, 0o755); err != nil {
		t.Fatal(err)
	}
	w := world.New(t)
	a, stop := w.Start()
	if err := w.Accept(a,
		world.Version(w, "1", v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: path, Symbol: symbol, Offset: offset}})); err != nil {
		t.Fatal(err)
	}
	first := world.Attached(t, a)
	stop()
	silent(t, dir)
	a, _ = w.Start()
	world.Until(t, "the look-up to wait", time.Minute, func() bool { return a.Lookups() == 1 })
	turns(t, a, 3)
	if now := world.Attached(t, a); now != first {
		t.Errorf("the link is %d, and was %d", now, first)
	}
}

// TestThePlacesOfAProbeStayWhereTheirPathDoesNotAnswer mounts a file system that hangs over
// the folder of the binary, and starts the agent anew.
func TestThePlacesOfAProbeStayWhereTheirPathDoesNotAnswer(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, stop := w.Start()
	path := world.Install(t, userbinary.Make(world.Declaring(), userbinary.Options{}))
	if err := w.Accept(a, world.Probing(w, "1", path, "two")); err != nil {
		t.Fatal(err)
	}
	first := world.LinkIDs(a)
	stop()
	silent(t, filepath.Dir(path))
	a, _ = w.Start()
	world.Until(t, "the look-up to wait", time.Minute, func() bool { return a.Lookups() == 1 })
	turns(t, a, 3)
	if diff := cmp.Diff(first, world.LinkIDs(a)); diff != "" || len(first) != 2 {
		t.Errorf("links (-before +after):\n%s", diff)
	}
}
