package agent_test

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
	"github.com/skep-dev/skep/test/harness/need"
)

// lose takes an object away from the node and from whoever serves it.
func (w *world) lose(p intent.Payload) (restore func()) {
	w.t.Helper()
	w.mu.Lock()
	body := w.objects[p.ObjectDigest]
	delete(w.objects, p.ObjectDigest)
	w.mu.Unlock()
	if err := os.Remove(filepath.Join(w.dir, "state", "objects", strings.TrimPrefix(p.ObjectDigest, "sha256:"))); err != nil {
		w.t.Fatal(err)
	}
	return func() { w.object(body) }
}

// statusOf is an application's status, or nil where it is not listed.
func statusOf(a *agent.Agent, name string) *agent.ApplicationStatus {
	all := a.Status()
	i := slices.IndexFunc(all, func(s agent.ApplicationStatus) bool { return s.Application.Name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

func (w *world) tombstone(p intent.Payload) intent.Payload {
	w.serial++
	return intent.Payload{Application: p.Application, UID: p.UID, Serial: w.serial, Tombstone: true, Reason: "revoked"}
}

// three runs ca, cb and cc in a chain.
func (w *world) three(a *agent.Agent) (ca, cb, cc intent.Payload) {
	w.t.Helper()
	ca, cb, cc = w.member("ca", "xdp_count", "count_packets", 1), w.member("cb", "xdp_pass", "xdp_pass", 2), w.member("cc", "xdp_gpl", "xdp_gpl", 3)
	if err := w.accept(a, ca, cb, cc); err != nil {
		w.t.Fatal(err)
	}
	return ca, cb, cc
}

// membersOf is the chain without what is not known of its limits.
func membersOf(t testing.TB, a *agent.Agent) string {
	t.Helper()
	chains, err := a.Chains()
	if err != nil {
		t.Fatal(err)
	}
	var members []string
	for _, c := range chains {
		for _, m := range c.Members {
			members = append(members, m.Application)
		}
	}
	return strings.Join(members, " ")
}

// TestWhatIsSwitchedOffTakesNobodyAlong: the object of a member is lost, and the chain stays as it is until
// that is back.
func TestWhatIsSwitchedOffTakesNobodyAlong(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "cn0", "cn1")
	o := w.options()
	o.BackOff = agent.BackOff{First: 100 * time.Millisecond, Most: 100 * time.Millisecond}
	a := w.startWith(o)
	ca, cb, _ := w.three(a)
	restore := w.lose(cb)
	err := w.accept(a, w.tombstone(ca))
	if err == nil || !strings.Contains(err.Error(), "ca: leave the chain of cn0: it is switched off, and is there still: fetch object of cb") {
		t.Errorf("Settled = %v", err)
	}
	if got := membersOf(t, a); got != "ca cb cc" {
		t.Fatalf("the chain is %q", got)
	}
	chains, err := a.Chains()
	must(t, err)
	off, before := *chains[0].Members[0].Runs, *chains[0].Members[1].Runs
	send(t, "cn1", 5)
	until(t, "the packets to pass the others", time.Minute, func() bool {
		chains, err = a.Chains()
		return err == nil && *chains[0].Members[2].Runs >= before+5
	})
	if m := chains[0].Members; len(m) != 3 || !m[0].SwitchedOff || *m[0].Runs != off || m[1].SwitchedOff || *m[1].Runs < before+5 || m[2].SwitchedOff {
		t.Errorf("the chain is %+v", m)
	}
	if s := statusOf(a, "cc"); s.Conditions[0].Status != "True" {
		t.Errorf("cc: %+v", s)
	}
	restore()
	until(t, "ca to be gone", time.Minute, func() bool {
		return membersOf(t, a) == "cb cc" && statusOf(a, "ca") == nil && statusOf(a, "cb").Error == ""
	})
}

// TestWhatIsToGoGoesWhereAnotherMemberCannotBeLinkedAgain has a chain whose members cannot be switched off.
func TestWhatIsToGoGoesWhereAnotherMemberCannotBeLinkedAgain(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "cn0", "cn1")
	o := w.options()
	o.BackOff = agent.BackOff{First: 100 * time.Millisecond, Most: 100 * time.Millisecond}
	a := w.startWith(o)
	a.LoadsUnswitched()
	ca, cb, _ := w.three(a)
	if err := w.accept(a, w.member("cd", "xdp_count_v2", "count_packets", 4)); err != nil {
		t.Fatal(err)
	}
	restore := w.lose(cb)
	err := w.accept(a, w.tombstone(ca))
	if got := membersOf(t, a); got != "cc cd" {
		t.Fatalf("the chain is %q", got)
	}
	if err == nil || !strings.Contains(err.Error(), "cb: run in the chain of cn0: it is left out") || !strings.Contains(err.Error(), "fetch object of cb") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("Settled = %v", err)
	}
	if s := statusOf(a, "ca"); s != nil {
		t.Errorf("what is gone is listed: %+v", s)
	}
	for _, pin := range w.pins() {
		if strings.Contains(pin, "uid-ca") {
			t.Errorf("pin %s is left", pin)
		}
	}
	for name, want := range map[string]string{"cb": "False", "cc": "True", "cd": "True"} {
		if s := statusOf(a, name); s == nil || string(s.Conditions[0].Status) != want {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if s := statusOf(a, "cb"); len(s.Programs) != 1 || len(s.Programs[0].Links) != 1 || s.Programs[0].Links[0].State != agent.Failed {
		t.Errorf("cb: %+v", s)
	}
	restore()
	until(t, "cb to be back", time.Minute, func() bool { return membersOf(t, a) == "cb cc cd" && statusOf(a, "cb").Error == "" })
}

// TestAChainStaysWhereAMemberCannotBeLinkedAgain: nothing must go, so that nobody
// is taken out, and who is told is who cannot be had.
func TestAChainStaysWhereAMemberCannotBeLinkedAgain(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		change func(w *world) intent.Payload
		failed map[string]string
	}{
		"a member changes its place": {
			func(w *world) intent.Payload { return w.member("cc", "xdp_gpl", "xdp_gpl", 0) },
			map[string]string{"cb": "fetch object of cb", "cc": "change the chain of cn0: it stays as it is: fetch object of cb"}},
		"a member lets others run after other verdicts": {
			func(w *world) intent.Payload {
				p := w.member("ca", "xdp_count", "count_packets", 1)
				p.Programs[0].Attach[0].ProceedOn = []string{"Drop"}
				return p
			},
			map[string]string{"cb": "fetch object of cb", "ca": "change the chain of cn0: it stays as it is: fetch object of cb"}},
		"a member goes elsewhere": {
			func(w *world) intent.Payload {
				return w.intent("ca", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: on("xdp", "cn1")})
			},
			map[string]string{"cb": "fetch object of cb", "ca": "it is switched off"}},
		"one more is to come": {
			func(w *world) intent.Payload { return w.member("cd", "xdp_count_v2", "count_packets", 4) },
			map[string]string{"cd": "fetch object of cb"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			veth(t, "cn0", "cn1")
			a, _ := w.start()
			_, cb, _ := w.three(a)
			w.lose(cb)
			if err := w.accept(a, c.change(w)); err == nil {
				t.Error("nothing failed")
			}
			if got := membersOf(t, a); !strings.Contains(got, "ca cb cc") {
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
	w := newWorld(t)
	veth(t, "cn0", "cn1")
	a, stop := w.start()
	ca, _, _ := w.three(a)
	stop()
	kept, err := filepath.Glob(filepath.Join(w.dir, "state", "intents", ca.UID+"*"))
	if err != nil || len(kept) != 2 {
		t.Fatalf("of %s are kept %v, %v", ca.Application, kept, err)
	}
	for _, path := range kept {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	o := w.options()
	next, given := w.member("ca", "xdp_count_v2", "count_packets", 1), make(chan struct{})
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
	a = w.startWith(o)
	w.give(a, next, w.member("cd", "xdp_pass", "xdp_pass", 4))
	until(t, "the newcomer to wait", time.Minute, func() bool {
		s := statusOf(a, "cd")
		return s != nil && s.Conditions[0].Reason == "Queued" && strings.Contains(s.Conditions[0].Message, "lost")
	})
	close(given)
	if err := w.accept(a); err != nil {
		t.Error(err)
	}
	if got := chainOf(t, a); got != "ca:count_packets cb:xdp_pass cc:xdp_gpl cd:xdp_pass" {
		t.Errorf("chain is %q", got)
	}
}

// TestWhatIsToGoIsListedWhileAChainRunsIt: the registry hangs, and the chain is
// left as it is until it is given up.
func TestWhatIsToGoIsListedWhileAChainRunsIt(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "cn0", "cn1")
	o := w.options()
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
	a := w.startWith(o)
	ca, cb, _ := w.three(a)
	w.lose(cb)
	if err := a.Accept(w.seal(w.tombstone(ca))); err != nil {
		t.Fatal(err)
	}
	until(t, "the tombstone to be worked on", time.Minute, func() bool {
		s := statusOf(a, "ca")
		return s != nil && s.Conditions[0].Reason == "Unloading"
	})
	s := statusOf(a, "ca")
	if got := membersOf(t, a); got != "ca cb cc" || s.Revision == "" || len(s.Programs) != 1 || len(s.Programs[0].Links) != 1 || s.Programs[0].ID == 0 {
		t.Errorf("the chain is %q, and ca %+v", got, s)
	}
	if !slices.ContainsFunc(w.pins(), func(p string) bool { return strings.Contains(p, "uid-ca") }) {
		t.Error("its pins are gone, and it runs")
	}
	close(given)
	if err := w.accept(a); err == nil || !strings.Contains(err.Error(), "cb:") {
		t.Errorf("Settled = %v", err)
	}
	if got := membersOf(t, a); got != "ca cb cc" || statusOf(a, "ca") == nil {
		t.Errorf("the chain is %q, and ca %+v", got, statusOf(a, "ca"))
	}
}
