package chainfit_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestWhatIsSwitchedOffTakesNobodyAlong: the object of a member is lost, and the chain stays as it is until
// that is back.
func TestWhatIsSwitchedOffTakesNobodyAlong(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	o := w.Options()
	o.BackOff = agent.BackOff{First: 100 * time.Millisecond, Most: 100 * time.Millisecond}
	a := w.StartWith(o)
	ca, cb, _ := world.Three(w, a)
	restore := world.Lose(w, cb)
	err := w.Accept(a, w.Tombstone(ca))
	if err == nil || !strings.Contains(err.Error(), "ca: leave the chain of cn0: it is switched off, and is there still: fetch object of cb") {
		t.Errorf("Settled = %v", err)
	}
	if got := world.MembersOf(t, a); got != "ca cb cc" {
		t.Fatalf("the chain is %q", got)
	}
	chains, err := a.Chains()
	world.Must(t, err)
	off, before := *chains[0].Members[0].Runs, *chains[0].Members[1].Runs
	world.Send(t, "cn1", 5)
	world.Until(t, "the packets to pass the others", time.Minute, func() bool {
		chains, err = a.Chains()
		return err == nil && *chains[0].Members[2].Runs >= before+5
	})
	if m := chains[0].Members; len(m) != 3 || !m[0].SwitchedOff || *m[0].Runs != off || m[1].SwitchedOff || *m[1].Runs < before+5 || m[2].SwitchedOff {
		t.Errorf("the chain is %+v", m)
	}
	if s := world.StatusOf(a, "cc"); s.Conditions[0].Status != "True" {
		t.Errorf("cc: %+v", s)
	}
	restore()
	world.Until(t, "ca to be gone", time.Minute, func() bool {
		return world.MembersOf(t, a) == "cb cc" && world.StatusOf(a, "ca") == nil && world.StatusOf(a, "cb").Error == ""
	})
}

// TestAChainStaysWhereAMemberCannotBeLinkedAgain: nothing must go, so that nobody
// is taken out, and who is told is who cannot be had.
func TestAChainStaysWhereAMemberCannotBeLinkedAgain(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		change func(w *world.World) intent.Payload
		failed map[string]string
	}{
		"a member changes its place": {
			func(w *world.World) intent.Payload { return world.Member(w, "cc", "xdp_gpl", "xdp_gpl", 0) },
			map[string]string{"cb": "fetch object of cb", "cc": "change the chain of cn0: it stays as it is: fetch object of cb"}},
		"a member lets others run after other verdicts": {
			func(w *world.World) intent.Payload {
				p := world.Member(w, "ca", "xdp_count", "count_packets", 1)
				p.Programs[0].Attach[0].ProceedOn = []string{"Drop"}
				return p
			},
			map[string]string{"cb": "fetch object of cb", "ca": "change the chain of cn0: it stays as it is: fetch object of cb"}},
		"a member goes elsewhere": {
			func(w *world.World) intent.Payload {
				return w.Intent("ca", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "cn1")})
			},
			map[string]string{"cb": "fetch object of cb", "ca": "it is switched off"}},
		"one more is to come": {
			func(w *world.World) intent.Payload { return world.Member(w, "cd", "xdp_count_v2", "count_packets", 4) },
			map[string]string{"cd": "fetch object of cb"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "cn0", "cn1")
			a, _ := w.Start()
			_, cb, _ := world.Three(w, a)
			world.Lose(w, cb)
			if err := w.Accept(a, c.change(w)); err == nil {
				t.Error("nothing failed")
			}
			if got := world.MembersOf(t, a); !strings.Contains(got, "ca cb cc") {
				t.Errorf("the chain is %q", got)
			}
			for _, s := range a.Status() {
				if isTrue := s.Conditions[0].Status == "True"; isTrue != (c.failed[s.Application.Name] == "") {
					t.Errorf("%s: %+v", s.Application.Name, s.Conditions[0])
				}
				if want := c.failed[s.Application.Name]; (s.Error != "") != (want != "") || !strings.Contains(s.Error, want) {
					t.Errorf("%s: %q, want %q", s.Application.Name, s.Error, want)
				}
			}
		})
	}
}

// TestANewcomerWaitsForAVersionThatEndsWhatTheChainCannotBeMadeWith has the node lose
// the intent of a member, as an agent does that is killed before it notes that the
// member runs, and finds a newer intent when it comes back.
func TestANewcomerWaitsForAVersionThatEndsWhatTheChainCannotBeMadeWith(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a, stop := w.Start()
	ca, _, _ := world.Three(w, a)
	stop()
	kept, err := filepath.Glob(filepath.Join(w.Dir, "state", "intents", ca.UID+"*"))
	if err != nil || len(kept) != 2 {
		t.Fatalf("of %s are kept %v, %v", ca.Application, kept, err)
	}
	for _, path := range kept {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	o := w.Options()
	next, given := world.Member(w, "ca", "xdp_count_v2", "count_packets", 1), make(chan struct{})
	fetch := o.Fetch
	o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
		if digest == next.ObjectDigest {
			select {
			case <-given:
			case <-ctx.Done():
			}
		}
		return fetch(ctx, digest)
	}
	a = w.StartWith(o)
	w.Give(a, next, world.Member(w, "cd", "xdp_pass", "xdp_pass", 4))
	world.Until(t, "the newcomer to wait", time.Minute, func() bool {
		s := world.StatusOf(a, "cd")
		return s != nil && s.Conditions[0].Reason == "Queued" && strings.Contains(s.Conditions[0].Message, "lost")
	})
	close(given)
	if err := w.Accept(a); err != nil {
		t.Error(err)
	}
	if got := world.ChainOf(t, a); got != "ca:count_packets cb:xdp_pass cc:xdp_gpl cd:xdp_pass" {
		t.Errorf("chain is %q", got)
	}
}

// TestWhatIsToGoIsListedWhileAChainRunsIt: the registry hangs, and the chain is
// left as it is until it is given up.
func TestWhatIsToGoIsListedWhileAChainRunsIt(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	o := w.Options()
	given := make(chan struct{})
	fetch := o.Fetch
	o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
		body, err := fetch(ctx, digest)
		if err != nil {
			select {
			case <-given:
			case <-ctx.Done():
			}
		}
		return body, err
	}
	a := w.StartWith(o)
	ca, cb, _ := world.Three(w, a)
	world.Lose(w, cb)
	if err := a.Accept(w.Seal(w.Tombstone(ca))); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the tombstone to be worked on", time.Minute, func() bool {
		s := world.StatusOf(a, "ca")
		return s != nil && s.Conditions[0].Reason == "Unloading"
	})
	s := world.StatusOf(a, "ca")
	if got := world.MembersOf(t, a); got != "ca cb cc" || s.Revision == "" || len(s.Programs) != 1 || len(s.Programs[0].Links) != 1 || s.Programs[0].ID == 0 {
		t.Errorf("the chain is %q, and ca %+v", got, s)
	}
	if !slices.ContainsFunc(world.Pins(w), func(p string) bool { return strings.Contains(p, "uid-ca") }) {
		t.Error("its pins are gone, and it runs")
	}
	close(given)
	if err := w.Accept(a); err == nil || !strings.Contains(err.Error(), "cb:") {
		t.Errorf("Settled = %v", err)
	}
	if got := world.MembersOf(t, a); got != "ca cb cc" || world.StatusOf(a, "ca") == nil {
		t.Errorf("the chain is %q, and ca %+v", got, world.StatusOf(a, "ca"))
	}
}
