package hooks_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// seen reads the global variable of usdt.o.
func seen(w *world.World, a *agent.Agent) (s world.Seen) {
	w.T.Helper()
	if err := binary.Read(bytes.NewReader(world.Section(w, a, "%2ebss")), binary.NativeEndian, &s); err != nil {
		w.T.Fatal(err)
	}
	return s
}

func TestTheArgumentsOfAUSDTProbeArrive(t *testing.T) {
	need.Kernel(t)
	for sentence, o := range map[string]userbinary.Options{"as linked": {}, "moved after it was linked": {Prelinked: 0x10000}} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			a, _ := w.Start()
			path := world.Install(t, userbinary.Make(world.Declaring(), o))
			if err := w.Accept(a, world.Probing(w, "1", path, "one")); err != nil {
				t.Fatal(err)
			}
			world.Execute(t, path)
			if diff := cmp.Diff(world.ArgumentsOfOne(1), seen(w, a)); diff != "" {
				t.Errorf("the program read (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAProbeWithASemaphoreIsSwitchedOn(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	path := world.Install(t, userbinary.Make(world.Declaring(), userbinary.Options{}))
	if err := w.Accept(a, world.Probing(w, "1", path, "guarded")); err != nil {
		t.Fatal(err)
	}
	world.Execute(t, path)
	if got := seen(w, a); got.Runs != 1 || got.Count != 0 {
		t.Errorf("the program ran %d times and read %d arguments", got.Runs, got.Count)
	}
}

// specs are the entries of the arguments of each link, by its target.
func specs(t *testing.T, a *agent.Agent) map[string]uint32 {
	t.Helper()
	all := map[string]uint32{}
	for _, l := range a.Status()[0].Programs[0].Links {
		text, err := os.Readlink(l.Pin + "+at")
		if err != nil {
			t.Fatal(err)
		}
		var has struct {
			SpecID uint32 `json:"specId"`
		}
		if err := json.Unmarshal([]byte(text), &has); err != nil {
			t.Fatal(err)
		}
		all[l.Target] = has.SpecID
	}
	return all
}

// TestEveryPlaceOfAProbeKeepsItsArguments takes a probe with two places through an update,
// a restart and another binary.
func TestEveryPlaceOfAProbeKeepsItsArguments(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, stop := w.Start()
	path := world.Install(t, userbinary.Make(world.Declaring(), userbinary.Options{}))
	if err := w.Accept(a, world.Probing(w, "1", path, "two")); err != nil {
		t.Fatal(err)
	}
	first := specs(t, a)
	var ids []uint32
	for target, id := range first {
		ids = append(ids, id)
		if !strings.HasPrefix(target, path+":skep:two+0x") {
			t.Errorf("a link is on %s", target)
		}
	}
	if slices.Sort(ids); !slices.Equal(ids, []uint32{0, 1}) {
		t.Fatalf("the places have the arguments %v", first)
	}
	fires := func(what string, runs uint64) {
		t.Helper()
		world.Execute(t, path)
		got := seen(w, a)
		if got.Runs != runs || got.Arguments[0] != 2 || got.Count != 1 {
			t.Errorf("%s it ran %d times, want %d, and read %d of %d", what, got.Runs, runs, got.Arguments[0], got.Count)
		}
	}
	fires("at first", 2)
	if err := w.Accept(a, world.Probing(w, "1000", path, "two")); err != nil {
		t.Fatal(err)
	}
	fires("after the update", 2002)
	if diff := cmp.Diff(first, specs(t, a)); diff != "" {
		t.Errorf("the update changed (-before +after):\n%s", diff)
	}
	stop()
	a, _ = w.Start()
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	fires("after the restart", 4002)
	if diff := cmp.Diff(first, specs(t, a)); diff != "" {
		t.Errorf("the restart changed (-before +after):\n%s", diff)
	}
	// The places move, since another function comes first.
	moved := append([]userbinary.Function{{Name: "more", Code: []byte{0x90}}}, world.Declaring()...)
	if err := os.WriteFile(path+".new", userbinary.Make(moved, userbinary.Options{}), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the links to be on the new binary", time.Minute, func() bool {
		s := a.Status()[0]
		return s.Error == "" && len(s.Programs[0].Links) == 2 && !slices.ContainsFunc(s.Programs[0].Links, func(l agent.LinkStatus) bool {
			_, old := first[l.Target]
			return old || l.State != agent.Attached
		})
	})
	fires("in the new binary", 6002)
	world.PinsAreTidy(w, map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
	w.Serial++
	if err := w.Accept(a, intent.Payload{
		Application: a.Status()[0].Application, UID: a.Status()[0].UID, Serial: w.Serial, Tombstone: true, Reason: "test",
	}); err != nil {
		t.Fatal(err)
	}
	w.LeavesNothing()
}

func TestAProbeThatABinaryLacksIsNamedWithThoseNearIt(t *testing.T) {
	need.Kernel(t)
	unreadable := []userbinary.Function{{Name: "f", Code: []byte{0x90}, Probes: []userbinary.Probe{{Provider: "skep", Name: "float", Args: "4f@%xmm0"}}}}
	for sentence, c := range map[string]struct {
		functions []userbinary.Function
		probe     string
		want      string
	}{
		"a name":      {world.Declaring(), "ome", "the binary has no probe skep:ome; near it are skep:one"},
		"no probes":   {world.Workers(), "one", "the binary has no probe skep:one"},
		"an argument": {unreadable, "float", `argument 1 of the probe, of "4f@%xmm0"`},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			a, _ := w.Start()
			path := world.Install(t, userbinary.Make(c.functions, userbinary.Options{}))
			if err := w.Accept(a, world.Probing(w, "1", path, c.probe)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("accept = %v, want %q", err, c.want)
			}
			if _, l := world.One(t, a); l.State != agent.Failed || l.Hook != "usdt" || !strings.Contains(l.Target, path) {
				t.Errorf("link = %+v", l)
			}
		})
	}
}

