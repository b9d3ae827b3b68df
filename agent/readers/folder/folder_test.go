package folder_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/folder"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/skepmap"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/drop"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/reader"
)

func TestMain(m *testing.M) {
	reader.MaybeChild()
	if dir := os.Getenv(keepsDir); dir != "" {
		fmt.Fprintln(os.Stderr, keepForever(folder.Folder{Dir: dir, Pins: os.Getenv(keepsPins), Mode: 0o644}))
		os.Exit(1)
	}
	leaks.Main(m)
}

// The environment of a process that changes a folder until it is killed.
const keepsDir, keepsPins = "SKEP_TEST_KEEPS_DIR", "SKEP_TEST_KEEPS_PINS"

// keepForever grants maps and takes them back.
func keepForever(f folder.Folder) error {
	maps := make([]*ebpf.Map, 2)
	for i := range maps {
		var err error
		if maps[i], err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 16}); err != nil {
			return err
		}
	}
	write := []folder.Grant{{Group: "ops", GID: ops, Access: v1alpha1.MapWrite}}
	for {
		for _, m := range maps {
			err := errors.Join(f.Keep(application(folder.Map{Name: "counts", Map: m, Grants: read(metrics, ops)}, folder.Map{Name: "drops", Map: m, Grants: write})),
				f.Keep(application(folder.Map{Name: "counts", Map: m, Grants: write})),
				f.Narrow(func(string, string, bool) bool { return false }))
			if err != nil {
				return err
			}
		}
	}
}

// The groups of readers.
const metrics, ops, others = 990, 991, 992

// place is a folder on the machine.
type place struct {
	t *testing.T
	folder.Folder
}

func newPlace(t *testing.T) *place {
	t.Helper()
	need.Kernel(t)
	dir, pins := t.TempDir(), "/sys/fs/bpf/readers"
	// It is in a folder that is closed to others.
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Mkdir(pins, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(pins) })
	return &place{t, folder.Folder{Dir: filepath.Join(dir, "app"), Pins: filepath.Join(pins, "app"), Mode: 0o644}}
}

