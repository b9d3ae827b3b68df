package pins_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// admin pins things of somebody else's below the agent's directory.
type admin struct {
	t     *testing.T
	bpffs string
	// has are the paths it made.
	has []string
}

func (a *admin) dir(name string) {
	a.t.Helper()
	if err := os.MkdirAll(filepath.Join(a.bpffs, name), 0o700); err != nil {
		a.t.Fatal(err)
	}
}

func (a *admin) mapAt(name string) {
	a.t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		a.t.Fatal(err)
	}
	path := filepath.Join(a.bpffs, name)
	if err := errors.Join(m.Pin(path), m.Close()); err != nil {
		a.t.Fatal(err)
	}
	a.has = append(a.has, path)
}

// linkAt pins a link of a program that is not Skep's, and returns its id.
func (a *admin) linkAt(name string) link.ID {
	a.t.Helper()
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_exit", Program: world.ForeignProgram(a.t, ebpf.RawTracepoint)})
	if err != nil {
		a.t.Fatal(err)
	}
	info, err := l.Info()
	if err != nil {
		a.t.Fatal(err)
	}
	path := filepath.Join(a.bpffs, name)
	if err := errors.Join(l.Pin(path), l.Close()); err != nil {
		a.t.Fatal(err)
	}
	a.has = append(a.has, path)
	return info.ID
}

// stillHas fails for everything that went.
func (a *admin) stillHas(when string) {
	a.t.Helper()
	for _, path := range a.has {
		if _, err := os.Lstat(path); err != nil {
			a.t.Errorf("%s: %v", when, err)
		}
	}
}

func TestWhatIsNotSkepsAmongThePinsStopsNothing(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "st0", "st1")
	a, stop := w.Start()
	raw := w.Intent("traced", "raw_tp_count", world.RawProgram())
	counter := w.Intent("counted", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "st0")})
	if err := w.Accept(a, raw, counter); err != nil {
		t.Fatal(err)
	}
	before := a.Status()
	stop()

	them := &admin{t: t, bpffs: w.BPFFS}
	revision := "uid-traced/" + before[1].Revision + "/"
	chains, err := filepath.Glob(filepath.Join(w.BPFFS, "+xdp", "*"))
	if err != nil || len(chains) != 1 {
		t.Fatalf("chains: %v, %v", chains, err)
	}
	chain := "+xdp/" + filepath.Base(chains[0]) + "/"
	them.mapAt("stray")
	them.dir("garbage/deeper")
	them.mapAt("garbage/stray")
	them.mapAt("garbage/deeper/stray")
	them.mapAt("uid-traced/stray")
	them.mapAt("uid-traced/+stray")
	them.dir("uid-traced/garbage")
	them.mapAt("uid-traced/garbage/p-stray")
	them.mapAt(revision + "stray")
	them.mapAt(revision + "p-%zz")
	foreign := them.linkAt("uid-traced/+links/stray")
	them.mapAt("+xdp/stray")
	them.mapAt("+xdp/9999")
	them.mapAt(chain + "stray")
	them.dir(chain + "garbage")
	them.mapAt(chain + "garbage/prog")

	var log bytes.Buffer
	o := w.Options()
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	a, stop = w.Run(o)
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	after := a.Status()
	for i := range before {
		was, is := before[i].Programs[0], after[i].Programs[0]
		if was.ID != is.ID || !reflect.DeepEqual(was.Links[0], is.Links[0]) {
			t.Errorf("what ran was not adopted: %+v then %+v", was, is)
		}
	}
	deployed := after[1].Conditions[0]
	if got := after[1].UnmanagedFiles; len(got) != 6 || deployed.Status != "True" || !strings.Contains(deployed.Message, got[0]) {
		t.Errorf("%s has strays %q and says %+v", after[1].Application, got, deployed)
	}
	if len(after[0].UnmanagedFiles) != 0 {
		t.Errorf("%s has strays %q", after[0].Application, after[0].UnmanagedFiles)
	}
	them.stillHas("after the start")

	// A new revision takes the old one's place, and both go at last.
	raw.Serial, raw.Variables = raw.Serial+1000, nil
	raw.ObjectDigest = w.Object(append(slices.Clone(world.ProgramsObject("raw_tp_count")), 0))
	if err := w.Accept(a, raw); err != nil {
		t.Fatal(err)
	}
	them.stillHas("after an update")
	for _, p := range []intent.Payload{raw, counter} {
		if err := w.Accept(a, intent.Payload{Application: p.Application, UID: p.UID, Serial: p.Serial + 1000, Tombstone: true}); err != nil {
			t.Fatal(err)
		}
	}
	if left := a.Status(); len(left) != 0 {
		t.Errorf("Status = %+v", left)
	}
	them.stillHas("after all was unloaded")
	if l, err := link.NewFromID(foreign); err != nil {
		t.Errorf("the foreign link: %v", err)
	} else if err := l.Close(); err != nil {
		t.Error(err)
	}
	stop()
	if err := agent.Cleanup(w.BPFFS, filepath.Join(w.Dir, "state")); err != nil {
		t.Errorf("Cleanup = %v", err)
	}
	them.stillHas("after the node was cleaned up")
	// Each is told once; what is below one of them is not looked into.
	var logged, want []string
	for line := range strings.Lines(log.String()) {
		if _, path, found := strings.Cut(line, "is left alone\" path="); found {
			logged = append(logged, strings.TrimSpace(path))
		}
	}
	for _, path := range them.has {
		for _, dir := range []string{"/garbage/deeper", "/uid-traced/garbage", chain + "garbage"} {
			if i := strings.Index(path, dir+"/"); i >= 0 {
				path = path[:i] + dir
			}
		}
		want = append(want, path)
	}
	slices.Sort(logged)
	slices.Sort(want)
	if diff := cmp.Diff(want, logged); diff != "" {
		t.Errorf("strays logged (-want +got):\n%s", diff)
	}
}