// full is an intent for the two places of a probe, with room for the arguments of so many.
func full(w *world.World, path string, entries uint32) intent.Payload {
	p := world.Probing(w, "1", path, "two")
	p.Maps = map[string]v1alpha1.Map{"__bpf_usdt_specs": {MaxEntries: &entries}}
	return p
}

// replace puts another file in the place of a binary.
func replace(t *testing.T, path string, functions []userbinary.Function) {
	t.Helper()
	if err := os.WriteFile(path+".new", userbinary.Make(functions, userbinary.Options{}), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestABinaryWhoseProbesAreTheSameKeepsItsLinks(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	path := world.Install(t, userbinary.Make(world.Declaring(), userbinary.Options{}))
	if err := w.Accept(a, full(w, path, 2)); err != nil {
		t.Fatal(err)
	}
	first := world.LinkIDs(a)
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	turns(t, a, 3)
	if diff := cmp.Diff(first, world.LinkIDs(a)); diff != "" || len(first) != 2 {
		t.Errorf("after touch, the links (-before +after):\n%s", diff)
	}
	replace(t, path, world.Declaring())
	world.Until(t, "the links to be on the new binary", time.Minute, func() bool {
		s := a.Status()[0]
		return s.Error == "" && len(s.Programs[0].Links) == 2 && !slices.ContainsFunc(s.Programs[0].Links, func(l agent.LinkStatus) bool {
			return l.ID == first[l.Target] || l.State != agent.Attached
		})
	})
	world.Execute(t, path)
	if got := seen(w, a); got.Runs != 2 || got.Arguments[0] != 2 {
		t.Errorf("in the new binary the program ran %d times, and read %d", got.Runs, got.Arguments[0])
	}
	world.PinsAreTidy(w, map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
}

// TestLinksStayWhereTheirReplacementFails has no room for other arguments beside those that
// are there.
func TestLinksStayWhereTheirReplacementFails(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	path := world.Install(t, userbinary.Make(world.Declaring(), userbinary.Options{}))
	if err := w.Accept(a, full(w, path, 2)); err != nil {
		t.Fatal(err)
	}
	first := world.LinkIDs(a)
	others := world.Declaring()
	for i, arguments := range []string{"4@$3", "4@$4"} {
		others[i+1].Probes[0].Args = arguments
	}
	replace(t, path, others)
	world.Until(t, "the failure to be said", time.Minute, func() bool {
		return strings.Contains(a.Status()[0].Error, "__bpf_usdt_specs is for 2 places of probes; set maps.__bpf_usdt_specs.maxEntries")
	})
	turns(t, a, 3)
	for target, id := range first {
		if world.Runs(t, id) == 0 {
			t.Errorf("the link %d of %s is gone, and nothing is in its place", id, target)
		}
	}
	if err := w.Accept(a, full(w, path, 8)); err != nil {
		t.Fatal(err)
	}
	world.Execute(t, path)
	if got := seen(w, a); got.Arguments[0] != 4 {
		t.Errorf("in the new binary the program read %d", got.Arguments[0])
	}
	for target, id := range first {
		world.Until(t, fmt.Sprintf("the link %d of %s to end", id, target), time.Minute, func() bool { return world.Runs(t, id) == 0 })
	}
	world.PinsAreTidy(w, map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
}