func newMap(t *testing.T, kind ebpf.MapType) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: kind, KeySize: 4, ValueSize: 8, MaxEntries: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	for key := range uint32(3) {
		if err := m.Put(key, uint64(key)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func idOf(t *testing.T, m *ebpf.Map) ebpf.MapID {
	t.Helper()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

func read(groups ...uint32) (grants []folder.Grant) {
	for _, gid := range groups {
		grants = append(grants, folder.Grant{Group: map[uint32]string{metrics: "metrics", ops: "ops"}[gid], GID: gid, Access: v1alpha1.MapRead})
	}
	return grants
}

// keep makes the folder what maps are.
func (p *place) keep(maps ...folder.Map) {
	p.t.Helper()
	if err := p.Keep(application(maps...)); err != nil {
		p.t.Fatal(err)
	}
}

func application(maps ...folder.Map) folder.Application {
	return folder.Application{Identity: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "shop", Name: "dns"}, Digest: "sha256:1d2c", Maps: maps,
		Types: func(string) (folder.Types, error) {
			return folder.TypesOf(&btf.Int{Name: "u32", Size: 4}, &btf.Typedef{Name: "count", Type: &btf.Int{Name: "u64", Size: 8}})
		}}
}

func (p *place) path(name string) string { return filepath.Join(p.Dir, name) }

// has is what is in the folder and below its pins, with modes and groups.
func (p *place) has() (all []string) {
	p.t.Helper()
	for _, dir := range []string{p.Dir, p.Pins} {
		listed, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			p.t.Fatal(err)
		}
		for _, one := range listed {
			if dir == p.Dir {
				all = append(all, one.Name())
				continue
			}
			info, err := one.Info()
			if err != nil {
				p.t.Fatal(err)
			}
			all = append(all, one.Name()+" "+info.Mode().String()+" "+groupOf(info))
		}
	}
	return all
}

func groupOf(info os.FileInfo) string {
	names := map[uint32]string{0: "root", metrics: "metrics", ops: "ops"}
	return names[info.Sys().(*syscall.Stat_t).Gid]
}

// inode is that of the pin behind a name.
func (p *place) inode(name string) uint64 {
	p.t.Helper()
	info, err := os.Stat(p.path(name))
	if err != nil {
		p.t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

func (p *place) listing() skepmap.Listing {
	p.t.Helper()
	l, err := skepmap.ReadListing(p.Dir)
	if err != nil {
		p.t.Fatal(err)
	}
	return l
}

func wants[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

const refused = "EPERM"

func TestAMemberOfTheGroupReadsAndDoesNoMore(t *testing.T) {
	p, counts := newPlace(t), newMap(t, ebpf.Hash)
	p.keep(folder.Map{Name: "counts", Map: counts, Grants: read(metrics, ops)})
	wants(t, "the folder", p.has(), []string{"counts", "counts.btf", "counts@ops", "maps.json", "counts+1 -r--r----- metrics", "counts@ops+1 -r--r----- ops"})
	reads := reader.Answers{OpenWrite: "EACCES", Update: refused, Delete: refused, Freeze: refused, Pin: "EACCES", ByID: refused, Entries: 3}
	wants(t, "of the group", reader.Open(t, p.path("counts"), idOf(t, counts), metrics), reads)
	wants(t, "of the second", reader.Open(t, p.path("counts@ops"), idOf(t, counts), ops), reads)
	closed := reader.Answers{Open: "EACCES", OpenWrite: "EACCES"}
	wants(t, "of another group", reader.Open(t, p.path("counts"), 0, ops, others), closed)
	wants(t, "without a group", reader.Open(t, p.path("counts@ops"), 0), closed)
	info := p.listing().Maps["counts"]
	wants(t, "the listing", info, skepmap.MapInfo{Type: "Hash", KeySize: 4, ValueSize: 8, MaxEntries: 16, Access: "Read", Group: "metrics", Generation: 1,
		BTF: "counts.btf", KeyTypeID: info.KeyTypeID, ValueTypeID: info.ValueTypeID})
	spec, err := btf.LoadSpec(p.path("counts.btf"))
	if err != nil {
		t.Fatal(err)
	}
	value, err := spec.TypeByID(btf.TypeID(info.ValueTypeID))
	if err != nil || value.TypeName() != "count" {
		t.Errorf("the type of values is %v, %v", value, err)
	}
}

func TestWhoMayWriteWrites(t *testing.T) {
	p, counts := newPlace(t), newMap(t, ebpf.Hash)
	p.keep(folder.Map{Name: "counts", Map: counts, Grants: []folder.Grant{{Group: "metrics", GID: metrics, Access: v1alpha1.MapWrite}}})
	got := reader.Open(t, p.path("counts"), idOf(t, counts), metrics)
	t.Logf("freeze of a map that may be written: %q", got.Freeze)
	got.Freeze = ""
	wants(t, "of the group", got, reader.Answers{Pin: "EACCES", ByID: refused, Entries: 3})
	if left := 0; counts.Lookup(uint32(0), new(uint64)) == nil && counts.Lookup(uint32(1), new(uint64)) == nil && counts.Lookup(uint32(2), new(uint64)) == nil {
		t.Errorf("nothing was deleted: %d", left)
	}
}

// TestOnlyWhatChangesIsTouched asks inotify, as readers do.
func TestOnlyWhatChangesIsTouched(t *testing.T) {
	p, counts, drops := newPlace(t), newMap(t, ebpf.Hash), newMap(t, ebpf.LRUHash)
	both := []folder.Map{{Name: "counts", Map: counts, Grants: read(metrics)}, {Name: ".bss", Map: drops, Grants: read(metrics)}}
	p.keep(both...)
	inode := p.inode("counts")
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, dir := range []string{p.Dir, p.Pins} {
		if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE|unix.IN_MODIFY|unix.IN_ATTRIB); err != nil {
			t.Fatal(err)
		}
	}
	p.keep(both...)
	if n, err := unix.Read(fd, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("%d bytes of events, %v", n, err)
	}
	// A version that has another map in the place of one.
	reset := newMap(t, ebpf.Hash)
	p.keep(folder.Map{Name: "counts", Map: counts, Grants: read(metrics)}, folder.Map{Name: ".bss", Map: reset, Grants: read(metrics)})
	l := p.listing()
	if p.inode("counts") != inode || l.Maps["counts"].Generation != 1 || l.Maps[".bss"].Generation != 2 || l.Maps[".bss"].Type != "Hash" || l.Generation != 2 {
		t.Errorf("the listing is %+v", l)
	}
	wants(t, "the folder", p.has(), []string{".bss", ".bss.btf", "counts", "counts.btf", "maps.json",
		"%2ebss+2 -r--r----- metrics", "counts+1 -r--r----- metrics"})
}

func TestWhatIsTakenBackIsGone(t *testing.T) {
	p, counts := newPlace(t), newMap(t, ebpf.Hash)
	write := folder.Grant{Group: "ops", GID: ops, Access: v1alpha1.MapWrite}
	p.keep(folder.Map{Name: "counts", Map: counts, Grants: append(read(metrics), write)}, folder.Map{Name: "drops", Map: counts, Grants: read(metrics)})
	if err := p.Narrow(func(name, group string, wide bool) bool { return name == "counts" && group == "metrics" && !wide }); err != nil {
		t.Fatal(err)
	}
	if l := p.listing(); l.Generation != 2 || len(l.Maps) != 1 || l.Maps["counts"].Generation != 1 {
		t.Errorf("the listing is %+v", l)
	}
	for _, gone := range []string{"drops", "counts@ops"} {
		wants(t, gone, reader.Open(t, p.path(gone), 0, metrics, ops), reader.Answers{Open: "ENOENT", OpenWrite: "ENOENT"})
	}
	// Less than before: the pin that may be written goes first.
	p.keep(folder.Map{Name: "counts", Map: counts, Grants: []folder.Grant{write}})
	p.keep(folder.Map{Name: "counts", Map: counts, Grants: read(ops)})
	wants(t, "the folder", p.has(), []string{"counts", "counts.btf", "maps.json", "counts+4 -r--r----- ops"})
	if err := p.Remove(); err != nil {
		t.Fatal(err)
	}
	wants(t, "the folder", p.has(), nil)
	if _, err := os.Lstat(p.Dir); !os.IsNotExist(err) {
		t.Errorf("the folder is there: %v", err)
	}
}

// TestWhatFailsLeavesNoWiderPin has nothing new be published, and what was taken back is gone all the same.
func TestWhatFailsLeavesNoWiderPin(t *testing.T) {
	p, counts := newPlace(t), newMap(t, ebpf.Hash)
	p.keep(folder.Map{Name: "old", Map: counts, Grants: read(metrics)})
	app := application(folder.Map{Name: "counts", Map: counts, Grants: read(metrics)})
	unready := errors.New("not read yet")
	app.Types = func(string) (folder.Types, error) { return folder.Types{}, unready }
	if err := p.Keep(app); !errors.Is(err, unready) {
		t.Errorf("Keep = %v", err)
	}
	if slices.ContainsFunc(p.has(), func(name string) bool { return strings.Contains(name, "+") }) {
		t.Errorf("pins are left: %v", p.has())
	}
	app.Types = nil
	drop.Capabilities(t, func() {
		if err := p.Keep(app); err == nil || !strings.Contains(err.Error(), "SupplementaryGroups=") {
			t.Errorf("without the right to give files away: %v", err)
		}
	}, unix.CAP_CHOWN)
	// Root's alone, and under no name.
	wants(t, "the folder", p.has(), []string{"maps.json", "old.btf", "counts+2 -rw------- root"})
	p.keep(app.Maps...)
	wants(t, "the folder", p.has(), []string{"counts", "counts.btf", "maps.json", "counts+3 -r--r----- metrics"})
}

// TestAKillAtAnyPointLeavesWhatTheNextCallPutsRight kills a process that changes a folder all the time.
func TestAKillAtAnyPointLeavesWhatTheNextCallPutsRight(t *testing.T) {
	p, counts := newPlace(t), newMap(t, ebpf.Hash)
	p.keep(folder.Map{Name: "counts", Map: counts, Grants: read(metrics)})
	states := map[int]bool{}
	for round := range 50 {
		child := exec.CommandContext(t.Context(), "/proc/self/exe")
		child.Env = append(os.Environ(), keepsDir+"="+p.Dir, keepsPins+"="+p.Pins)
		var out strings.Builder
		child.Stderr = &out
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		begun := p.listing().Generation
		await.True(t, "the process to change the folder", time.Minute, func() bool {
			l, err := skepmap.ReadListing(p.Dir)
			return err != nil || l.Generation > begun+uint64(round%7)
		})
		_ = child.Process.Kill()
		if _ = child.Wait(); out.Len() > 0 {
			t.Fatal(out.String())
		}
		left := p.has()
		states[len(left)] = true
		for _, name := range left {
			pin, rights, isPin := strings.Cut(name, " ")
			name, _, _ := strings.Cut(pin, "+")
			allowed := map[string][]string{"counts": {"-rw------- root", "-r--r----- metrics", "-rw-rw---- ops"}, "counts@ops": {"-rw------- root", "-r--r----- ops"},
				"drops": {"-rw------- root", "-rw-rw---- ops"}}
			// A pin that only its owner may open has its group before its mode.
			if isPin && !slices.Contains(allowed[name], rights) && !strings.HasPrefix(rights, "-rw------- ") {
				t.Errorf("the pin %s is %s", pin, rights)
			}
		}
		before := p.listing().Generation
		p.keep(folder.Map{Name: "counts", Map: counts, Grants: read(metrics)})
		now := p.listing()
		wants(t, "the folder", p.has(), []string{"counts", "counts.btf", "maps.json", fmt.Sprintf("counts+%d -r--r----- metrics", now.Maps["counts"].Generation)})
		if now.Generation <= before || p.inode("counts") == 0 {
			t.Errorf("in round %d, the generation is %d after %d", round, now.Generation, before)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("the process was killed with so many files in the folder: %v", slices.Sorted(maps.Keys(states)))
}

func TestFoldersOfOthersAreLeft(t *testing.T) {
	p, counts := newPlace(t), newMap(t, ebpf.Hash)
	app := application(folder.Map{Name: "counts", Map: counts, Grants: read(metrics)})
	elsewhere := t.TempDir()
	for name, hostile := range map[string]func() error{
		"a symlink":                           func() error { return os.Symlink(elsewhere, p.Dir) },
		"another user's folder":               func() error { return errors.Join(os.Mkdir(p.Dir, 0o755), os.Chown(p.Dir, reader.ID, reader.ID)) },
		"a folder that all may change":        func() error { return errors.Join(os.Mkdir(p.Dir, 0o755), os.Chmod(p.Dir, 0o777)) },
		"one in a folder that all may change": func() error { return os.Chmod(filepath.Dir(p.Dir), 0o777) },
	} {
		if err := hostile(); err != nil {
			t.Fatal(err)
		}
		if err := p.Keep(app); err == nil || !strings.Contains(err.Error(), "others can change it") {
			t.Errorf("%s: %v", name, err)
		}
		if err := errors.Join(os.RemoveAll(p.Dir), os.Chmod(filepath.Dir(p.Dir), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(elsewhere); err != nil || len(left) > 0 {
		t.Errorf("in the folder behind the symlink are %v, %v", left, err)
	}
	p.keep(app.Maps...)
}

func TestNamesOfOtherFilesAreNoMaps(t *testing.T) {
	p, counts := newPlace(t), newMap(t, ebpf.Hash)
	maps := []folder.Map{{Name: "counts", Map: counts, Grants: read(metrics)}}
	for _, name := range []string{"maps.json", "counts.btf", "..", "a/b", "socket", "counts@ops"} {
		maps = append(maps, folder.Map{Name: name, Map: counts, Grants: read(metrics)})
	}
	if err := p.Keep(application(maps...)); err == nil {
		t.Error("all have a name")
	}
	wants(t, "the folder", p.has(), []string{"counts", "counts.btf", "maps.json", "counts+1 -r--r----- metrics"})
}
