package accepted_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestWhatCannotRunIsToldAndWhatRunsGoesOn(t *testing.T) {
	need.Kernel(t)
	xdp := world.On("xdp", "rf0")
	for sentence, c := range map[string]struct {
		change func(w *world.World, p *intent.Payload)
		want   []string
		log    string
	}{
		"the verifier refuses the new version": {func(w *world.World, p *intent.Payload) {
			p.ObjectDigest, p.Programs[0].Name = w.Object(world.ProgramsObject("xdp_rejected")), "xdp_rejected"
		}, []string{"load app", "program xdp_rejected"}, "R"},
		"the object lacks the function": {func(w *world.World, p *intent.Payload) { p.Programs[0].Name = "nope" },
			[]string{`no function "nope"`, "it has count_packets"}, ""},
		"the function is for another hook": {func(w *world.World, p *intent.Payload) {
			p.ObjectDigest, p.Programs[0].Name = w.Object(world.ProgramsObject("tcx_count")), "count_ingress"
		}, []string{"SchedCLS", "hook xdp takes XDP"}, ""},
		"the agent attaches no such hook": {func(w *world.World, p *intent.Payload) { p.Programs[0].Attach[0].Hook = "struct_ops" },
			[]string{`hook "struct_ops"`}, ""},
		"the object is no ELF file": {func(w *world.World, p *intent.Payload) { p.ObjectDigest = w.Object([]byte("nonsense")) },
			[]string{"read object of app"}, ""},
		"nobody has the object": {func(w *world.World, p *intent.Payload) { p.ObjectDigest = "sha256:0000" },
			[]string{"fetch object of app", "no object"}, ""},
		"what is fetched is another object": {func(w *world.World, p *intent.Payload) {
			p.ObjectDigest = "sha256:1111"
			w.Mu.Lock()
			defer w.Mu.Unlock()
			w.Objects[p.ObjectDigest] = []byte("other")
		}, []string{"hashes to", "sha256:1111"}, ""},
		"a variable cannot be set": {func(w *world.World, p *intent.Payload) {
			p.Variables = map[string]apiextensionsv1.JSON{"sampling": {Raw: []byte(`-1`)}}
		}, []string{"variables.sampling", "out of range"}, ""},
		"a map is not the object's": {func(w *world.World, p *intent.Payload) {
			n := uint32(5)
			p.Maps = map[string]v1alpha1.Map{"nope": {MaxEntries: &n}}
		}, []string{"maps.nope", "counts"}, ""},
		"the interface pattern is broken": {func(w *world.World, p *intent.Payload) { p.Programs[0].Attach = world.On("xdp", "rf[") },
			[]string{"rf[", "not a pattern"}, ""},
		"one target is named twice": {func(w *world.World, p *intent.Payload) {
			p.Programs[0].Attach = append(world.On("xdp", "rf0"), world.On("xdp", "rf*")...)
		},
			[]string{"twice"}, ""},
		"the cgroup does not exist": {func(w *world.World, p *intent.Payload) {
			p.ObjectDigest = w.Object(world.HooksObject)
			p.Programs = []v1alpha1.Program{{Name: "on_xdp", Attach: xdp}, {
				Name: "on_cgroup_bind4", Attach: []v1alpha1.Attachment{{Hook: "cgroup/bind4", Cgroup: "/no/such"}},
			}}
		}, []string{"no/such", "no such file"}, ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "rf0", "rf1")
			a, _ := w.Start()
			app := w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})
			if err := w.Accept(a, app); err != nil {
				t.Fatal(err)
			}
			_, before := world.One(t, a)
			bad := w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})
			c.change(w, &bad)
			err := w.Accept(a, bad)
			if err == nil {
				t.Fatal("Settled reports nothing")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			s := a.Status()[0]
			if s.Conditions[0].Status != metav1.ConditionFalse || world.Runs(t, before.ID) == 0 {
				t.Errorf("condition %+v, and link %d runs %d", s.Conditions[0], before.ID, world.Runs(t, before.ID))
			}
			if (s.VerifierLog != "") != (c.log != "") || !strings.Contains(s.VerifierLog, c.log) {
				t.Errorf("verifier log = %q", s.VerifierLog)
			}
			// A good one fixes it.
			if err := w.Accept(a, w.Intent("app", "xdp_count", app.Programs[0])); err != nil {
				t.Errorf("after a good intent: %v", err)
			}
			if now := a.Status()[0]; now.Conditions[0].Status != metav1.ConditionTrue || now.VerifierLog != "" || now.Error != "" {
				t.Errorf("after a good intent: %+v", now)
			}
		})
	}
}

