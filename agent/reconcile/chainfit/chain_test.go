package chainfit_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestManyProgramsShareAnInterfaceInOrder(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a, stop := w.Start()
	step := func(want string, payloads ...intent.Payload) {
		t.Helper()
		if err := w.Accept(a, payloads...); err != nil {
			t.Fatal(err)
		}
		if got := world.ChainOf(t, a); got != want {
			t.Fatalf("chain is %q, not %q", got, want)
		}
	}
	step("b:count_packets", world.Member(w, "b", "xdp_count", "count_packets", 500))
	step("b:count_packets c:xdp_pass", world.Member(w, "c", "xdp_pass", "xdp_pass", 600))
	step("a:count_packets b:count_packets c:xdp_pass", world.Member(w, "a", "xdp_count", "count_packets", 500))
	chains, err := a.Chains()
	if err != nil {
		t.Fatal(err)
	}
	link := chains[0].LinkID

	world.Send(t, "cn1", 10)
	world.Until(t, "ten packets to run through", time.Minute, func() bool {
		chains, err := a.Chains()
		return err == nil && *chains[0].Members[0].Runs == 10 && *chains[0].Members[2].Runs == 10
	})
	chains, err = a.Chains()
	if err != nil || !maps.Equal(chains[0].Members[0].Verdicts, map[string]uint64{"Pass": 10}) {
		t.Errorf("verdicts of %+v, %v", chains[0].Members, err)
	}
	if chains[0].Room.Maps <= 0 || chains[0].Usage.Verified == 0 {
		t.Errorf("chain = %+v", chains[0])
	}

	// A new priority moves a member, under the same link, and runs go on.
	step("c:xdp_pass a:count_packets b:count_packets", world.Member(w, "c", "xdp_pass", "xdp_pass", 1))
	chains, err = a.Chains()
	if err != nil {
		t.Fatal(err)
	}
	if chains[0].LinkID != link || *chains[0].Members[0].Runs != 10 {
		t.Errorf("after the move: %+v", chains[0])
	}

	// Verdicts that are not to be gone on from end the chain.
	step("c:xdp_pass a:count_packets b:count_packets", world.Member(w, "c", "xdp_pass", "xdp_pass", 1, "Drop"))
	before := world.Count(t, world.Counts(w, a, "a"))
	world.Send(t, "cn1", 10)
	world.Until(t, "ten packets to reach the first", time.Minute, func() bool {
		chains, err := a.Chains()
		return err == nil && *chains[0].Members[0].Runs == 20
	})
	if got := world.Count(t, world.Counts(w, a, "a")) - before; got != 0 {
		t.Errorf("%d packets went on after Pass, and only Drop lets them", got)
	}
	stop()

	a, _ = w.Start()
	step("c:xdp_pass a:count_packets b:count_packets")
	w.Serial++
	step("a:count_packets b:count_packets", intent.Payload{Application: world.Identity("c"), UID: "uid-c", Serial: w.Serial, Tombstone: true})
	w.Serial++
	step("b:count_packets", intent.Payload{Application: world.Identity("a"), UID: "uid-a", Serial: w.Serial, Tombstone: true})
}

func TestANewcomerThatDoesNotFitIsRefusedAlone(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		object, program string
		want            []string
		log             bool
	}{
		"the verifier refuses it":                     {"xdp_rejected", "xdp_rejected", []string{"program xdp_rejected"}, true},
		"its licence closes the chain to a neighbour": {"xdp_proprietary", "xdp_proprietary", []string{"licence", "GPL"}, false},
		"it calls GPL helpers without the licence":    {"xdp_proprietary_gpl", "xdp_proprietary_gpl", []string{"GPL"}, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "cn0", "cn1")
			a, _ := w.Start()
			if err := w.Accept(a, world.Member(w, "old", "xdp_gpl", "xdp_gpl", 500), world.Member(w, "older", "xdp_count", "count_packets", 1)); err != nil {
				t.Fatal(err)
			}
			before := world.ChainOf(t, a)
			chains, err := a.Chains()
			if err != nil {
				t.Fatal(err)
			}
			err = w.Accept(a, world.Member(w, "new", c.object, c.program, 100), world.Member(w, "good", "xdp_pass", "xdp_pass", 50))
			if err == nil {
				t.Fatal("it was let in")
			}
			for _, want := range append(c.want, "new") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if strings.Count(err.Error(), "\n") > 0 {
				t.Errorf("others failed, too: %v", err)
			}
			if got, want := world.ChainOf(t, a), strings.Replace(before, "count_packets", "count_packets good:xdp_pass", 1); got != want {
				t.Errorf("chain is %q, not %q", got, want)
			}
			now, err := a.Chains()
			if err != nil {
				t.Fatal(err)
			}
			if now[0].LinkID != chains[0].LinkID {
				t.Errorf("the link went from %d to %d", chains[0].LinkID, now[0].LinkID)
			}
			for _, s := range a.Status() {
				if refused := s.Application.Name == "new"; (s.Conditions[0].Status == "False") != refused || (s.VerifierLog != "") != (refused && c.log) {
					t.Errorf("%s: %+v, log of %d bytes", s.Application.Name, s.Conditions[0], len(s.VerifierLog))
				}
			}
		})
	}
}

