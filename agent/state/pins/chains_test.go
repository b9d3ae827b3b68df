package pins

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/test/harness/leaks"
)

// loopback returns the interface of a network namespace of the test's own.
func loopback() plan.Device { return plan.Device{Index: 1} }

// versionOf is a chain program of its own with members of the names.
func versionOf(t testing.TB, names ...string) *ChainVersion {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "version", Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	v := &ChainVersion{Program: p}
	for i, name := range names {
		v.Members = append(v.Members, plan.Member{UID: "uid-" + name, Program: name, Priority: int32(i)})
	}
	if len(names) > 1 {
		if v.Counters, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = v.Close() })
	return v
}

// chained pins a version and attaches it to the loopback.
func chained(t testing.TB, s *Store, v *ChainVersion) *Chain {
	t.Helper()
	leaks.NetworkNamespace(t)
	if err := s.PinChainVersion(loopback(), v); err != nil {
		t.Fatal(err)
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: v.Program, Interface: loopback().Index})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PinChainLink(plan.Target{Ifindex: 1, Interface: "lo"}, "", l); err != nil {
		t.Fatal(err)
	}
	c := &Chain{Device: loopback(), Link: l, Version: v}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// found opens the loopback's chain as a restarted agent does.
func found(t testing.TB, s *Store) (*Chain, []Stray) {
	t.Helper()
	c, strays, err := s.OpenChain(loopback())
	if err != nil {
		t.Fatal(err)
	}
	if c != nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, strays
}

// TestTheVersionThatRunsKeepsItsPins: pinned again, it is not without them for a moment.
func TestTheVersionThatRunsKeepsItsPins(t *testing.T) {
	s, _ := store(t)
	v := versionOf(t, "a", "b")
	chained(t, s, v)
	pin := filepath.Join(s.chainDir(loopback()), versionID(v.Members), chainProgram)
	before := inodeOf(pin)
	if err := s.PinChainVersion(loopback(), v); err != nil {
		t.Fatal(err)
	}
	if now := inodeOf(pin); now != before || before == 0 {
		t.Errorf("its pin was inode %d, and is %d", before, now)
	}
	other := versionOf(t, "a", "b")
	if err := s.PinChainVersion(loopback(), other); err != nil {
		t.Fatal(err)
	}
	if pinned, id, err := openVersion(filepath.Dir(pin)); err != nil || pinned.Close() != nil {
		t.Error(err)
	} else if want, err := ProgramID(other.Program); err != nil || id != want {
		t.Errorf("pinned is program %d, want %d (%v)", id, want, err)
	}
}

func TestTheVersionThatALinkRunsIsFoundAmongOthers(t *testing.T) {
	s, _ := store(t)
	old, now := versionOf(t, "a", "b"), versionOf(t, "a", "b", "c")
	c := chained(t, s, old)
	if err := s.PinChainVersion(loopback(), now); err != nil {
		t.Fatal(err)
	}
	members := func() []plan.Member {
		t.Helper()
		if indexes, err := s.ChainDevices(); err != nil || !slices.Equal(indexes, []plan.Device{loopback()}) {
			t.Errorf("ChainDevices = %v, %v", indexes, err)
		}
		again, strays := found(t, s)
		if again == nil || again.Version == nil || again.Version.Counters == nil || len(strays) > 0 {
			t.Fatalf("OpenChain = %+v, %v", again, strays)
		}
		return again.Version.Members
	}
	// A kill before the swap, and one after it.
	if diff := cmp.Diff(old.Members, members()); diff != "" {
		t.Errorf("before the swap (-want +got):\n%s", diff)
	}
	if err := c.Link.Update(now.Program); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(now.Members, members()); diff != "" {
		t.Errorf("after the swap (-want +got):\n%s", diff)
	}
	c.Version = now
	if err := s.DropChainVersions(c); err != nil {
		t.Fatal(err)
	}
	if !missing(filepath.Join(s.chainDir(loopback()), versionID(old.Members))) || len(members()) != 3 {
		t.Error("the old version is pinned still, or the new one is not")
	}
}

func TestWhatSomebodyTookOfAChainsPinsIsMadeAgain(t *testing.T) {
	s, _ := store(t)
	v := versionOf(t, "a", "b")
	c := chained(t, s, v)
	dir := s.chainDir(loopback())
	for sentence, gone := range map[string]string{
		"the link":        chainLink,
		"the program":     filepath.Join(versionID(v.Members), chainProgram),
		"the counters":    filepath.Join(versionID(v.Members), chainRuns),
		"the whole chain": ".",
	} {
		if err := os.RemoveAll(filepath.Join(dir, gone)); err != nil {
			t.Fatal(err)
		}
		if made, err := s.RepinChain(c); err != nil || !made {
			t.Errorf("%s: RepinChain = %v, %v", sentence, made, err)
		}
		if again, strays := found(t, s); again == nil || again.Version == nil || len(strays) > 0 || len(again.Version.Members) != 2 {
			t.Errorf("%s: it is found as %+v, %v", sentence, again, strays)
		}
		if made, err := s.RepinChain(c); err != nil || made {
			t.Errorf("%s: RepinChain of a whole chain = %v, %v", sentence, made, err)
		}
	}
}

