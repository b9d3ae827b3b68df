package hooks_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/hook/conformance"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

//go:generate go run ../../../test/fixture/programs/compile testdata testdata

// TestEveryHookConforms takes each hook the table calls attachable through one
// life: attach, update, drift, restart, unload.
func TestEveryHookConforms(t *testing.T) {
	need.Kernel(t)
	for _, h := range hook.All() {
		if !h.Attachable || h.RunsOnce() {
			continue
		}
		t.Run(h.Name, func(t *testing.T) {
			w := world.New(t)
			if h.Shape == hook.NetworkDevice {
				world.Pair(t, h, "hk0", "hk1")
			}
			at := world.Target(t, h)
			a, stop := w.Start()
			lacks := world.Lacking(t, h)
			err := w.Accept(a, world.Version(w, "1", at))
			if lacks != nil {
				if err == nil || !strings.Contains(err.Error(), lacks.Error()) {
					t.Fatalf("the agent says %q, not %q", err, lacks)
				}
				conforms(t, h, outcome(lacks))
				t.Skip("SKIPPED:", lacks)
			}
			if err != nil {
				t.Fatal(err)
			}
			program, first := world.One(t, a)
			if got := world.RunsUnder(t, first); uint32(got) != program.ID || program.ID == 0 {
				t.Fatalf("link %d runs program %d, not %d", first.ID, got, program.ID)
			}
			runsOn(t, a, at, 1)
			updates(t, w, a, h, at)
			runsOn(t, a, at, 2)
			healsPin(t, a)
			healsDetach(t, a)
			_, before := world.One(t, a)
			stop()
			a, _ = w.Start()
			if err := w.Accept(a); err != nil {
				t.Fatal(err)
			}
			if _, after := world.One(t, a); after.ID != before.ID || after.Filter != before.Filter {
				t.Errorf("the restarted agent has %+v and not %+v", after, before)
			}
			runsOn(t, a, at, 2)
			world.UnloadsAll(t, w, a, before)
			if h.Shape == hook.NetworkDevice {
				world.HasNoQdisc(t, "hk0")
			}
			if !t.Failed() {
				conforms(t, h, conformance.Fires)
			}
		})
	}
}

// updates checks that a new version runs, under the same link where the hook
// says so.
func updates(t *testing.T, w *world.World, a *agent.Agent, h hook.Hook, at v1alpha1.Attachment) {
	t.Helper()
	oldProgram, old := world.One(t, a)
	if err := w.Accept(a, world.Version(w, "2", at)); err != nil {
		t.Fatal(err)
	}
	program, now := world.One(t, a)
	if program.ID == oldProgram.ID || uint32(world.RunsUnder(t, now)) != program.ID {
		t.Errorf("after the update %+v runs %d; the new program is %d, the old one was %d", now, world.RunsUnder(t, now), program.ID, oldProgram.ID)
	}
	if same := now.ID == old.ID && now.Filter == old.Filter; same != (h.Replace == hook.ByLinkUpdate) {
		t.Errorf("hook replaces by %s, and the link went from %d to %d", h.Replace, old.ID, now.ID)
	}
	world.Until(t, "the old program to go", time.Minute, func() bool {
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(oldProgram.ID))
		if err == nil {
			_ = p.Close()
		}
		return errors.Is(err, fs.ErrNotExist)
	})
}

// healsPin removes the pin by hand and waits for it.
func healsPin(t *testing.T, a *agent.Agent) {
	t.Helper()
	_, l := world.One(t, a)
	if err := os.Remove(l.Pin); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the pin to be made again", time.Minute, func() bool {
		_, err := os.Stat(l.Pin)
		return err == nil
	})
	if _, now := world.One(t, a); now.ID != l.ID {
		t.Errorf("the link went from %d to %d with its pin", l.ID, now.ID)
	}
}

// healsDetach severs the link by hand, where the kernel can. Of netfilter's links, not every
// kernel tells that they are severed.
func healsDetach(t *testing.T, a *agent.Agent) {
	t.Helper()
	program, old := world.One(t, a)
	if _, err := os.Stat("/sys/module/nfnetlink_hook"); old.Hook == "netfilter" && err != nil {
		return
	}
	if old.Filter != "" {
		f := world.FiltersOf(t, old.Target, strings.HasSuffix(old.Hook, "egress"))[0]
		if err := netlink.FilterDel(f); err != nil {
			t.Fatal(err)
		}
		world.Until(t, "the filter to be made again", time.Minute, func() bool {
			_, now := world.One(t, a)
			return now.Filter != "" && uint32(world.RunsUnder(t, now)) == program.ID
		})
		return
	}
	l, err := link.NewFromID(link.ID(old.ID))
	if err != nil {
		t.Fatal(err)
	}
	err = l.Detach()
	_ = l.Close()
	if errors.Is(err, link.ErrNotSupported) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the link to be made again", time.Minute, func() bool {
		_, now := world.One(t, a)
		return now.ID != old.ID && now.ID != 0
	})
	if _, now := world.One(t, a); uint32(world.Runs(t, now.ID)) != program.ID {
		t.Errorf("the healed link runs %d and not %d", world.Runs(t, now.ID), program.ID)
	}
}

func TestAnIteratorIsReadByItsPin(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	p := w.Intent("tasks", "iter_task", v1alpha1.Program{Name: "iter_task", Attach: []v1alpha1.Attachment{{Hook: "iter"}}})
	if err := w.Accept(a, p); err != nil {
		t.Fatal(err)
	}
	_, l := world.One(t, a)
	body, err := os.ReadFile(l.Pin)
	if err != nil {
		t.Fatal(err)
	}
	if me := fmt.Sprintf("\n%d %[1]d\n", os.Getpid()); !strings.Contains("\n"+string(body), me) {
		t.Errorf("the iterator does not list this process, %q: %q", me, body)
	}
}
