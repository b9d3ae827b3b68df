package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/need"
)

// hand hands intents over one by one, and looks after each.
func (w *world) hand(a *agent.Agent, payloads ...intent.Payload) {
	w.t.Helper()
	for _, p := range payloads {
		if err := a.Accept(w.seal(p)); err != nil {
			w.t.Fatal(err)
		}
		looks(w.t, a)
	}
}

// at are the interfaces that an application is attached to.
func at(a *agent.Agent, p intent.Payload) string {
	var all []string
	for _, s := range a.Status() {
		if s.UID != p.UID {
			continue
		}
		for _, program := range s.Programs {
			for _, l := range program.Links {
				if l.State == agent.Attached {
					all = append(all, l.Target)
				}
			}
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

// TestWhoFillsAnInterfaceTakesNobodyFromAnother has an application run on one
// interface, and lose a second one, before and after a reboot.
func TestWhoFillsAnInterfaceTakesNobodyFromAnother(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range attacks() {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			veth(t, "fr0", "fr1")
			a, end := w.newAgent(100)
			victim := tenant(c.victim(w, "fr*"), "home", "victim", 2, 500)
			victim.Programs[0].Attach[0].Interfaces.Exclude = []string{"fr1", "fr3"}
			attacker := tenant(c.attacker(w, "fr2"), "zone", "attacker", 1, 1)
			w.hand(a, victim, attacker)
			// The attacker is older, and has the second one.
			veth(t, "fr2", "fr3")
			for range 2 {
				looks(t, a)
				if got := at(a, victim); got != "fr0" || errorOf(a, victim) == "" {
					t.Errorf("the victim runs at %q: %q", got, errorOf(a, victim))
				}
				if got := at(a, attacker); got != "fr2" {
					t.Errorf("the attacker runs at %q: %s", got, errorOf(a, attacker))
				}
				end()
				if err := os.RemoveAll(w.bpffs); err != nil {
					t.Fatal(err)
				}
				recreate(t, "fr0", "fr1")
				recreate(t, "fr2", "fr3")
				a, end = w.newAgent(100)
			}
			// Room that is free again is taken.
			w.hand(a, w.tombstone(attacker))
			if got := at(a, victim); got != "fr0 fr2" || !isIn(a, victim) {
				t.Errorf("without the attacker the victim runs at %q: %q", got, errorOf(a, victim))
			}
		})
	}
}

// TestAnOlderOneIsWaitedForWhileItIsFetched has the objects of a new node come in
// the wrong order.
func TestAnOlderOneIsWaitedForWhileItIsFetched(t *testing.T) {
	need.Kernel(t)
	for sentence, fails := range map[string]bool{"it comes": false, "it does not come": true} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			veth(t, "fr0", "fr1")
			old := tenant(w.xdp("xdp_gpl", "xdp_gpl", "fr0"), "home", "old", 1, 500)
			young := tenant(w.xdp("xdp_proprietary", "xdp_proprietary", "fr0"), "area", "young", 2, 1)
			elsewhere := tenant(w.intent("raw", "raw_tp_count", rawProgram()), "", "raw", 3, 0)
			elsewhere.Application = w.identity("raw")
			come := make(chan struct{})
			o := w.options()
			o.NamespaceShare, o.BackOff = 100, agent.BackOff{First: time.Hour, Most: time.Hour}
			o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
				if digest == old.ObjectDigest {
					select {
					case <-come:
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					if fails {
						return nil, errors.New("gone")
					}
				}
				return w.fetch(ctx, digest)
			}
			a := w.idle(o)
			w.give(a, old, young, elsewhere)
			until(t, "the younger one to wait, and the third to be in", time.Minute, func() bool {
				a.Reconcile(t.Context())
				s := statusOf(a, "young")
				return isIn(a, elsewhere) && s != nil && s.Conditions[0].Reason == "Queued"
			})
			if at(a, young) != "" {
				t.Errorf("the younger one runs at %q", at(a, young))
			}
			for _, s := range a.Status() {
				if s.UID == young.UID && (s.Conditions[0].Reason != "Queued" ||
					!strings.Contains(s.Conditions[0].Message, "an application that has precedence on xdp of fr0 is on its way")) {
					t.Errorf("the younger one is told %+v", s.Conditions[0])
				}
			}
			close(come)
			first, second := old, young
			if fails {
				first, second = young, old
			}
			until(t, "the fetch to end", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, first) })
			looks(t, a)
			if isIn(a, second) || at(a, second) != "" {
				t.Errorf("both are in")
			}
		})
	}
}

// TestRoomIsKeptForWhoRanAndIsFetchedAgain tears an object, as a crash may, and
// reboots.
func TestRoomIsKeptForWhoRanAndIsFetchedAgain(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "fr0", "fr1")
	a, end := w.newAgent(100)
	victim := tenant(w.xdp("xdp_maps", "xdp_maps", "fr0"), "home", "victim", 2, 500)
	attacker := tenant(w.maps62("fr0"), "area", "attacker", 1, 1)
	w.hand(a, victim, attacker)
	end()
	if err := os.RemoveAll(w.bpffs); err != nil {
		t.Fatal(err)
	}
	recreate(t, "fr0", "fr1")
	restore := w.lose(victim)
	a, _ = w.newAgent(100)
	until(t, "the attacker to be refused", time.Minute, func() bool { a.Reconcile(t.Context()); return errorOf(a, attacker) != "" })
	if at(a, attacker) != "" || !strings.Contains(errorOf(a, attacker), "5 by others") {
		t.Errorf("the attacker runs at %q: %q", at(a, attacker), errorOf(a, attacker))
	}
	restore()
	until(t, "the victim to be back", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, victim) })
}

