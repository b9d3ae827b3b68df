package agent_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// chaos makes random intents for a few applications on many hooks.
type chaos struct {
	w      *world.World
	cgroup string
	// lacking are hooks that this kernel comes before.
	lacking map[string]bool
}

func (c *chaos) intent(name string) intent.Payload {
	c.w.Serial++
	p := intent.Payload{
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: name},
		UID:         "uid-" + name, Serial: c.w.Serial,
	}
	if mathrand.IntN(5) == 0 {
		p.Tombstone = true
		return p
	}
	p.ObjectDigest = c.w.Object(world.HooksObject)
	p.Variables = world.Versioned(fmt.Sprint(mathrand.IntN(3)))
	at := func(name string) v1alpha1.Attachment {
		priority := int32(mathrand.IntN(4))
		return v1alpha1.Attachment{Hook: name, Priority: &priority, Interfaces: &v1alpha1.Interfaces{
			Names: []string{[]string{"kl0", "kl1", "kl*"}[mathrand.IntN(3)]},
		}}
	}
	all := []v1alpha1.Program{
		{Name: "on_xdp", Attach: []v1alpha1.Attachment{at("xdp")}},
		{Name: "on_tcx_ingress", Attach: []v1alpha1.Attachment{at("tcx/ingress")}},
		{Name: "on_tcx_egress", Attach: []v1alpha1.Attachment{at("tcx/egress")}},
		{Name: "on_tc_ingress", Attach: []v1alpha1.Attachment{at("tc/ingress")}},
		{Name: "on_tc_egress", Attach: []v1alpha1.Attachment{at("tc/egress")}},
		{Name: "on_tracepoint", Attach: []v1alpha1.Attachment{{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getpgid"}}},
		{Name: "on_cgroup_bind4", Attach: []v1alpha1.Attachment{{Hook: "cgroup/bind4", Cgroup: c.cgroup}}},
		{Name: "on_raw_tp", Attach: []v1alpha1.Attachment{{Hook: "raw_tp", Tracepoint: "sys_enter"}}},
	}
	all = slices.DeleteFunc(all, func(p v1alpha1.Program) bool { return c.lacking[p.Attach[0].Hook] })
	mathrand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	p.Programs = all[:1+mathrand.IntN(len(all))]
	return p
}

// TestKillingTheAgentAtAnyPointConverges kills an agent again and again while
// what is wanted changes, and then lets a fresh one finish.
func TestKillingTheAgentAtAnyPointConverges(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	w := world.New(t)
	world.Veth(t, "kl0", "kl1")
	cgroup := filepath.Join(need.Cgroup(t), "skep-test-kill")
	if err := os.MkdirAll(cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(cgroup) })
	c := &chaos{w: w, cgroup: "/skep-test-kill", lacking: map[string]bool{}}
	for _, h := range hook.All() {
		c.lacking[h.Name] = h.Attachable && world.Lacking(t, h) != nil
	}
	inbox := filepath.Join(w.Dir, "inbox")
	if err := os.MkdirAll(inbox, 0o755); err != nil {
		t.Fatal(err)
	}
	// What a test that was killed has in this kernel.
	others := loadedOf(t, "chaos")
	last := map[string]intent.Payload{}
	for round := range rounds {
		name := fmt.Sprintf("chaos%d", mathrand.IntN(4))
		p := c.intent(name)
		last[name] = p
		if err := os.WriteFile(filepath.Join(inbox, name), w.Seal(p), 0o600); err != nil {
			t.Fatal(err)
		}
		// From before the first look to long after the last action.
		w.KillAfter(time.Duration(mathrand.IntN(150)) * time.Millisecond)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	a, stop := w.Start()
	for _, p := range last {
		if err := a.Accept(w.Seal(p)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	isAsWanted(w, a, last)
	stop()

	a, _ = w.Start()
	isAsWanted(w, a, last)
	for name, p := range last {
		w.Serial++
		if err := a.Accept(w.Seal(intent.Payload{Application: p.Application, UID: "uid-" + name, Serial: w.Serial, Tombstone: true})); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	w.LeavesNothing()
	world.HasNoQdisc(t, "kl0")
	world.HasNoQdisc(t, "kl1")
	world.Until(t, "the programs to go", time.Minute, func() bool {
		return !slices.ContainsFunc(loadedOf(t, "chaos"), func(id ebpf.ProgramID) bool { return !slices.Contains(others, id) })
	})
}

// isAsWanted checks links, pins and programs against the intents.
func isAsWanted(w *world.World, a *agent.Agent, wanted map[string]intent.Payload) {
	t := w.T
	t.Helper()
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	status := map[string]agent.ApplicationStatus{}
	for _, s := range a.Status() {
		status[s.Application.Name] = s
	}
	for name, p := range wanted {
		s, there := status[name]
		if there == p.Tombstone {
			t.Errorf("%s: tombstone %v, and status %+v", name, p.Tombstone, s)
			continue
		}
		for _, program := range s.Programs {
			want := 1
			if at := p.Programs[slices.IndexFunc(p.Programs, func(x v1alpha1.Program) bool { return x.Name == program.Name })].Attach[0]; at.Interfaces != nil &&
				at.Interfaces.Names[0] == "kl*" {
				want = 2
			}
			if len(program.Links) != want {
				t.Errorf("%s: %s has %d links, want %d: %+v", name, program.Name, len(program.Links), want, program.Links)
			}
			for _, l := range program.Links {
				if l.State != agent.Attached || world.RunsUnder(t, l) == 0 {
					t.Errorf("%s: %s: %+v", name, program.Name, l)
				}
			}
		}
	}
	world.PinsAreTidy(w, status)
}

// loadedOf lists the programs of the kernel that bear applications of such a name: tests of other packages load others meanwhile.
func loadedOf(t testing.TB, name string) []ebpf.ProgramID {
	t.Helper()
	var ids []ebpf.ProgramID
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, fs.ErrNotExist) {
			return ids
		}
		if err != nil {
			t.Fatal(err)
		}
		id = next
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue
		}
		if bears(p, name) {
			ids = append(ids, id)
		}
		_ = p.Close()
	}
}

// bears reports whether the owner that is written beside a program has the name in it.
func bears(p *ebpf.Program, name string) bool {
	info, err := p.Info()
	if err != nil {
		return false
	}
	ids, _ := info.MapIDs()
	return slices.ContainsFunc(ids, func(id ebpf.MapID) bool {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return false
		}
		defer func() { _ = m.Close() }()
		value, err := m.LookupBytes(uint32(0))
		return err == nil && bytes.Contains(value, []byte(`"app":"`)) && bytes.Contains(value, []byte(name))
	})
}