func TestAChainSaysWhoseItIs(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a, _ := w.Start()
	var members []intent.Payload
	for i := range 30 {
		object, program := "xdp_pass", "xdp_pass"
		if i < 2 {
			object, program = "xdp_count", "count_packets"
		}
		members = append(members, world.Member(w, fmt.Sprintf("%02d-%s", i, strings.Repeat("long", 10)), object, program, 500))
	}
	name := func(i int) string { return members[i].Application.Name }
	for _, tc := range []struct {
		sentence   string
		members    int
		says, less string
	}{
		{"one program as it is", 1, name(0) + `"`, name(1)},
		{"both of two", 2, name(0) + "," + name(1) + `"`, name(2)},
		{"of many the first, and how many more", 30, ` and 7 more"`, name(29)},
	} {
		if err := w.Accept(a, members[:tc.members]...); err != nil {
			t.Fatal(err)
		}
		chains, err := a.Chains()
		if err != nil {
			t.Fatal(err)
		}
		if got := said(t, chains[0].ProgramID); !strings.Contains(got, tc.says) || strings.Contains(got, tc.less) {
			t.Errorf("%s: the chain says %s", tc.sentence, got)
		}
	}
}

// said is where bpftool looks for what it prints: the program's first map of
// that name (find_metadata of tools/bpf/bpftool/prog.c).
func said(t testing.TB, id uint32) string {
	t.Helper()
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	maps, _ := info.MapIDs()
	for _, id := range maps {
		if name, value := constants(t, id); strings.Contains(name, ".rodata") {
			return value
		}
	}
	return ""
}

// constants reads the name and the first value of a map.
func constants(t testing.TB, id ebpf.MapID) (name, value string) {
	t.Helper()
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	// A map of counters has a value for each CPU, and is not asked for.
	first, err := m.LookupBytes(uint32(0))
	if err != nil && strings.Contains(info.Name, ".rodata") {
		t.Fatal(err)
	}
	return info.Name, string(first)
}

func TestAVersionThatAKillLeftPinnedIsDropped(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a, stop := w.Start()
	if err := w.Accept(a, world.Member(w, "a", "xdp_count", "count_packets", 500), world.Member(w, "b", "xdp_pass", "xdp_pass", 600)); err != nil {
		t.Fatal(err)
	}
	stop()
	dir := filepath.Join(w.BPFFS, "+xdp", fmt.Sprint(world.Index(t, "cn0")))
	stale := filepath.Join(dir, strings.Repeat("0f", 16))
	if err := os.Mkdir(stale, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := world.ForeignProgram(t, ebpf.XDP).Pin(filepath.Join(stale, "prog")); err != nil {
		t.Fatal(err)
	}
	a, _ = w.Start()
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the stale version is still there: %v", err)
	}
	if got := world.ChainOf(t, a); got != "a:count_packets b:xdp_pass" {
		t.Errorf("chain is %q", got)
	}
}

// TestAChainWhosePinsAreGoneIsTakenAway: its link is left, and nobody wants what runs.
func TestAChainWhosePinsAreGoneIsTakenAway(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a, stop := w.Start()
	one, two := world.Member(w, "a", "xdp_count", "count_packets", 500), world.Member(w, "b", "xdp_pass", "xdp_pass", 600)
	if err := w.Accept(a, one, two); err != nil {
		t.Fatal(err)
	}
	stop()
	versions, err := filepath.Glob(filepath.Join(w.BPFFS, "+xdp", fmt.Sprint(world.Index(t, "cn0")), strings.Repeat("[0-9a-f]", 32)))
	if err != nil || len(versions) != 1 {
		t.Fatalf("versions %v, %v", versions, err)
	}
	if err := os.RemoveAll(versions[0]); err != nil {
		t.Fatal(err)
	}
	a = w.Idle(w.Options())
	for _, p := range []intent.Payload{one, two} {
		if err := a.Accept(w.Seal(w.Tombstone(p))); err != nil {
			t.Fatal(err)
		}
	}
	a.Reconcile(t.Context())
	if len(a.Status()) > 0 {
		t.Errorf("Status = %+v", a.Status())
	}
	l, err := netlink.LinkByName("cn0")
	if err != nil {
		t.Fatal(err)
	}
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		t.Errorf("program %d runs on", x.ProgId)
	}
	w.LeavesNothing()
}

func TestAForeignXDPProgramIsNotDisplaced(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	foreign := world.ForeignProgram(t, ebpf.XDP)
	l, err := link.AttachXDP(link.XDPOptions{Program: foreign, Interface: world.Index(t, "cn0")})
	if err != nil {
		t.Fatal(err)
	}
	a, _ := w.Start()
	err = w.Accept(a, world.Member(w, "a", "xdp_count", "count_packets", 500))
	if err == nil || !strings.Contains(err.Error(), "not Skep's") || !strings.Contains(err.Error(), "cn0") {
		t.Errorf("Settled = %v", err)
	}
	if s := a.Status()[0].Programs[0].Links; len(s) != 1 || s[0].State != agent.Failed {
		t.Errorf("links = %+v", s)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the program to get in", time.Minute, func() bool { return a.Status()[0].Error == "" })
	if got := world.ChainOf(t, a); got != "a:count_packets" {
		t.Errorf("chain is %q", got)
	}
}