func TestAPinThatCannotBeReadIsMadeAnewAndTheRestRuns(t *testing.T) {
	need.Kernel(t)
	for sentence, tc := range map[string]struct {
		// spoil puts a map at the path, or else a link.
		spoil string
		link  bool
		// lost is the application that cannot be had: nobody removes a pin of
		// somebody else's in the place of a folder.
		lost string
	}{
		"a program's pin is a map":       {spoil: "uid-traced/*/p-raw_tp_count"},
		"a map's pin is a link":          {spoil: "uid-traced/*/m-counts", link: true},
		"a map's layout is no text":      {spoil: "uid-traced/*/m-counts+layout"},
		"a link's pin is a map":          {spoil: "uid-traced/+links/*[0-9a-f]"},
		"a link's text is a map":         {spoil: "uid-traced/+links/*+at"},
		"a chain's link is a map":        {spoil: "+xdp/*/link"},
		"a chain's link is another link": {spoil: "+xdp/*/link", link: true},
		"a chain's program is a map":     {spoil: "+xdp/*/*/prog"},
		"a member's text is a map":       {spoil: "+xdp/*/*/member-000"},
		"a link's pin is another link":   {spoil: "uid-traced/+links/*[0-9a-f]", link: true},
		"the folder of links is a map":   {spoil: "uid-traced/+links", lost: "traced"},
		"the folder of chains is a map":  {spoil: "+xdp", lost: "counted"},
		"an application's folder is one": {spoil: "uid-counted", lost: "counted"},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "st0", "st1")
			a, stop := w.Start()
			raw := w.Intent("traced", "raw_tp_count", world.RawProgram())
			counter := w.Intent("counted", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "st0")})
			if err := w.Accept(a, raw, counter); err != nil {
				t.Fatal(err)
			}
			stop()
			them := &admin{t: t, bpffs: w.BPFFS}
			them.replace(tc.spoil, tc.link)

			a, _ = w.Start()
			// The kernel lets go of a link that lost its pin in its own time, and of the
			// interface with it: then the second try succeeds.
			if err := w.Accept(a); tc.lost != "" && (err == nil || !strings.Contains(err.Error(), "not a directory")) {
				t.Errorf("Settled = %v", err)
			}
			for _, s := range a.Status() {
				if s.Application.Name == tc.lost {
					them.stillHas("for a folder")
					continue
				}
				world.Until(t, s.Application.String()+" attached", time.Minute, func() bool {
					now := world.StatusOf(a, s.Application.Name)
					is := now.Programs[0]
					return now.Error == "" && is.Links[0].State == agent.Attached && world.Runs(t, is.Links[0].ID) == ebpf.ProgramID(is.ID)
				})
			}
		})
	}
}

// replace puts a map or a link where the one thing of Skep's is that the
// pattern finds.
func (a *admin) replace(pattern string, byLink bool) {
	a.t.Helper()
	found, err := filepath.Glob(filepath.Join(a.bpffs, pattern))
	if err != nil || len(found) != 1 {
		a.t.Fatalf("%s finds %v, %v", pattern, found, err)
	}
	if err := os.RemoveAll(found[0]); err != nil {
		a.t.Fatal(err)
	}
	name := strings.TrimPrefix(found[0], a.bpffs+"/")
	if byLink {
		a.linkAt(name)
		return
	}
	a.mapAt(name)
}

// TestWhatAKillLeftOfAnApplicationThatWentIsSweptAway has an agent start where another
// was killed when the last pin was removed, and the directories were not yet.
func TestWhatAKillLeftOfAnApplicationThatWentIsSweptAway(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	if err := os.MkdirAll(filepath.Join(w.BPFFS, "uid-gone", "+links"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("{}", filepath.Join(w.BPFFS, "uid-gone", "+links", strings.Repeat("ab", 16)+"+at")); err != nil {
		t.Fatal(err)
	}
	a, _ := w.Start()
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	w.LeavesNothing()
	if all := a.Status(); len(all) > 0 {
		t.Errorf("status lists %+v", all)
	}
}

// TestARevisionThatLostAMapIsLoadedAgain has pins removed while no agent looks.
func TestARevisionThatLostAMapIsLoadedAgain(t *testing.T) {
	need.Kernel(t)
	for sentence, pin := range map[string]string{"a map": "m-counts", "a program": "p-*"} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "wh0", "wh1")
			a, stop := w.Start()
			p := world.XDP(w, "xdp_count", "count_packets", "wh0")
			if err := w.Accept(a, p); err != nil {
				t.Fatal(err)
			}
			stop()
			found, err := filepath.Glob(filepath.Join(w.BPFFS, "uid-*", "*", pin))
			if err != nil || len(found) != 1 {
				t.Fatalf("pins %v, %v", found, err)
			}
			if err := os.Remove(found[0]); err != nil {
				t.Fatal(err)
			}
			a, _ = w.Start()
			if err := w.Accept(a); err != nil {
				t.Error(err)
			}
			if again, _ := filepath.Glob(filepath.Join(w.BPFFS, "uid-*", "*", pin)); len(again) != 1 || !world.IsIn(a, p) {
				t.Errorf("pins %v, status %+v", again, world.StatusOf(a, p.Application.Name))
			}
		})
	}
}