func TestARefusedVersionLeavesThePreviousAfterARebootToo(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "rf0", "rf1")
	a, stop := w.Start()
	if err := w.Accept(a, w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})); err != nil {
		t.Fatal(err)
	}
	if err := w.Accept(a, w.Intent("app", "xdp_rejected", v1alpha1.Program{Name: "xdp_rejected", Attach: world.On("xdp", "rf0")})); err == nil {
		t.Fatal("the verifier took it")
	}
	stop()
	w.Reboot("rf0")
	a, _ = w.Start()
	if err := w.Accept(a); err == nil || !strings.Contains(err.Error(), "xdp_rejected") {
		t.Errorf("Settled = %v", err)
	}
	s := a.Status()[0]
	if s.Conditions[0].Reason != "KeptPrevious" || len(s.Programs) != 1 || s.Programs[0].Name != "count_packets" || len(s.Programs[0].Links) != 1 {
		t.Errorf("after the reboot: %+v", s)
	}
}

func TestANodeComesBackWithEverythingElseAway(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "rf0", "rf1")
	a, stop := w.Start()
	app := w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})
	gone := w.Intent("gone", "raw_tp_count", world.RawProgram())
	if err := w.Accept(a, app, gone); err != nil {
		t.Fatal(err)
	}
	w.Serial++
	if err := w.Accept(a, intent.Payload{Application: gone.Application, UID: gone.UID, Serial: w.Serial, Tombstone: true}); err != nil {
		t.Fatal(err)
	}
	stop()
	w.Reboot("rf0")
	a, _ = w.Start()
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	if s := a.Status(); len(s) != 1 || len(s[0].Programs[0].Links) != 1 {
		t.Errorf("Status = %+v", s)
	}
	// The tombstone is remembered: what it unloaded does not come back.
	if err := a.Accept(w.Seal(gone)); !errors.Is(err, intent.ErrOlder) {
		t.Errorf("Accept of an unloaded intent = %v", err)
	}
}

func TestAcceptRefusesWhatIsNotSealedOrOlder(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "rf0", "rf1")
	a, _ := w.Start()
	first := w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})
	second := w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})
	if err := w.Accept(a, second); err != nil {
		t.Fatal(err)
	}
	_, before := world.One(t, a)
	w.Serial++
	forged := second
	forged.Serial, forged.Tombstone = w.Serial, true
	envelope := seals.New(t).Seal(t, forged)
	for sentence, c := range map[string]struct {
		envelope intent.Envelope
		want     error
	}{
		"an older one":       {w.Seal(first), intent.ErrOlder},
		"a stranger's":       {envelope, intent.ErrSeal},
		"one that is no one": {intent.Envelope("{}"), intent.ErrSeal},
		"a later format's":   {w.Key.Later(t, forged), intent.ErrFormat},
		"the same again":     {w.Seal(second), nil},
	} {
		if err := a.Accept(c.envelope); !errors.Is(err, c.want) {
			t.Errorf("%s: Accept = %v, want %v", sentence, err, c.want)
		}
	}
	if err := w.Accept(a); err != nil {
		t.Error(err)
	}
	if _, l := world.One(t, a); l.ID != before.ID || world.Runs(t, l.ID) == 0 {
		t.Errorf("what ran as link %d does not: %+v", before.ID, l)
	}
}

