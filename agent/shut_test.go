package agent_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/need"
)

// sharedHook is a hook that applications share, and a program for it.
type sharedHook struct {
	hook, object, program string
	at                    v1alpha1.Attachment
	// switches: what leaves is there still, and is switched off. Elsewhere its link is closed.
	switches bool
}

// TestWhatMustEndEndsWhateverTheKernelSays revokes, withdraws, updates and adds applications on hooks that they share while each
// call fails by which the kernel would begin or change something.
func TestWhatMustEndEndsWhateverTheKernelSays(t *testing.T) {
	need.Kernel(t)
	quiet(t)
	cn0 := v1alpha1.Interfaces{Names: []string{"cn0"}}
	for _, h := range []sharedHook{
		{"xdp", "xdp_count", "count_packets", v1alpha1.Attachment{Hook: "xdp", Interfaces: &cn0}, true},
		{"tcx/ingress", "tcx_count", "count_ingress", v1alpha1.Attachment{Hook: "tcx/ingress", Interfaces: &cn0}, false},
		{"cgroup_skb/egress", "cgroup_skb", "cgroup_egress", v1alpha1.Attachment{Hook: "cgroup_skb/egress", Cgroup: "/"}, false},
	} {
		for _, errno := range []unix.Errno{unix.EPERM, unix.EBUSY, unix.ENOMEM, unix.ERANGE, unix.E2BIG, unix.EINVAL, unix.ENODEV, unix.EAGAIN} {
			t.Run(h.hook+" "+unix.ErrnoName(errno), func(t *testing.T) {
				needHook(t, h.hook)
				endsWhereTheKernelSays(t, h, errno)
			})
		}
	}
}

func endsWhereTheKernelSays(t *testing.T, h sharedHook, errno unix.Errno) {
	w := newWorld(t)
	veth(t, "cn0", "cn1")
	o := w.options()
	o.BackOff = agent.BackOff{First: 100 * time.Millisecond, Most: 200 * time.Millisecond}
	a := w.startWith(o)
	app := func(name string, at ...v1alpha1.Attachment) intent.Payload {
		return w.intent(name, h.object, v1alpha1.Program{Name: h.program, Attach: at})
	}
	newer := func(name string) intent.Payload {
		p := app(name, h.at)
		p.ObjectDigest = w.object(append(programsObject(h.object), 0))
		return p
	}
	revoked, leaves, updated := app("revoked", h.at), app("leaves", h.at), app("updated", h.at)
	must(t, w.accept(a, revoked, leaves, updated, app("stays", h.at)))
	before := map[string]uint32{}
	for _, name := range []string{"revoked", "leaves", "updated", "stays"} {
		before[name] = linkOf(t, a, name).ID
	}
	revision := statusOf(a, "updated").Revision

	open := a.ShutKernel(errno)
	w.give(a, w.tombstone(revoked), app("leaves"), newer("updated"), app("joins", h.at))
	until(t, "all to be worked on", time.Minute, func() bool {
		u, j := statusOf(a, "updated"), statusOf(a, "joins")
		return u != nil && j != nil && u.Serial != updated.Serial && u.Error != "" && j.Error != "" && ends(a, "revoked", before["revoked"], h) &&
			ends(a, "leaves", before["leaves"], h)
	})
	for name, isTrue := range map[string]bool{"stays": true, "updated": false, "joins": false} {
		s := statusOf(a, name)
		if is := s.Conditions[0].Status == "True"; is != isTrue || !isTrue && !strings.Contains(s.Error, "the kernel: ") {
			t.Errorf("%s: %+v", name, s)
		}
	}
	for _, name := range []string{"stays", "updated"} {
		if l := linkOf(t, a, name); l.State != agent.Attached || l.ID != before[name] || runs(t, l.ID) == 0 {
			t.Errorf("%s: %+v", name, l)
		}
	}
	if s := statusOf(a, "updated"); s.Revision != revision {
		t.Errorf("updated runs %s, and ran %s", s.Revision, revision)
	}
	if s := reportOf(a, "revoked"); h.switches != s.Unloading {
		t.Errorf("revoked: %+v", s)
	}

	open()
	until(t, "all to be as they should", time.Minute, func() bool {
		u, j, l := statusOf(a, "updated"), statusOf(a, "joins"), statusOf(a, "leaves")
		return statusOf(a, "revoked") == nil && u.Error == "" && u.Revision != revision && j.Error == "" && l.Error == "" && len(linksOf(a)) == 3
	})
}

// ends reports whether an application runs nothing on a hook, as far as its status and the kernel say.
func ends(a *agent.Agent, name string, id uint32, h sharedHook) bool {
	s := reportOf(a, name)
	if s == nil {
		return false
	}
	for _, p := range s.Programs {
		for _, l := range p.Links {
			if l.State == agent.Attached {
				return false
			}
		}
	}
	if h.switches {
		chains, err := a.Chains()
		for _, c := range chains {
			for _, m := range c.Members {
				if m.Application == name && !m.SwitchedOff {
					return false
				}
			}
		}
		return err == nil
	}
	return isEnded(id)
}

// isEnded reports whether the kernel has no link of an id.
func isEnded(id uint32) bool {
	l, err := link.NewFromID(link.ID(id))
	if err == nil {
		_ = l.Close()
	}
	return errors.Is(err, fs.ErrNotExist)
}