func TestAChainThatCannotBeReadIsTold(t *testing.T) {
	for sentence, tc := range map[string]struct {
		// spoil is what somebody puts in the place of a pin, below the chain.
		spoil func(t *testing.T, s *Store, dir, version string)
		chain bool
		stray string
	}{
		"the link is a map": {func(t *testing.T, _ *Store, dir, _ string) { replaceByMap(t, filepath.Join(dir, chainLink)) }, false, "is not a Link"},
		"the program is a map": {func(t *testing.T, _ *Store, _, version string) {
			replaceByMap(t, filepath.Join(version, chainProgram))
		}, true, "is not a Program"},
		"a member says nothing": {func(t *testing.T, _ *Store, _, version string) {
			if err := errors.Join(os.Remove(filepath.Join(version, "member-000")), os.Symlink("{", filepath.Join(version, "member-000"))); err != nil {
				t.Fatal(err)
			}
		}, true, ""},
		"a folder of somebody else's": {func(t *testing.T, s *Store, dir, _ string) {
			if err := os.Mkdir(filepath.Join(dir, "theirs"), 0o700); err != nil {
				t.Fatal(err)
			}
			if strays, err := s.Strays(); err != nil || len(strays) != 1 || strays[0].String() != filepath.Join(dir, "theirs")+": not Skep's" || !strays[0].There() ||
				strays[0].UID != "" {
				t.Errorf("Strays = %v, %v", strays, err)
			}
		}, true, ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			s, root := store(t)
			v := versionOf(t, "a", "b")
			chained(t, s, v)
			dir := s.chainDir(loopback())
			tc.spoil(t, s, dir, filepath.Join(dir, versionID(v.Members)))
			c, strays := found(t, s)
			if (c != nil) != tc.chain || (len(strays) == 1) != (tc.stray != "") {
				t.Fatalf("OpenChain = %+v, %v", c, strays)
			}
			if tc.stray != "" && (!strings.Contains(strays[0].String(), tc.stray) || !strays[0].There()) {
				t.Errorf("stray %s is there: %v", strays[0], strays[0].There())
			}
			// The test's end clears the rest.
			if err := s.RemoveChain(&Chain{Device: loopback()}); err != nil {
				t.Error(err)
			}
			if err := os.Remove(filepath.Join(dir, "theirs")); err == nil {
				if err := errors.Join(os.Remove(dir), os.Remove(filepath.Join(root, chainsDir))); err != nil {
					t.Error(err)
				}
			}
			if tc.stray != "" && strays[0].There() {
				t.Errorf("%s is said to be there, and was removed", strays[0])
			}
		})
	}
}

func replaceByMap(t testing.TB, path string) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(path), m.Pin(path), m.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestARemovedChainRunsNoMoreAndLeavesNothing(t *testing.T) {
	s, root := store(t)
	c := chained(t, s, versionOf(t, "a"))
	facts, err := Inspect(c.Link)
	if err != nil || facts.Severed || facts.ID == 0 {
		t.Fatalf("Inspect = %+v, %v", facts, err)
	}
	// The holder of another descriptor sees it severed.
	other, err := link.NewFromID(facts.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if err := s.RemoveChain(c); err != nil {
		t.Fatal(err)
	}
	if now, err := Inspect(other); err != nil || !now.Severed {
		t.Errorf("Inspect = %+v, %v", now, err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if again, strays := found(t, s); again != nil || len(strays) > 0 {
		t.Errorf("OpenChain = %+v, %v", again, strays)
	}
}

func TestAPinOfSomebodyElsesOutlivesTheRevisionAroundIt(t *testing.T) {
	s, _ := store(t)
	p := tracer(t, "1")
	load(t, s, p, nil)
	theirs := filepath.Join(s.RevisionDir("uid", p.Revision), "theirs")
	if err := os.Mkdir(theirs, 0o700); err != nil {
		t.Fatal(err)
	}
	// Loading the same revision anew keeps to the place.
	load(t, s, p, nil)
	if r, strays, err := s.OpenRevision("uid", p.Revision); err != nil || !r.Whole(p) || len(strays) > 0 || r.Close() != nil {
		t.Errorf("OpenRevision = %+v, %v, %v", r, strays, err)
	}
	if err := errors.Join(s.DropRevision("uid", p.Revision), s.Forget("uid")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(theirs); err != nil {
		t.Error(err)
	}
	// What is left of it is no revision.
	if revisions, err := s.Revisions("uid"); err != nil || len(revisions) > 0 {
		t.Errorf("Revisions = %v, %v", revisions, err)
	}
	if err := errors.Join(os.Remove(theirs), s.Forget("uid")); err != nil || !missing(s.appDir("uid")) {
		t.Errorf("Forget = %v", err)
	}
}

func TestWhatStopsEveryPinStopsTheAgent(t *testing.T) {
	for _, all := range []error{unix.EPERM, unix.EMFILE, unix.ENOMEM} {
		if _, err := unreadable("uid", "/nope", all); !errors.Is(err, all) {
			t.Errorf("unreadable by %v = %v", all, err)
		}
	}
	if stray, err := unreadable("uid", "/nope", unix.EACCES); err != nil || stray.UID != "uid" || !errors.Is(stray.Err, unix.EACCES) || stray.There() {
		t.Errorf("unreadable by EACCES = %v, %v", stray, err)
	}
}
