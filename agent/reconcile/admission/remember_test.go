package admission_test

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
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestWhoFillsAnInterfaceTakesNobodyFromAnother has an application run on one
// interface, and lose a second one, before and after a reboot.
func TestWhoFillsAnInterfaceTakesNobodyFromAnother(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range attacks() {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "fr0", "fr1")
			a, end := newAgent(w, 100)
			victim := world.Tenant(c.victim(w, "fr*"), "home", "victim", 2, 500)
			victim.Programs[0].Attach[0].Interfaces.Exclude = []string{"fr1", "fr3"}
			attacker := world.Tenant(c.attacker(w, "fr2"), "zone", "attacker", 1, 1)
			world.Hand(w, a, victim, attacker)
			// The attacker is older, and has the second one.
			world.Veth(t, "fr2", "fr3")
			for range 2 {
				world.Looks(t, a)
				if got := world.At(a, victim); got != "fr0" || world.ErrorOf(a, victim) == "" {
					t.Errorf("the victim runs at %q: %q", got, world.ErrorOf(a, victim))
				}
				if got := world.At(a, attacker); got != "fr2" {
					t.Errorf("the attacker runs at %q: %s", got, world.ErrorOf(a, attacker))
				}
				end()
				if err := os.RemoveAll(w.BPFFS); err != nil {
					t.Fatal(err)
				}
				recreate(t, "fr0", "fr1")
				recreate(t, "fr2", "fr3")
				a, end = newAgent(w, 100)
			}
			// Room that is free again is taken.
			world.Hand(w, a, w.Tombstone(attacker))
			if got := world.At(a, victim); got != "fr0 fr2" || !world.IsIn(a, victim) {
				t.Errorf("without the attacker the victim runs at %q: %q", got, world.ErrorOf(a, victim))
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
			w := world.New(t)
			world.Veth(t, "fr0", "fr1")
			old := world.Tenant(world.XDP(w, "xdp_gpl", "xdp_gpl", "fr0"), "home", "old", 1, 500)
			young := world.Tenant(world.XDP(w, "xdp_proprietary", "xdp_proprietary", "fr0"), "area", "young", 2, 1)
			elsewhere := world.Tenant(w.Intent("raw", "raw_tp_count", world.RawProgram()), "", "raw", 3, 0)
			elsewhere.Application = world.Identity("raw")
			come := make(chan struct{})
			o := w.Options()
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
				return w.Fetch(ctx, digest)
			}
			a := w.Idle(o)
			w.Give(a, old, young, elsewhere)
			world.Until(t, "the younger one to wait, and the third to be in", time.Minute, func() bool {
				a.Reconcile(t.Context())
				s := world.StatusOf(a, "young")
				return world.IsIn(a, elsewhere) && s != nil && s.Conditions[0].Reason == "Queued"
			})
			if world.At(a, young) != "" {
				t.Errorf("the younger one runs at %q", world.At(a, young))
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
			world.Until(t, "the fetch to end", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, first) })
			world.Looks(t, a)
			if world.IsIn(a, second) || world.At(a, second) != "" {
				t.Errorf("both are in")
			}
		})
	}
}

// TestRoomIsKeptForWhoRanAndIsFetchedAgain tears an object, as a crash may, and
// reboots.
func TestRoomIsKeptForWhoRanAndIsFetchedAgain(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "fr0", "fr1")
	a, end := newAgent(w, 100)
	victim := world.Tenant(world.XDP(w, "xdp_maps", "xdp_maps", "fr0"), "home", "victim", 2, 500)
	attacker := world.Tenant(maps62(w, "fr0"), "area", "attacker", 1, 1)
	world.Hand(w, a, victim, attacker)
	end()
	if err := os.RemoveAll(w.BPFFS); err != nil {
		t.Fatal(err)
	}
	recreate(t, "fr0", "fr1")
	restore := world.Lose(w, victim)
	a, _ = newAgent(w, 100)
	world.Until(t, "the attacker to be refused", time.Minute, func() bool { a.Reconcile(t.Context()); return world.ErrorOf(a, attacker) != "" })
	if world.At(a, attacker) != "" || !strings.Contains(world.ErrorOf(a, attacker), "5 by others") {
		t.Errorf("the attacker runs at %q: %q", world.At(a, attacker), world.ErrorOf(a, attacker))
	}
	restore()
	world.Until(t, "the victim to be back", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, victim) })
}

