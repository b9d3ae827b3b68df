package pins

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/agent/program/guard"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/recommended"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// store opens a directory of its own on the machine's bpffs.
func store(t testing.TB) (*Store, string) {
	t.Helper()
	need.Kernel(t)
	name := make([]byte, 6)
	if _, err := rand.Read(name); err != nil {
		t.Fatal(err)
	}
	root := "/sys/fs/bpf/skep-kernel-" + hex.EncodeToString(name)
	s, err := OpenStore(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Clear(func(int) {}), s.Close(), os.Remove(root)); err != nil {
			t.Error(err)
		}
	})
	return s, root
}

// reopen is what a restarted agent does.
func reopen(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := OpenStore(s.Root())
	if err != nil {
		t.Fatal(err)
	}
	*s = *again
}

// tracer prepares a tracepoint program; what differs makes other revisions.
func tracer(t testing.TB, pid string) *loader.Prepared {
	t.Helper()
	p, err := loader.Prepare(opened(t, intent.Payload{
		Variables: map[string]apiextensionsv1.JSON{"only_pid": {Raw: []byte(pid)}},
		Programs:  []v1alpha1.Program{{Name: "tracepoint_count", Attach: []v1alpha1.Attachment{{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getpgid"}}}},
	}), programs.Object("tracepoint_count"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// of are the revisions of the one application.
func of(r *loader.Revision) map[string]map[string]*loader.Revision {
	return map[string]map[string]*loader.Revision{"uid": {r.Name: r}}
}

func opened(t testing.TB, p intent.Payload) intent.Opened {
	t.Helper()
	p.UID, p.Serial, p.ObjectDigest = "uid", 1, "sha256:x"
	p.Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "net", Name: "app"}
	return seals.New(t).Open(t, p)
}

// loadAndPin does what an agent does in two steps.
func loadAndPin(s *Store, p *loader.Prepared, old *loader.Revision) (*loader.Revision, []loader.MapReport, error) {
	r, reports, err := loader.Load(p, old, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	return r, reports, s.PinRevision(r)
}

func copyProgram(s *Store, r *loader.Revision, p *loader.Prepared, instance string) (*ebpf.Program, error) {
	program, err := loader.LoadCopy(p, r, instance, nil)
	if err != nil {
		return nil, err
	}
	return program, s.AddCopy(r, instance, program)
}

func load(t testing.TB, s *Store, p *loader.Prepared, old *loader.Revision) *loader.Revision {
	t.Helper()
	r, _, err := loadAndPin(s, p, old)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestARevisionIsFoundAgainAsItWasLoaded(t *testing.T) {
	s, _ := store(t)
	p := tracer(t, "1")
	r := load(t, s, p, nil)
	reopen(t, s)
	if uids, err := s.Applications(); err != nil || !slices.Equal(uids, []string{"uid"}) {
		t.Errorf("Applications = %v, %v", uids, err)
	}
	if revisions, err := s.Revisions("uid"); err != nil || !slices.Equal(revisions, []string{p.Revision}) {
		t.Errorf("Revisions = %v, %v", revisions, err)
	}
	found, _, err := s.OpenRevision("uid", p.Revision)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = found.Close() }()
	id, tag := r.Identify("tracepoint_count")
	if again, tagAgain := found.Identify("tracepoint_count"); again != id || tagAgain != tag || id == 0 || tag == "" {
		t.Errorf("program %d %s is found as %d %s", id, tag, again, tagAgain)
	}
	if !found.Whole(p) {
		t.Error("it is not whole")
	}
	if name, ok := found.Instance(ebpf.ProgramID(id)); !ok || name != "tracepoint_count" {
		t.Errorf("Instance = %q, %v", name, ok)
	}
	next, reports, err := loader.Load(tracer(t, "2"), found, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = next.Close() }()
	if len(reports) != 1 || !reports[0].Kept {
		t.Errorf("a found revision's maps: %+v", reports)
	}
	if loaded, again := loader.Memory(of(r)), loader.Memory(of(found)); loaded["uid"] == 0 || loaded["uid"] != again["uid"] {
		t.Errorf("it takes %v bytes when it is loaded, %v when it is found", loaded, again)
	}
	delete(found.Maps, "counts")
	if found.Whole(p) {
		t.Error("it is whole without a map")
	}
}

func TestBpftoolTellsWhoseAProgramIs(t *testing.T) {
	bpftool := need.Program(t, "bpftool", "bpftool")
	s, root := store(t)
	p := tracer(t, "1")
	load(t, s, p, nil)
	out, err := exec.CommandContext(t.Context(), bpftool, "prog", "show", "pinned", filepath.Join(root, "uid", p.Revision, "p-tracepoint_count")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if plain := strings.ReplaceAll(string(out), `\"`, `"`); !strings.Contains(plain, `skep = `) ||
		!strings.Contains(plain, `{"app":"net/app","uid":"uid","revision":"`+p.Revision) {
		t.Errorf("bpftool says %s", out)
	}
}

func TestWhatAKillLeftIsSweptAway(t *testing.T) {
	s, root := store(t)
	p := tracer(t, "1")
	load(t, s, p, nil)
	for _, dir := range []string{"uid/+new-x", "uid/+old-" + p.Revision, "uid/+links", "+xdp/7/+new-x"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// Texts whose pins were never made.
	for _, text := range []string{strings.Repeat("ab", 16) + "+at", "+new-" + strings.Repeat("cd", 16) + "+at"} {
		if err := os.Symlink("{}", filepath.Join(root, "uid/+links", text)); err != nil {
			t.Fatal(err)
		}
	}
	reopen(t, s)
	if links, _, err := s.Links("uid"); err != nil || len(links) != 0 {
		t.Errorf("Links = %v, %v", links, err)
	}
	if c, _, err := s.OpenChain(plan.Device{Index: 7}); c != nil || err != nil {
		t.Errorf("OpenChain = %v, %v", c, err)
	}
	var left []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if !d.IsDir() && !strings.Contains(path, p.Revision) || strings.Contains(d.Name(), "+new") || strings.Contains(d.Name(), "+old") {
			left = append(left, path)
		}
		return err
	})
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestALinkIsPinnedFoundAndTakenAway(t *testing.T) {
	s, _ := store(t)
	p := tracer(t, "1")
	r := load(t, s, p, nil)
	at := plan.Attachment{Program: "tracepoint_count", Instance: "tracepoint_count", Hook: "tracepoint",
		Target: plan.Target{Tracepoint: "syscalls/sys_enter_getpgid"}, Priority: 500}
	trace := func(program *ebpf.Program) link.Link {
		l, err := link.Tracepoint("syscalls", "sys_enter_getpgid", program, nil)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	// A tracepoint takes a program once.
	extra, err := copyProgram(s, r, p, "tracepoint_count")
	if err != nil {
		t.Fatal(err)
	}
	first, err := s.PinLink("uid", at, 0, trace(r.Programs["tracepoint_count"]))
	if err != nil {
		t.Fatal(err)
	}
	before, err := Inspect(first.Link)
	if err != nil {
		t.Fatal(err)
	}
	// A second one takes the first one's place.
	second, err := s.PinLink("uid", at, 0, trace(extra))
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	now, err := Inspect(second.Link)
	if err != nil || now.ID == before.ID || now.Severed {
		t.Errorf("facts = %+v, %v", now, err)
	}
	if _, err := link.NewFromID(before.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the replaced link is still there: %v", err)
	}
	found, _, err := s.Links("uid")
	if err != nil || len(found) != 1 || found[0].Attachment != at {
		t.Fatalf("Links = %+v, %v", found, err)
	}
	if made, err := s.RepinLink(found[0]); made || err != nil {
		t.Errorf("RepinLink of a whole one = %v, %v", made, err)
	}
	for _, gone := range []string{found[0].Path, found[0].Path + textSuffix} {
		if err := os.Remove(gone); err != nil {
			t.Fatal(err)
		}
		if made, err := s.RepinLink(found[0]); !made || err != nil || missing(gone) {
			t.Errorf("RepinLink of %s = %v, %v", gone, made, err)
		}
	}
	if err := errors.Join(second.Close(), s.RemovePin(found[0]), found[0].Close()); err != nil {
		t.Error(err)
	}
	if _, err := link.NewFromID(now.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the removed link is still there: %v", err)
	}
	long := at
	long.Tracepoint = strings.Repeat("x", 5000)
	if err := s.Describe(&Link{UID: "uid", Attachment: long}); err == nil || !strings.Contains(err.Error(), "shorten") {
		t.Errorf("Describe of a long target = %v", err)
	}
}

func TestACopyOfAProgramSharesItsMaps(t *testing.T) {
	s, _ := store(t)
	p := tracer(t, "1")
	r := load(t, s, p, nil)
	extra, err := copyProgram(s, r, p, "tracepoint_count")
	if err != nil {
		t.Fatal(err)
	}
	first, err := ProgramID(r.Programs["tracepoint_count"])
	if err != nil {
		t.Fatal(err)
	}
	second, err := ProgramID(extra)
	if err != nil || first == second {
		t.Errorf("programs %d and %d, %v", first, second, err)
	}
	found, _, err := s.OpenRevision("uid", p.Revision)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = found.Close() }()
	if len(found.Copies("tracepoint_count")) != 2 {
		t.Errorf("copies = %v", found.Copies("tracepoint_count"))
	}
	for _, id := range []ebpf.ProgramID{first, second} {
		if name, ok := found.Instance(id); !ok || name != "tracepoint_count" {
			t.Errorf("program %d is %q", id, name)
		}
	}
	maps := func(p *ebpf.Program) []ebpf.MapID {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		ids, _ := info.MapIDs()
		return ids
	}
	shared := 0
	for _, id := range maps(extra) {
		if slices.Contains(maps(r.Programs["tracepoint_count"]), id) {
			shared++
		}
	}
	if shared != 2 {
		t.Errorf("they share %d maps, and have counts and .rodata", shared)
	}
}

func TestTheDirectoryMustBeOnABPFFileSystem(t *testing.T) {
	s, root := store(t)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere/skep")
	_, err := OpenStore(elsewhere)
	if !errors.Is(err, ErrNotBPFFS) {
		t.Fatalf("OpenStore = %v", err)
	}
	recommended.Run(t, err.Error(), "mkdir -p", "mount -t")
	t.Cleanup(func() { _ = unix.Unmount(filepath.Dir(elsewhere), unix.MNT_DETACH) })
	if mounted, err := OpenStore(elsewhere); err != nil {
		t.Errorf("after that, OpenStore = %v", err)
	} else {
		_ = mounted.Close()
	}
	if _, err := OpenStore(root); !errors.Is(err, ErrHeld) {
		t.Errorf("OpenStore of a held directory = %v", err)
	}
	if dirs, err := s.Directories(); err != nil || !slices.Equal(dirs, []string{root}) {
		t.Errorf("Directories = %v, %v", dirs, err)
	}
}

// TestADirectoryThatCannotBeMadeIsMendedByItsMessage: a command is recommended only where it works.
func TestADirectoryThatCannotBeMadeIsMendedByItsMessage(t *testing.T) {
	need.Kernel(t)
	readOnly := t.TempDir()
	if err := unix.Mount("tmpfs", readOnly, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(readOnly, unix.MNT_DETACH) })
	for _, nowhere := range []string{filepath.Join(readOnly, "bpf/skep"), "/proc/self/exe/skep"} {
		_, err := OpenStore(nowhere)
		if err == nil || !strings.Contains(err.Error(), "name a directory on a bpf file system") || len(recommended.Commands(err.Error())) > 0 {
			t.Errorf("%s: %v", nowhere, err)
		}
	}
	root := filepath.Join(readOnly, "skep")
	_, err := OpenStore(root)
	if err == nil {
		t.Fatal("it was made on a read-only file system")
	}
	recommended.Run(t, err.Error(), "mkdir -p", "mount -t")
	t.Cleanup(func() { _ = unix.Unmount(readOnly, unix.MNT_DETACH) })
	s, err := OpenStore(root)
	if err != nil {
		t.Fatalf("after that: %v", err)
	}
	_ = s.Close()
}

// TestALinkThatWasNeverKnownDoesNotCountAsEnded: no link has the id 0.
func TestALinkThatWasNeverKnownDoesNotCountAsEnded(t *testing.T) {
	if runs, err := (Remnant{}).Runs(); runs || err == nil {
		t.Errorf("Runs = %v, %v", runs, err)
	}
}

// An agent that is upgraded goes on with the contents of the maps whose layouts
// the earlier one noted by another hash.
func TestMapsNotedByAnEarlierAgentKeepTheirContents(t *testing.T) {
	for sentence, c := range map[string]struct {
		noted string
		kept  bool
	}{
		"as the earlier agent noted counts": {"cf7a402f25925a010ead18a8ebfceeb8", true},
		"as it noted another layout":        {"841ff9ac46941298b2537464f3aaf443", false},
		"as it is noted now":                {"", true},
		"as another is noted now":           {"2:cf7a402f25925a010ead18a8ebfceeb8", false},
		"beyond a bound":                    {"unknown", false},
	} {
		t.Run(sentence, func(t *testing.T) {
			s, root := store(t)
			first := tracer(t, "1")
			load(t, s, first, nil)
			link := filepath.Join(root, "uid", first.Revision, "m-counts"+layoutSuffix)
			if now, err := os.Readlink(link); err != nil || !strings.HasPrefix(now, "2:") {
				t.Fatalf("noted as %q, %v", now, err)
			}
			if c.noted != "" {
				if err := errors.Join(os.Remove(link), os.Symlink(c.noted, link)); err != nil {
					t.Fatal(err)
				}
			}
			reopen(t, s)
			found, _, err := s.OpenRevision("uid", first.Revision)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = found.Close() }()
			next, reports, err := loadAndPin(s, tracer(t, "2"), found)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = next.Close() }()
			if len(reports) != 1 || reports[0].Map != "counts" || reports[0].Kept != c.kept {
				t.Errorf("reports: %+v", reports)
			}
		})
	}
}

func TestTheMembersOfAScopeAreFoundAgain(t *testing.T) {
	s, _ := store(t)
	at := v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getpgid", Pods: &v1alpha1.Pods{}}
	p, err := loader.Prepare(opened(t, intent.Payload{Programs: []v1alpha1.Program{{Name: "tracepoint_count", Attach: []v1alpha1.Attachment{at}}}}),
		programs.Object("tracepoint_count"))
	if err != nil {
		t.Fatal(err)
	}
	r := load(t, s, p, nil)
	if err := r.Scopes()[plan.Scope(v1alpha1.Identity{}, at)].Set([]guard.Member{{CgroupID: 77, Level: 2}}); err != nil {
		t.Fatal(err)
	}
	reopen(t, s)
	found, strays, err := s.OpenRevision("uid", p.Revision)
	if err != nil || len(strays) != 0 {
		t.Fatal(err, strays)
	}
	defer func() { _ = found.Close() }()
	if ids, err := found.Scopes()[plan.Scope(v1alpha1.Identity{}, at)].Cgroups(); err != nil || !slices.Equal(ids, []uint64{77}) || !found.Whole(p) {
		t.Errorf("the scope holds %v (%v), want 77; whole: %v", ids, err, found.Whole(p))
	}
}