// TestAnotherIntentUnderTheSameSerialIsToldAndChangesNothing has somebody seal
// twice under one serial, as two controllers with one key and one clock would.
func TestAnotherIntentUnderTheSameSerialIsToldAndChangesNothing(t *testing.T) {
	need.Kernel(t)
	at := v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")}
	for sentence, change := range map[string]func(w *world.World, p *intent.Payload){
		"another object": func(w *world.World, p *intent.Payload) {
			p.ObjectDigest = w.Object(world.ProgramsObject("xdp_count_v2"))
		},
		"another place": func(_ *world.World, p *intent.Payload) {
			p.Programs = []v1alpha1.Program{{Name: at.Name, Attach: world.On("xdp", "rf1")}}
		},
		"a tombstone": func(_ *world.World, p *intent.Payload) {
			*p = intent.Payload{Application: p.Application, UID: p.UID, Serial: p.Serial, Tombstone: true}
		},
		"for no node at all": func(_ *world.World, p *intent.Payload) { p.NodeSelector = world.Role("nobody") },
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "rf0", "rf1")
			a, stop := w.Start()
			first := w.Intent("app", "xdp_count", at)
			if err := w.Accept(a, first); err != nil {
				t.Fatal(err)
			}
			_, before := world.One(t, a)
			second := first
			change(w, &second)
			told := func() {
				t.Helper()
				for range 2 {
					if err := a.Accept(w.Seal(second)); !errors.Is(err, intent.ErrConflict) || !strings.Contains(err.Error(), "app") {
						t.Errorf("Accept = %v", err)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := a.Settled(ctx); err == nil || !strings.Contains(err.Error(), "another intent was seen under the same serial") {
					t.Errorf("Settled = %v", err)
				}
				s, l := a.Status()[0], 0
				for _, p := range s.Programs {
					for _, one := range p.Links {
						l += int(one.ID)
					}
				}
				if s.Conditions[0].Status != metav1.ConditionFalse || l != int(before.ID) || world.Runs(t, before.ID) == 0 {
					t.Errorf("it is told as %+v", s)
				}
			}
			told()
			// The one that was accepted settles it, and so does a newer one.
			if err := w.Accept(a, first); err != nil {
				t.Errorf("the first again: %v", err)
			}
			stop()
			a, _ = w.Start()
			if err := w.Accept(a); err != nil {
				t.Errorf("after a restart: %v", err)
			}
			told()
			if err := w.Accept(a, w.Intent("app", "xdp_count", at)); err != nil {
				t.Errorf("a newer one: %v", err)
			}
		})
	}
}

func TestACacheThatWasTamperedWithUnloadsNothing(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "rf0", "rf1")
	a, stop := w.Start()
	if err := w.Accept(a, w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})); err != nil {
		t.Fatal(err)
	}
	_, before := world.One(t, a)
	stop()
	kept, err := filepath.Glob(filepath.Join(w.Dir, "state", "*", "*"))
	if err != nil || len(kept) != 3 {
		t.Fatalf("kept = %v, %v", kept, err)
	}
	for _, path := range kept {
		if err := os.WriteFile(path, []byte("altered"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, _ = w.Start()
	if err := w.Accept(a); err != nil {
		t.Error(err)
	}
	if world.Runs(t, before.ID) == 0 {
		t.Error("what ran was unloaded")
	}
	if _, l := world.One(t, a); l.ID != before.ID || a.Status()[0].Application.Name != "app" || a.Status()[0].Conditions[0].Reason != "IntentLost" {
		t.Errorf("Status = %+v", a.Status())
	}
	// Sent again, it is taken over as it runs.
	if err := w.Accept(a, w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})); err != nil {
		t.Fatal(err)
	}
	if _, now := world.One(t, a); now.ID != before.ID {
		t.Errorf("link %d became %d", before.ID, now.ID)
	}
}