// TestOnlyWhatIsAskedForIsRemembered has an application leave a place, or change,
// or go, and another come: it has no claim to the place any more.
func TestOnlyWhatIsAskedForIsRemembered(t *testing.T) {
	need.Kernel(t)
	for sentence, leave := range map[string]func(w *world, p intent.Payload) intent.Payload{
		"it went elsewhere": func(w *world, p intent.Payload) intent.Payload {
			w.serial++
			p.Serial, p.Programs = w.serial, slices.Clone(p.Programs)
			p.Programs[0].Attach = on("xdp", "fr1")
			return p
		},
		"it was unloaded": func(w *world, p intent.Payload) intent.Payload { return w.tombstone(p) },
		"it runs less": func(w *world, p intent.Payload) intent.Payload {
			less := tenant(w.xdp("xdp_pass", "xdp_pass", "fr0"), "area", "attacker", 1, 1)
			return less
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			veth(t, "fr0", "fr1")
			a, end := w.newAgent(100)
			attacker := tenant(w.maps62("fr0"), "area", "attacker", 1, 1)
			victim := tenant(w.xdp("xdp_maps", "xdp_maps", "fr0"), "home", "victim", 2, 500)
			w.hand(a, attacker, leave(w, attacker), victim)
			if !isIn(a, victim) {
				t.Fatalf("the victim is told %q", errorOf(a, victim))
			}
			w.serial++
			attacker.Serial = w.serial
			w.hand(a, attacker)
			end()
			if err := os.RemoveAll(w.bpffs); err != nil {
				t.Fatal(err)
			}
			recreate(t, "fr0", "fr1")
			a, _ = w.newAgent(100)
			looks(t, a)
			if !isIn(a, victim) || isIn(a, attacker) {
				t.Errorf("the victim is told %q, the attacker %q", errorOf(a, victim), errorOf(a, attacker))
			}
		})
	}
}

// TestForeignProgramsOnTCXAreCounted fills a hook by hand.
func TestForeignProgramsOnTCXAreCounted(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "fr0", "fr1")
	for range 60 {
		clone := foreignProgram(t, ebpf.SchedCLS)
		l, err := link.AttachTCX(link.TCXOptions{Interface: index(t, "fr0"), Program: clone, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			t.Skip("SKIPPED: no TCX here: ", err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	a, _ := w.newAgent(100)
	big := tenant(w.tcx63("fr0", 4), "area", "big", 1, 1)
	small := tenant(w.tcx63("fr0", 3), "home", "small", 2, 1)
	w.hand(a, big, small)
	if !strings.Contains(errorOf(a, big), "programs: it takes 4, and of the 3 that the kernel allows") || at(a, big) != "" || !isIn(a, small) {
		t.Errorf("the large one is told %q, the small one %q", errorOf(a, big), errorOf(a, small))
	}
}

// TestWhatIsRememberedIsBounded writes more into the file than an agent keeps, and
// what none can read.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "fr0", "fr1")
	a, end := w.newAgent(50)
	p := tenant(w.xdp("xdp_count", "count_packets", "fr0"), "home", "app", 1, 500)
	other := tenant(w.xdp("xdp_pass", "xdp_pass", "fr0"), "home", "other", 1, 500)
	w.hand(a, p, other)
	end()
	file := filepath.Join(w.dir, "state", "ran.json")
	read := func() (all []map[string]any) {
		t.Helper()
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(body, &all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	all := read()
	if len(all) != 2 || all[0]["interface"] != "fr0" || all[0]["hook"] != "xdp" {
		t.Fatalf("it holds %v", all)
	}
	for i := range 3000 {
		uid := p.UID
		if i%2 == 0 {
			uid = fmt.Sprint("unknown", i)
		}
		all = append(all, map[string]any{"uid": uid, "hook": "xdp", "interface": fmt.Sprint("gone", i), "revision": "r", "programs": []string{"x"}, "gone": i + 1})
	}
	body, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	a, end = w.newAgent(50)
	looks(t, a)
	end()
	mine, unknown, newest := 0, 0, false
	for _, one := range read() {
		switch one["uid"] {
		case p.UID:
			mine++
		case other.UID:
		default:
			unknown++
		}
		newest = newest || one["interface"] == "gone2999"
	}
	if mine != 65 || unknown != 1024 || !newest {
		t.Errorf("it holds %d of one application, %d of unknown ones; the newest %t", mine, unknown, newest)
	}

	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, _ = w.newAgent(50)
	looks(t, a)
	if !isIn(a, p) || len(read()) != 2 {
		t.Errorf("%q; it holds %d", errorOf(a, p), len(read()))
	}
}

// TestWhatCouldNotBeMeasuredIsMeasuredLater has an earlier agent remember a program
// without what it takes, as where its object could not be read.
func TestWhatCouldNotBeMeasuredIsMeasuredLater(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "fr0", "fr1")
	a, end := w.newAgent(100)
	p := tenant(w.xdp("xdp_maps", "xdp_maps", "fr0"), "home", "app", 1, 500)
	w.hand(a, p)
	end()
	file := filepath.Join(w.dir, "state", "ran.json")
	measured, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []map[string]any
	if err := json.Unmarshal(measured, &all); err != nil || len(all) != 1 {
		t.Fatal(string(measured), err)
	}
	all[0]["need"] = map[string]any{"programs": 1}
	body, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	a, _ = w.newAgent(100)
	until(t, "it to be measured", time.Minute, func() bool {
		a.Reconcile(t.Context())
		now, err := os.ReadFile(file)
		return err == nil && bytes.Equal(now, measured)
	})
}
