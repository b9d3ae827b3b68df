package agent_test

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/need"
)

// The environment of a child that is an agent and nothing else.
const (
	childDir = "SKEP_TEST_AGENT_DIR"
	childPin = "SKEP_TEST_AGENT_BPFFS"
	childKey = "SKEP_TEST_AGENT_KEY"
)

// runChild is an agent that takes every envelope of its inbox and then runs
// until it is killed.
func runChild() error {
	key, err := hex.DecodeString(os.Getenv(childKey))
	if err != nil {
		return err
	}
	trust, err := intent.NewTrust(ed25519.PublicKey(key))
	if err != nil {
		return err
	}
	dir := os.Getenv(childDir)
	a, err := agent.New(agent.Options{BPFFS: os.Getenv(childPin), StateDir: filepath.Join(dir, "state"), Trust: trust,
		Fetch: func(_ context.Context, digest string) ([]byte, error) {
			body, err := os.ReadFile(filepath.Join(dir, "objects", digest))
			if errors.Is(err, fs.ErrNotExist) {
				return hooksObject, nil
			}
			return body, err
		}})
	if err != nil {
		return err
	}
	inbox, err := filepath.Glob(filepath.Join(dir, "inbox", "*"))
	if err != nil {
		return err
	}
	for _, path := range inbox {
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := a.Accept(body); err != nil && !errors.Is(err, intent.ErrOlder) {
			return err
		}
	}
	return a.Run(context.Background())
}

// chaos makes random intents for a few applications on many hooks.
type chaos struct {
	w      *world
	cgroup string
	// lacking are hooks that this kernel comes before.
	lacking map[string]bool
}

func (c *chaos) intent(name string) intent.Payload {
	c.w.serial++
	p := intent.Payload{
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: name},
		UID:         "uid-" + name, Serial: c.w.serial,
	}
	if mathrand.IntN(5) == 0 {
		p.Tombstone = true
		return p
	}
	p.ObjectDigest = c.w.object(hooksObject)
	p.Variables = versioned(fmt.Sprint(mathrand.IntN(3)))
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
	quiet(t)
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	w := newWorld(t)
	veth(t, "kl0", "kl1")
	cgroup := filepath.Join(need.Cgroup(t), "skep-test-kill")
	if err := os.MkdirAll(cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(cgroup) })
	c := &chaos{w: w, cgroup: "/skep-test-kill", lacking: map[string]bool{}}
	for _, h := range hook.All() {
		c.lacking[h.Name] = h.Attachable && lacking(t, h) != nil
	}
	inbox := filepath.Join(w.dir, "inbox")
	if err := os.MkdirAll(inbox, 0o755); err != nil {
		t.Fatal(err)
	}
	// What other tests, or one that was killed, have in this kernel.
	others := loaded(t, "on_")
	last := map[string]intent.Payload{}
	for round := range rounds {
		name := fmt.Sprintf("app%d", mathrand.IntN(4))
		p := c.intent(name)
		last[name] = p
		if err := os.WriteFile(filepath.Join(inbox, name), w.seal(p), 0o600); err != nil {
			t.Fatal(err)
		}
		// From before the first look to long after the last action.
		w.killAfter(time.Duration(mathrand.IntN(150)) * time.Millisecond)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	a, stop := w.start()
	for _, p := range last {
		if err := a.Accept(w.seal(p)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.accept(a); err != nil {
		t.Fatal(err)
	}
	w.isAsWanted(a, last)
	stop()

	a, _ = w.start()
	w.isAsWanted(a, last)
	for name, p := range last {
		w.serial++
		if err := a.Accept(w.seal(intent.Payload{Application: p.Application, UID: "uid-" + name, Serial: w.serial, Tombstone: true})); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.accept(a); err != nil {
		t.Fatal(err)
	}
	w.leavesNothing()
	hasNoQdisc(t, "kl0")
	hasNoQdisc(t, "kl1")
	until(t, "the programs to go", time.Minute, func() bool {
		return !slices.ContainsFunc(loaded(t, "on_"), func(id ebpf.ProgramID) bool { return !slices.Contains(others, id) })
	})
}

// killAfter runs an agent in a process of its own and kills it.
func (w *world) killAfter(delay time.Duration) {
	w.t.Helper()
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), childDir+"="+w.dir, childPin+"="+w.bpffs, childKey+"="+hex.EncodeToString(w.key.Public()))
	var out strings.Builder
	child.Stdout, child.Stderr = &out, &out
	if err := child.Start(); err != nil {
		w.t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- child.Wait() }()
	select {
	case err := <-exited:
		w.t.Fatalf("the agent ended by itself: %v: %s", err, out.String())
	case <-time.After(delay):
	}
	_ = child.Process.Kill()
	<-exited
}

// isAsWanted checks links, pins and programs against the intents.
func (w *world) isAsWanted(a *agent.Agent, wanted map[string]intent.Payload) {
	t := w.t
	t.Helper()
	if err := w.accept(a); err != nil {
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
				if l.State != agent.Attached || runsUnder(t, l) == 0 {
					t.Errorf("%s: %s: %+v", name, program.Name, l)
				}
			}
		}
	}
	w.pinsAreTidy(status)
}

// pinsAreTidy looks for pins that no status names.
func (w *world) pinsAreTidy(status map[string]agent.ApplicationStatus) {
	err := filepath.WalkDir(w.bpffs, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(w.bpffs, path)
		parts := strings.Split(rel, string(filepath.Separator))
		switch {
		case strings.Contains(rel, "+new") || strings.Contains(rel, "+old"):
			w.t.Errorf("left half done: %s", rel)
		case len(parts) == 2 && strings.HasPrefix(parts[0], "uid-") && parts[1] != "+links":
			if s := status[strings.TrimPrefix(parts[0], "uid-")]; s.Revision != parts[1] {
				w.t.Errorf("revision %s is pinned and %q is live", rel, s.Revision)
			}
		case len(parts) == 2 && parts[0] == "+xdp":
			if entries, err := os.ReadDir(path); err != nil || len(entries) != 3 {
				w.t.Errorf("%s holds %v, not a link with its text and one version (%v)", rel, entries, err)
			}
		}
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
}

// loaded lists the programs of the kernel whose name begins so.
func loaded(t testing.TB, prefix string) []ebpf.ProgramID {
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
		if info, err := p.Info(); err == nil && strings.HasPrefix(info.Name, prefix) {
			ids = append(ids, id)
		}
		_ = p.Close()
	}
}
