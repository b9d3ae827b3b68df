package agent_test

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/harness/need"
)

//go:embed testdata/usdt.o
var usdtObject []byte

// declaring are functions of a binary with USDT probes: skep:one has one place, skep:two
// two, and skep:guarded is passed where its semaphore is 0.
func declaring() []userbinary.Function {
	code := []byte{
		0xbf, 0xf9, 0xff, 0xff, 0xff, // mov edi,-7
		0x48, 0xb8, 0xcb, 0x04, 0xfb, 0x71, 0x1f, 0x01, 0, 0, // mov rax,1234567890123
		0x48, 0xc7, 0xc2, 0, 1, 0x60, 0, // mov rdx,data+0x100
		0x48, 0xc7, 0xc1, 2, 0, 0, 0, // mov rcx,2
		0x48, 0x89, 0x44, 0xca, 8, // mov [rdx+rcx*8+8],rax
		0xc7, 0x44, 0x24, 0xf0, 42, 0, 0, 0, // mov dword [rsp-16],42
		0x90}
	args := "-4@%edi 8@%rax -4@-16(%rsp) 8@$-5 1@%al -2@24(%rdx) 8@8(%rdx,%rcx,8)"
	nop := []byte{0x90, 0x90}
	guarded := []byte{0x66, 0x83, 0x3c, 0x25, 0, 0, 0x60, 0, 0, 0x74, 1, 0x90} // cmp word [semaphore],0; je over; nop
	return []userbinary.Function{
		{Name: "f", Code: code, Probes: []userbinary.Probe{{Provider: "skep", Name: "one", Args: args, At: len(code) - 1}}},
		{Name: "g", Code: nop, Probes: []userbinary.Probe{{Provider: "skep", Name: "two", Args: "4@$1"}}},
		{Name: "h", Code: nop, Probes: []userbinary.Probe{{Provider: "skep", Name: "two", Args: "4@$2", At: 1}}},
		{Name: "i", Code: guarded, Probes: []userbinary.Probe{{Provider: "skep", Name: "guarded", At: len(guarded) - 1, Guarded: true}}},
	}
}

// probing is an intent for the program of usdt.o on a probe of skep's in a binary.
func (w *world) probing(version, path, probe string) intent.Payload {
	p := w.version(version, v1alpha1.Attachment{Hook: "usdt", Binary: &v1alpha1.UserBinary{Path: path, USDT: &v1alpha1.USDT{Provider: "skep", Name: probe}}})
	p.ObjectDigest = w.object(weakUSDT())
	p.Programs[0].Name = "on_probe"
	return p
}

// weakUSDT is usdt.o with the weak symbols of usdt.bpf.h.
func weakUSDT() []byte {
	return programs.Weak(usdtObject, "__bpf_usdt_specs", "__bpf_usdt_ip_to_spec_id", "bpf_usdt_arg", "bpf_usdt_arg_cnt", "bpf_usdt_cookie")
}

// seen is what the program of usdt.o read last.
type seen struct {
	Runs              uint64
	Arguments, Errors [12]int64
	Count             uint64
}