// TestOnlyWhatIsAskedForIsRemembered has an application leave a place, or change,
// or go, and another come: it has no claim to the place any more.
func TestOnlyWhatIsAskedForIsRemembered(t *testing.T) {
	need.Kernel(t)
	for sentence, leave := range map[string]func(w *world.World, p intent.Payload) intent.Payload{
		"it went elsewhere": func(w *world.World, p intent.Payload) intent.Payload {
			w.Serial++
			p.Serial, p.Programs = w.Serial, slices.Clone(p.Programs)
			p.Programs[0].Attach = world.On("xdp", "fr1")
			return p
		},
		"it was unloaded": func(w *world.World, p intent.Payload) intent.Payload { return w.Tombstone(p) },
		"it runs less": func(w *world.World, p intent.Payload) intent.Payload {
			less := world.Tenant(world.XDP(w, "xdp_pass", "xdp_pass", "fr0"), "area", "attacker", 1, 1)
			return less
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "fr0", "fr1")
			a, end := newAgent(w, 100)
			attacker := world.Tenant(maps62(w, "fr0"), "area", "attacker", 1, 1)
			victim := world.Tenant(world.XDP(w, "xdp_maps", "xdp_maps", "fr0"), "home", "victim", 2, 500)
			world.Hand(w, a, attacker, leave(w, attacker), victim)
			if !world.IsIn(a, victim) {
				t.Fatalf("the victim is told %q", world.ErrorOf(a, victim))
			}
			w.Serial++
			attacker.Serial = w.Serial
			world.Hand(w, a, attacker)
			end()
			if err := os.RemoveAll(w.BPFFS); err != nil {
				t.Fatal(err)
			}
			recreate(t, "fr0", "fr1")
			a, _ = newAgent(w, 100)
			world.Looks(t, a)
			if !world.IsIn(a, victim) || world.IsIn(a, attacker) {
				t.Errorf("the victim is told %q, the attacker %q", world.ErrorOf(a, victim), world.ErrorOf(a, attacker))
			}
		})
	}
}

// TestForeignProgramsOnTCXAreCounted fills a hook by hand.
func TestForeignProgramsOnTCXAreCounted(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "fr0", "fr1")
	for range 60 {
		clone := world.ForeignProgram(t, ebpf.SchedCLS)
		l, err := link.AttachTCX(link.TCXOptions{Interface: world.Index(t, "fr0"), Program: clone, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			t.Skip("SKIPPED: no TCX here: ", err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	a, _ := newAgent(w, 100)
	big := world.Tenant(world.TCX63(w, "fr0", 4), "area", "big", 1, 1)
	small := world.Tenant(world.TCX63(w, "fr0", 3), "home", "small", 2, 1)
	world.Hand(w, a, big, small)
	if !strings.Contains(world.ErrorOf(a, big), "programs: it takes 4, and of the 3 that the kernel allows") || world.At(a, big) != "" || !world.IsIn(a, small) {
		t.Errorf("the large one is told %q, the small one %q", world.ErrorOf(a, big), world.ErrorOf(a, small))
	}
}

// TestWhatIsRememberedIsBounded writes more into the file than an agent keeps, and
// what none can read.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "fr0", "fr1")
	a, end := newAgent(w, 50)
	p := world.Tenant(world.XDP(w, "xdp_count", "count_packets", "fr0"), "home", "app", 1, 500)
	other := world.Tenant(world.XDP(w, "xdp_pass", "xdp_pass", "fr0"), "home", "other", 1, 500)
	world.Hand(w, a, p, other)
	end()
	file := filepath.Join(w.Dir, "state", "ran.json")
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
	a, end = newAgent(w, 50)
	world.Looks(t, a)
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
	a, _ = newAgent(w, 50)
	world.Looks(t, a)
	if !world.IsIn(a, p) || len(read()) != 2 {
		t.Errorf("%q; it holds %d", world.ErrorOf(a, p), len(read()))
	}
}

// TestWhatCouldNotBeMeasuredIsMeasuredLater has an earlier agent remember a program
// without what it takes, as where its object could not be read.
func TestWhatCouldNotBeMeasuredIsMeasuredLater(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "fr0", "fr1")
	a, end := newAgent(w, 100)
	p := world.Tenant(world.XDP(w, "xdp_maps", "xdp_maps", "fr0"), "home", "app", 1, 500)
	world.Hand(w, a, p)
	end()
	file := filepath.Join(w.Dir, "state", "ran.json")
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
	a, _ = newAgent(w, 100)
	world.Until(t, "it to be measured", time.Minute, func() bool {
		a.Reconcile(t.Context())
		now, err := os.ReadFile(file)
		return err == nil && bytes.Equal(now, measured)
	})
}