func TestOneAgentHoldsTheDirectory(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	_, stop := w.Start()
	other := w.Options()
	other.StateDir = t.TempDir()
	if _, err := agent.New(other); !errors.Is(err, pins.ErrHeld) {
		t.Errorf("New = %v", err)
	}
	stop()
	a, err := agent.New(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	other.BPFFS = t.TempDir()
	if _, err := agent.New(other); !errors.Is(err, pins.ErrNotBPFFS) {
		t.Errorf("New outside of a bpffs = %v", err)
	}
}

func TestASecondBPFFileSystemIsNoticed(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	var log strings.Builder
	open := func(bpffs string) {
		t.Helper()
		o := w.Options()
		o.BPFFS, o.Log = bpffs, slog.New(slog.NewTextHandler(&log, nil))
		a, err := agent.New(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	open(w.BPFFS)
	open(w.BPFFS)
	if log.Len() > 0 {
		t.Errorf("the same file system is told: %s", log.String())
	}
	second := t.TempDir()
	if err := unix.Mount("bpf", second, "bpf", 0, ""); err != nil {
		t.Skip("SKIPPED: cannot mount a bpf file system: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(second, 0) })
	open(filepath.Join(second, "skep"))
	if !strings.Contains(log.String(), "another bpf file system") {
		t.Errorf("log = %q", log.String())
	}
}

func TestFailuresBackOff(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	var asked atomic.Int32
	o := w.Options()
	o.Fetch = func(context.Context, string) ([]byte, error) {
		asked.Add(1)
		return nil, errors.New("the registry hangs up")
	}
	o.SweepInterval, o.BackOff = time.Millisecond, agent.BackOff{First: 50 * time.Millisecond, Most: time.Hour}
	a := w.StartWith(o)
	if err := w.Accept(a, w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})); err == nil {
		t.Error("Settled reports nothing")
	}
	world.Until(t, "four tries", time.Minute, func() bool { return asked.Load() >= 4 })
	began := time.Now()
	world.Until(t, "the fifth try", time.Minute, func() bool { return asked.Load() >= 5 })
	// After 50, 100 and 200 ms the fourth wait is 400 ms and its jitter; one
	// that did not grow would be 50.
	if waited := time.Since(began); waited < 200*time.Millisecond {
		t.Errorf("the fifth try came after %v", waited)
	}
	if s := a.Status()[0]; !strings.Contains(s.Error, "hangs up") {
		t.Errorf("Error = %q", s.Error)
	}
}

func TestARegistryThatHangsKeepsNothingFromHealing(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "rf0", "rf1")
	o := w.Options()
	release := make(chan struct{})
	slow := w.Object(world.ProgramsObject("raw_tp_count"))
	o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
		if digest == slow {
			select {
			case <-release:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return w.Fetch(ctx, digest)
	}
	a := w.StartWith(o)
	if err := w.Accept(a, w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})); err != nil {
		t.Fatal(err)
	}
	_, l := world.One(t, a)
	if err := a.Accept(w.Seal(w.Intent("slow", "raw_tp_count", world.RawProgram()))); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the fetch to be told", time.Minute, func() bool {
		s := a.Status()
		return len(s) == 2 && s[1].Conditions[0].Reason == "Fetching" && s[1].Error == ""
	})
	if err := os.Remove(l.Pin); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the pin to be healed", time.Minute, func() bool { _, err := os.Stat(l.Pin); return err == nil })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := a.Settled(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Settled = %v while an object is on its way", err)
	}
	close(release)
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	if got := world.Targets(a); len(got) != 2 {
		t.Errorf("targets = %v", got)
	}
}

func TestANodeThatIsNotSelectedRunsNothing(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "rf0", "rf1")
	o := w.Options()
	o.Labels = map[string]string{"role": "edge"}
	a := w.StartWith(o)
	for role, want := range map[string]int{"edge": 1, "core": 0} {
		p := w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})
		p.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": role}}
		if err := w.Accept(a, p); err != nil {
			t.Fatal(err)
		}
		if got := len(world.Targets(a)); got != want {
			t.Errorf("role %s: %d links, want %d: %+v", role, got, want, a.Status())
		}
	}
}