// seen reads the global variable of usdt.o.
func (w *world) seen(a *agent.Agent) (s seen) {
	w.t.Helper()
	if err := binary.Read(bytes.NewReader(w.section(a, "%2ebss")), binary.NativeEndian, &s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// argumentsOfOne is what the program reads at skep:one.
func argumentsOfOne(runs uint64) seen {
	want := seen{Runs: runs, Count: 7}
	copy(want.Arguments[:], []int64{-7, 1234567890123, 42, -5, 0xcb, 0x04cb})
	// This libbpf reads no arguments by an index.
	want.Errors[6] = -int64(unix.EINVAL)
	return want
}

func TestTheArgumentsOfAUSDTProbeArrive(t *testing.T) {
	need.Kernel(t)
	for sentence, o := range map[string]userbinary.Options{"as linked": {}, "moved after it was linked": {Prelinked: 0x10000}} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			a, _ := w.start()
			path := install(t, userbinary.Make(declaring(), o))
			if err := w.accept(a, w.probing("1", path, "one")); err != nil {
				t.Fatal(err)
			}
			execute(t, path)
			if diff := cmp.Diff(argumentsOfOne(1), w.seen(a)); diff != "" {
				t.Errorf("the program read (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAProbeWithASemaphoreIsSwitchedOn(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	a, _ := w.start()
	path := install(t, userbinary.Make(declaring(), userbinary.Options{}))
	if err := w.accept(a, w.probing("1", path, "guarded")); err != nil {
		t.Fatal(err)
	}
	execute(t, path)
	if got := w.seen(a); got.Runs != 1 || got.Count != 0 {
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
	w := newWorld(t)
	a, stop := w.start()
	path := install(t, userbinary.Make(declaring(), userbinary.Options{}))
	if err := w.accept(a, w.probing("1", path, "two")); err != nil {
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
		execute(t, path)
		got := w.seen(a)
		if got.Runs != runs || got.Arguments[0] != 2 || got.Count != 1 {
			t.Errorf("%s it ran %d times, want %d, and read %d of %d", what, got.Runs, runs, got.Arguments[0], got.Count)
		}
	}
	fires("at first", 2)
	if err := w.accept(a, w.probing("1000", path, "two")); err != nil {
		t.Fatal(err)
	}
	fires("after the update", 2002)
	if diff := cmp.Diff(first, specs(t, a)); diff != "" {
		t.Errorf("the update changed (-before +after):\n%s", diff)
	}
	stop()
	a, _ = w.start()
	if err := w.accept(a); err != nil {
		t.Fatal(err)
	}
	fires("after the restart", 4002)
	if diff := cmp.Diff(first, specs(t, a)); diff != "" {
		t.Errorf("the restart changed (-before +after):\n%s", diff)
	}
	// The places move, since another function comes first.
	moved := append([]userbinary.Function{{Name: "more", Code: []byte{0x90}}}, declaring()...)
	if err := os.WriteFile(path+".new", userbinary.Make(moved, userbinary.Options{}), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	until(t, "the links to be on the new binary", time.Minute, func() bool {
		s := a.Status()[0]
		return s.Error == "" && len(s.Programs[0].Links) == 2 && !slices.ContainsFunc(s.Programs[0].Links, func(l agent.LinkStatus) bool {
			_, old := first[l.Target]
			return old || l.State != agent.Attached
		})
	})
	fires("in the new binary", 6002)
	w.pinsAreTidy(map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
	w.serial++
	if err := w.accept(a, intent.Payload{
		Application: a.Status()[0].Application, UID: a.Status()[0].UID, Serial: w.serial, Tombstone: true, Reason: "test",
	}); err != nil {
		t.Fatal(err)
	}
	w.leavesNothing()
}

func TestAProbeThatABinaryLacksIsNamedWithThoseNearIt(t *testing.T) {
	need.Kernel(t)
	unreadable := []userbinary.Function{{Name: "f", Code: []byte{0x90}, Probes: []userbinary.Probe{{Provider: "skep", Name: "float", Args: "4f@%xmm0"}}}}
	for sentence, c := range map[string]struct {
		functions []userbinary.Function
		probe     string
		want      string
	}{
		"a name":      {declaring(), "ome", "the binary has no probe skep:ome; near it are skep:one"},
		"no probes":   {workers(), "one", "the binary has no probe skep:one"},
		"an argument": {unreadable, "float", `argument 1 of the probe, of "4f@%xmm0"`},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			a, _ := w.start()
			path := install(t, userbinary.Make(c.functions, userbinary.Options{}))
			if err := w.accept(a, w.probing("1", path, c.probe)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("accept = %v, want %q", err, c.want)
			}
			if _, l := one(t, a); l.State != agent.Failed || l.Hook != "usdt" || !strings.Contains(l.Target, path) {
				t.Errorf("link = %+v", l)
			}
		})
	}
}

// TestThePlacesOfAProbeStayWhereTheirPathDoesNotAnswer mounts a file system that hangs over
// the folder of the binary, and starts the agent anew.
func TestThePlacesOfAProbeStayWhereTheirPathDoesNotAnswer(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	a, stop := w.start()
	path := install(t, userbinary.Make(declaring(), userbinary.Options{}))
	if err := w.accept(a, w.probing("1", path, "two")); err != nil {
		t.Fatal(err)
	}
	first := linkIDs(a)
	stop()
	silent(t, filepath.Dir(path))
	a, _ = w.start()
	until(t, "the look-up to wait", time.Minute, func() bool { return a.Lookups() == 1 })
	turns(t, a, 3)
	if diff := cmp.Diff(first, linkIDs(a)); diff != "" || len(first) != 2 {
		t.Errorf("links (-before +after):\n%s", diff)
	}
}

// linkIDs are the kernel's ids of the links of the only program, by their targets.
func linkIDs(a *agent.Agent) map[string]uint32 {
	all := map[string]uint32{}
	for _, l := range a.Status()[0].Programs[0].Links {
		all[l.Target] = l.ID
	}
	return all
}

// full is an intent for the two places of a probe, with room for the arguments of so many.
func (w *world) full(path string, entries uint32) intent.Payload {
	p := w.probing("1", path, "two")
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
	w := newWorld(t)
	a, _ := w.start()
	path := install(t, userbinary.Make(declaring(), userbinary.Options{}))
	if err := w.accept(a, w.full(path, 2)); err != nil {
		t.Fatal(err)
	}
	first := linkIDs(a)
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	turns(t, a, 3)
	if diff := cmp.Diff(first, linkIDs(a)); diff != "" || len(first) != 2 {
		t.Errorf("after touch, the links (-before +after):\n%s", diff)
	}
	replace(t, path, declaring())
	until(t, "the links to be on the new binary", time.Minute, func() bool {
		s := a.Status()[0]
		return s.Error == "" && len(s.Programs[0].Links) == 2 && !slices.ContainsFunc(s.Programs[0].Links, func(l agent.LinkStatus) bool {
			return l.ID == first[l.Target] || l.State != agent.Attached
		})
	})
	execute(t, path)
	if got := w.seen(a); got.Runs != 2 || got.Arguments[0] != 2 {
		t.Errorf("in the new binary the program ran %d times, and read %d", got.Runs, got.Arguments[0])
	}
	w.pinsAreTidy(map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
}

// TestLinksStayWhereTheirReplacementFails has no room for other arguments beside those that
// are there.
func TestLinksStayWhereTheirReplacementFails(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	a, _ := w.start()
	path := install(t, userbinary.Make(declaring(), userbinary.Options{}))
	if err := w.accept(a, w.full(path, 2)); err != nil {
		t.Fatal(err)
	}
	first := linkIDs(a)
	others := declaring()
	for i, arguments := range []string{"4@$3", "4@$4"} {
		others[i+1].Probes[0].Args = arguments
	}
	replace(t, path, others)
	until(t, "the failure to be said", time.Minute, func() bool {
		return strings.Contains(a.Status()[0].Error, "__bpf_usdt_specs is for 2 places of probes; set maps.__bpf_usdt_specs.maxEntries")
	})
	turns(t, a, 3)
	for target, id := range first {
		if runs(t, id) == 0 {
			t.Errorf("the link %d of %s is gone, and nothing is in its place", id, target)
		}
	}
	if err := w.accept(a, w.full(path, 8)); err != nil {
		t.Fatal(err)
	}
	execute(t, path)
	if got := w.seen(a); got.Arguments[0] != 4 {
		t.Errorf("in the new binary the program read %d", got.Arguments[0])
	}
	a.AwaitClosings()
	for target, id := range first {
		if runs(t, id) != 0 {
			t.Errorf("the link %d of %s is left", id, target)
		}
	}
	w.pinsAreTidy(map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
}
