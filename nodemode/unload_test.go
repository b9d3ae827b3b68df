package nodemode

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// loaded reports whether the kernel has a program.
func loaded(t *testing.T, id uint32) bool {
	t.Helper()
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err == nil {
		_ = p.Close()
	}
	return err == nil
}

func TestUnloadLeavesNothingInTheKernel(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	s.define("one", ref)
	s.define("two", ref)
	h := s.open()
	all := s.pass(h)
	ids := []uint32{running(all["one"]), running(all["two"])}
	if ids[0] == 0 || ids[1] == 0 {
		t.Fatalf("%+v", all)
	}
	if _, err := Unload(t.Context(), s.state, s.bpffs, ""); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("beside a host that runs: %v", err)
	}
	if _, err := Unload(t.Context(), t.TempDir(), s.bpffs, ""); err == nil || !loaded(t, ids[0]) {
		t.Errorf("beside a host on another state: %v", err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	u, err := Unload(t.Context(), s.state, s.bpffs, "")
	if err != nil || len(u.Gone) != 2 || len(u.Left) != 0 {
		t.Errorf("unloaded %+v, %v", u, err)
	}
	for _, id := range ids {
		if loaded(t, id) {
			t.Errorf("program %d is still loaded", id)
		}
	}
	for _, path := range []string{s.bpffs, filepath.Join(s.state, "agent", "intents")} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	if u, err := Unload(t.Context(), s.state, s.bpffs, ""); err != nil || len(u.Gone) != 0 || len(u.Left) != 0 {
		t.Errorf("a second time: %+v, %v", u, err)
	}
	// What the source defines is loaded by the next start, as by a first one.
	if again := s.pass(s.open()); running(again["one"]) == 0 || running(again["two"]) == 0 {
		t.Errorf("after it: %+v", again)
	}
}

func TestUnloadNamesWhatSomebodyElseHolds(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	id := running(s.pass(h)["app"])
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	var held link.Link
	err := filepath.WalkDir(s.bpffs, func(path string, d fs.DirEntry, err error) error {
		if err == nil && held == nil && !d.IsDir() {
			held, _ = link.LoadPinnedLink(path, nil)
		}
		return err
	})
	if err != nil || held == nil {
		t.Fatalf("no link is pinned: %v", err)
	}
	u, err := Unload(t.Context(), s.state, s.bpffs, "")
	if err != nil || len(u.Gone) != 0 || len(u.Left) != 1 || u.Left[0].ID != id {
		t.Errorf("unloaded %+v, %v", u, err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAMapThatAGroupWasGrantedIsPublishedAndGoes follows a grant from its definition to unload.
func TestAMapThatAGroupWasGrantedIsPublishedAndGoes(t *testing.T) {
	s := newStage(t)
	maps := filepath.Join(t.TempDir(), "maps")
	ref := s.push(first, "app:v1", "team-a")
	granting := bytes.Replace(s.definition("one", ref), []byte("spec:\n"),
		[]byte("spec:\n  maps: {counts: {export: [{access: Read, groups: [\"990\", skep-no-such-group]}]}}\n"), 1)
	s.write(filepath.Join(s.defs, "one.yaml"), granting)
	h := s.open(func(o *Options) { o.MapsDir = maps })
	one, folder := s.pass(h)["one"], filepath.Join(maps, "one")
	if _, err := os.Stat(filepath.Join(folder, "counts")); err != nil {
		t.Errorf("the map is not published: %v", err)
	}
	if got := one.Agent; got == nil || got.ReadersFolder != folder || len(got.UnpublishedMaps) != 1 {
		t.Errorf("%+v", one)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Unload(t.Context(), s.state, s.bpffs, maps); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(maps); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", maps, err)
	}
}
