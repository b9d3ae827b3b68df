package accepted_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

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
	first.Maps, second.Maps = readBy("web", "shop"), readBy("shop")
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
	if diff := cmp.Diff(second.Maps, newest(a).Maps); diff != "" {
		t.Errorf("an older, wider grant counts (-want +got):\n%s", diff)
	}
}

// readBy grants a map to the pods of some namespaces.
func readBy(namespaces ...string) map[string]v1alpha1.Map {
	return map[string]v1alpha1.Map{"counts": {Export: []v1alpha1.MapExport{{Access: v1alpha1.MapRead, Namespaces: namespaces}}}}
}

// newest is the one intent of an agent.
func newest(a *agent.Agent) intent.Payload {
	all := a.Intents()
	return all[0].Payload()
}

// TestAnotherGrantLoadsNothing changes who reads a map: the newest intent has it, and what runs stays.
func TestAnotherGrantLoadsNothing(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "rf0", "rf1")
	a, _ := w.Start()
	at := v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")}
	if err := w.Accept(a, w.Intent("app", "xdp_count", at)); err != nil {
		t.Fatal(err)
	}
	program, link := world.One(t, a)
	for _, granted := range []map[string]v1alpha1.Map{readBy("web"), readBy("web", "shop"), readBy("shop"), nil} {
		p := w.Intent("app", "xdp_count", at)
		p.Maps = granted
		if err := w.Accept(a, p); err != nil {
			t.Fatal(err)
		}
		now, l := world.One(t, a)
		if now.ID != program.ID || l.ID != link.ID {
			t.Errorf("with %v, program %d runs as link %d; before it was %d as %d", granted, now.ID, l.ID, program.ID, link.ID)
		}
		if diff := cmp.Diff(granted, newest(a).Maps); diff != "" {
			t.Errorf("the newest intent grants (-want +got):\n%s", diff)
		}
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
