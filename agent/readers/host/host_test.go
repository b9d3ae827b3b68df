package host_test

import (
	"bytes"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/skepmap"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/drop"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/reader"
	"github.com/skep-dev/skep/test/harness/recommended"
)

func TestMain(m *testing.M) {
	world.MaybeChild()
	reader.MaybeChild()
	leaks.Main(m)
}

// The groups of readers. No host needs to have a group of a number.
const (
	metrics, ops   = 990, 991
	metrics_, ops_ = "990", "991"
)

// host is a world with a folder for readers, which these can look into, and an application that counts packets.
type host struct {
	*world.World
	t *testing.T
}

func newHost(t *testing.T) *host {
	t.Helper()
	need.Kernel(t)
	dir := t.TempDir()
	h := &host{world.New(t), t}
	// It is in a folder that is closed to others.
	world.Must(t, os.Chmod(filepath.Dir(dir), 0o755))
	h.MapsDir = filepath.Join(dir, "maps")
	t.Cleanup(func() {
		if err := agent.RemoveReaders(h.MapsDir); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(h.MapsDir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("something is left: %v", err)
		}
	})
	return h
}

// export has an application grant its map counts.
func export(p intent.Payload, grants ...v1alpha1.MapExport) intent.Payload {
	m := p.Maps["counts"]
	m.Export = grants
	p.Maps = map[string]v1alpha1.Map{"counts": m}
	return p
}

func to(access v1alpha1.MapAccess, groups ...string) v1alpha1.MapExport {
	return v1alpha1.MapExport{Access: access, Groups: groups}
}

// counter is the application, in a version of its object.
func (h *host) counter(object string, grants ...v1alpha1.MapExport) intent.Payload {
	return export(h.Intent("counter", object, v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rd0")}), grants...)
}

func (h *host) path(names ...string) string {
	return filepath.Join(h.MapsDir, filepath.Join(names...))
}

// published waits until an application has a map in its folder, or none.
func (h *host) published(is bool, names ...string) {
	h.t.Helper()
	world.Until(h.t, fmt.Sprintf("%v to be there: %v", names, is), time.Minute, func() bool {
		_, err := os.Stat(h.path(names...))
		return is == (err == nil)
	})
}

// all are the files below the folder of readers, with the modes and groups of pins.
func (h *host) all() (all []string) {
	h.t.Helper()
	err := filepath.WalkDir(h.MapsDir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(h.MapsDir, path)
		if strings.HasSuffix(name, ".debug") {
			// The kernel's own.
			return nil
		}
		if strings.HasPrefix(name, ".bpf") {
			info, err := d.Info()
			if err != nil {
				return err
			}
			name += fmt.Sprintf(" %v %d", info.Mode(), info.Sys().(*syscall.Stat_t).Gid)
		}
		all = append(all, name)
		return nil
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		h.t.Fatal(err)
	}
	return all
}

func (h *host) listing(names ...string) skepmap.Listing {
	h.t.Helper()
	l, err := skepmap.ReadListing(h.path(names...))
	if err != nil {
		h.t.Fatal(err)
	}
	return l
}

func (h *host) inode(names ...string) uint64 {
	h.t.Helper()
	info, err := os.Stat(h.path(names...))
	if err != nil {
		h.t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// mapID is the kernel's of what is pinned.
func (h *host) mapID(names ...string) ebpf.MapID {
	h.t.Helper()
	m, err := ebpf.LoadPinnedMap(h.path(names...), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	info, err := m.Info()
	if err != nil {
		h.t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

func wants[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

const refused = "EPERM"

// reads is what a reader is answered that may read, and closed another one.
var (
	reads  = reader.Answers{OpenWrite: "EACCES", Update: refused, Delete: refused, Freeze: refused, Pin: "EACCES", ByID: refused, Entries: 1}
	closed = reader.Answers{Open: "EACCES", OpenWrite: "EACCES", ByID: refused}
)

// TestAGroupReadsTheMapsThatItWasGranted follows an application from its first version to its end.
func TestAGroupReadsTheMapsThatItWasGranted(t *testing.T) {
	h := newHost(t)
	world.Veth(t, "rd0", "rd1")
	a, stop := h.Start()
	world.Must(t, h.Accept(a, h.counter("xdp_count")))
	if _, err := os.Lstat(h.MapsDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder is there, and nothing was granted: %v", err)
	}
	world.Must(t, h.Accept(a, h.counter("xdp_count", to(v1alpha1.MapRead, metrics_, ops_))))
	h.published(true, "counter", "maps.json")
	wants(t, "the folder", h.all(), []string{".bpf/counter/counts+1 -r--r----- 990", ".bpf/counter/counts@991+1 -r--r----- 991",
		"counter/counts", "counter/counts.btf", "counter/counts@991", "counter/maps.json"})
	id := h.mapID("counter", "counts")
	wants(t, "the first group", reader.Open(t, h.path("counter", "counts"), id, metrics), reads)
	wants(t, "the second group", reader.Open(t, h.path("counter", "counts@991"), id, ops), reads)
	wants(t, "another group", reader.Open(t, h.path("counter", "counts"), id, ops), closed)
	l := h.listing("counter")
	if l.Digest == "" || l.Application.Name != "counter" || l.Maps["counts"].Type != "PerCPUArray" || l.Maps["counts"].ValueTypeID == 0 {
		t.Errorf("the listing is %+v", l)
	}
	if s := world.StatusOf(a, "counter"); s.ReadersFolder != h.path("counter") || len(s.UnpublishedMaps) > 0 {
		t.Errorf("the status is %+v", s)
	}

	// A version that keeps the map keeps the pin.
	inode := h.inode("counter", "counts")
	world.Must(t, h.Accept(a, h.counter("xdp_count_v2", to(v1alpha1.MapRead, metrics_))))
	h.published(false, "counter", "counts@991")
	world.Until(t, "the new version to be listed", time.Minute, func() bool { return h.listing("counter").Digest != l.Digest })
	if now := h.listing("counter"); h.inode("counter", "counts") != inode || now.Maps["counts"].Generation != 1 || h.mapID("counter", "counts") != id {
		t.Errorf("the map is another one: %+v", now)
	}
	h.touchesNothing(func() { stop(); a, stop = h.Start(); world.Must(t, h.Accept(a)); world.Looks(t, a) })

	// Another layout makes another map.
	before := h.listing("counter").Generation
	world.Must(t, h.Accept(a, h.counter("xdp_count_v3", to(v1alpha1.MapRead, metrics_))))
	world.Until(t, "the new map", time.Minute, func() bool { return h.listing("counter").Maps["counts"].Generation > before })
	if h.mapID("counter", "counts") == id || h.inode("counter", "counts") == inode {
		t.Error("the former map is pinned")
	}
	write := h.counter("xdp_count_v3", to(v1alpha1.MapWrite, metrics_))
	world.Must(t, h.Accept(a, write))
	world.Until(t, "the wider grant", time.Minute, func() bool { return h.listing("counter").Maps["counts"].Access == skepmap.Write })
	got := reader.Open(t, h.path("counter", "counts"), h.mapID("counter", "counts"), metrics)
	// An array has all its entries. Newer kernels let who may write freeze a map.
	got.Freeze = ""
	wants(t, "who may write", got, reader.Answers{Delete: "EINVAL", Pin: "EACCES", ByID: refused, Entries: 1})
	world.Must(t, h.Accept(a, h.Tombstone(write)))
	wants(t, "the folder", h.all(), nil)
}

// touchesNothing asks inotify, as readers do.
func (h *host) touchesNothing(f func()) {
	h.t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, dir := range []string{h.path(), h.path("counter"), h.path(".bpf"), h.path(".bpf", "counter")} {
		if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE|unix.IN_MODIFY|unix.IN_ATTRIB); err != nil {
			h.t.Fatal(err)
		}
	}
	f()
	if n, err := unix.Read(fd, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
		h.t.Errorf("%d bytes of events, %v", n, err)
	}
}

// slow is a version of the application whose load takes the verifier seconds.
func (h *host) slow(name string, grants ...v1alpha1.MapExport) intent.Payload {
	var all []v1alpha1.Program
	for i := range 8 {
		all = append(all, v1alpha1.Program{Name: fmt.Sprint("slow_", i+1), Attach: []v1alpha1.Attachment{{Hook: "raw_tp", Tracepoint: "xdp_exception"}}})
	}
	p := h.Intent(name, "raw_tp_slow", all...)
	if len(grants) > 0 {
		p = export(p, grants...)
	}
	return p
}

// TestAGrantEndsBeforeAnythingThatTakesLong takes a grant back by a version whose load takes the verifier seconds.
func TestAGrantEndsBeforeAnythingThatTakesLong(t *testing.T) {
	h := newHost(t)
	world.Veth(t, "rd0", "rd1")
	a, _ := h.Start()
	world.Must(t, h.Accept(a, h.counter("xdp_count", to(v1alpha1.MapWrite, metrics_), to(v1alpha1.MapRead, ops_))))
	h.published(true, "counter", "counts@991")
	wants(t, "of the group", reader.Open(t, h.path("counter", "counts"), 0, metrics).Open, "")
	next := h.slow("counter", to(v1alpha1.MapRead, ops_))
	h.Give(a, h.slow("another"), next)
	loading := func() bool { return world.StatusOf(a, "counter").Conditions[0].Reason == "Loading" }
	world.Until(t, "the load to begin", time.Minute, loading)
	wants(t, "of the group", reader.Open(t, h.path("counter", "counts"), 0, metrics), reader.Answers{Open: "EACCES", OpenWrite: "EACCES"})
	h.Give(a, h.Tombstone(next))
	h.published(false, "counter")
	if !world.StatusOf(a, "another").Unloading && world.StatusOf(a, "another").Conditions[0].Reason != "Loading" {
		t.Errorf("the load of another one has ended: %+v", world.StatusOf(a, "another"))
	}
	wants(t, "the folder", h.all(), nil)
}

// TestWhatCannotBePublishedIsReported has the others be published.
func TestWhatCannotBePublishedIsReported(t *testing.T) {
	h := newHost(t)
	world.Veth(t, "rd0", "rd1")
	world.Must(t, os.Mkdir(h.MapsDir, 0o755))
	world.Must(t, os.Chown(h.MapsDir, reader.ID, reader.ID))
	clock := world.NewClock()
	o := h.Options()
	o.Clock = clock.Now
	a := h.StartWith(o)
	world.Must(t, h.Accept(a, h.counter("xdp_count", to(v1alpha1.MapRead, "skep-no-such-group", metrics_), to(v1alpha1.MapConsume, ops_))))
	reports := func(parts ...string) {
		t.Helper()
		world.Until(t, fmt.Sprint("the report of ", parts), time.Minute, func() bool {
			all := strings.Join(world.StatusOf(a, "counter").UnpublishedMaps, "\n")
			return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(all, part) })
		})
	}
	reports("skep-no-such-group", "groupadd", "map counts for Consume", "others can change it")
	if all := h.all(); len(all) > 0 {
		t.Errorf("published into the folder of another: %v", all)
	}
	world.Must(t, os.Chown(h.MapsDir, 0, 0))
	clock.Forward(time.Minute)
	world.Looks(t, a)
	h.published(true, "counter", "counts")
	reports("skep-no-such-group", "map counts for Consume")
	wants(t, "the folder", h.all(), []string{".bpf/counter/counts+1 -r--r----- 990", "counter/counts", "counter/counts.btf", "counter/maps.json"})
}

// TestNothingIsPublishedWhereReadersCanMakePins: who may read a map pins it there, and opens the pin for writing.
func TestNothingIsPublishedWhereReadersCanMakePins(t *testing.T) {
	h := newHost(t)
	world.Veth(t, "rd0", "rd1")
	open := t.TempDir()
	world.Must(t, unix.Mount("bpf", open, "bpf", 0, ""))
	t.Cleanup(func() { world.Must(t, unix.Unmount(open, 0)) })
	clock := world.NewClock()
	o := h.Options()
	o.Clock = clock.Now
	a := h.StartWith(o)
	world.Must(t, h.Accept(a, h.counter("xdp_count", to(v1alpha1.MapRead, metrics_))))
	if all := world.StatusOf(a, "counter").UnpublishedMaps; len(all) != 1 || !strings.Contains(all[0], "chmod 0755 "+open) {
		t.Errorf("reported is %q", all)
	}
	wants(t, "the folder", h.all(), nil)
	recommended.Run(t, world.StatusOf(a, "counter").UnpublishedMaps[0], "chmod 0755 %s")
	clock.Forward(time.Minute)
	world.Looks(t, a)
	h.published(true, "counter", "counts")
	wants(t, "of the group", reader.Open(t, h.path("counter", "counts"), h.mapID("counter", "counts"), metrics), reads)
	// What is published goes where one is mounted later.
	world.Must(t, os.Chmod(open, 0o777))
	clock.Forward(time.Minute)
	world.Looks(t, a)
	wants(t, "what was published", h.all(), nil)
	recommended.Run(t, world.StatusOf(a, "counter").UnpublishedMaps[0], "chmod 0755 %s")
	clock.Forward(time.Minute)
	world.Looks(t, a)
	h.published(true, "counter", "counts")
	wants(t, "of the group", reader.Open(t, h.path("counter", "counts"), h.mapID("counter", "counts"), metrics), reads)
}

// TestAFileSystemThatIsNotMountedIsReportedWithItsCommand has an agent that may mount nothing, as in a service of systemd.
func TestAFileSystemThatIsNotMountedIsReportedWithItsCommand(t *testing.T) {
	h := newHost(t)
	world.Veth(t, "rd0", "rd1")
	clock := world.NewClock()
	o := h.Options()
	o.Clock = clock.Now
	a, err := agent.New(o)
	world.Must(t, err)
	t.Cleanup(func() { world.Must(t, a.Close()) })
	h.Give(a, h.counter("xdp_count"))
	world.Looks(t, a)
	h.Give(a, h.counter("xdp_count", to(v1alpha1.MapRead, metrics_)))
	var why []string
	drop.Capabilities(t, func() {
		world.Until(t, "the report", time.Minute, func() bool {
			a.Reconcile(t.Context())
			why = world.StatusOf(a, "counter").UnpublishedMaps
			return len(why) > 0
		})
	}, unix.CAP_SYS_ADMIN)
	recommended.Run(t, why[0], "mount -t bpf -o mode=0755 bpf %s")
	clock.Forward(time.Minute)
	world.Looks(t, a)
	h.published(true, "counter", "counts")
	wants(t, "of the group", reader.Open(t, h.path("counter", "counts"), h.mapID("counter", "counts"), metrics), reads)
}

// TestAMapOfWhichTheObjectIsNotThereIsPublishedWhenItIs: only the object has flags by which a grant may not apply.
func TestAMapOfWhichTheObjectIsNotThereIsPublishedWhenItIs(t *testing.T) {
	h := newHost(t)
	world.Veth(t, "rd0", "rd1")
	clock := world.NewClock()
	o := h.Options()
	o.Clock = clock.Now
	a := h.StartWith(o)
	world.Must(t, h.Accept(a, h.counter("xdp_count")))
	objects := filepath.Join(h.Dir, "state", "objects")
	world.Must(t, os.Rename(objects, objects+"-away"))
	world.Must(t, os.Mkdir(objects, 0o700))
	granting := h.counter("xdp_count", to(v1alpha1.MapRead, metrics_))
	h.Mu.Lock()
	h.Objects = map[string][]byte{}
	h.Mu.Unlock()
	h.Give(a, granting)
	world.Until(t, "the report", time.Minute, func() bool {
		all := world.StatusOf(a, "counter").UnpublishedMaps
		return len(all) == 1 && strings.Contains(all[0], "read what the object says")
	})
	wants(t, "the folder", h.all(), nil)
	world.Must(t, errors.Join(os.Remove(objects), os.Rename(objects+"-away", objects)))
	clock.Forward(time.Minute)
	world.Looks(t, a)
	h.published(true, "counter", "counts")
	world.Must(t, h.Accept(a, h.counter("xdp_count", v1alpha1.MapExport{Access: v1alpha1.MapRead, Namespaces: []string{"shop"}})))
	wants(t, "a grant to namespaces", h.all(), nil)
}

// TestAnAgentWithoutAFolderSaysSo publishes nothing.
func TestAnAgentWithoutAFolderSaysSo(t *testing.T) {
	h := newHost(t)
	world.Veth(t, "rd0", "rd1")
	o := h.Options()
	o.MapsDir = ""
	a := h.StartWith(o)
	world.Must(t, h.Accept(a, h.counter("xdp_count", to(v1alpha1.MapRead, metrics_))))
	if all := world.StatusOf(a, "counter").UnpublishedMaps; len(all) != 1 || !strings.Contains(all[0], "--maps-dir") {
		t.Errorf("reported is %q", all)
	}
}

// TestAnApplicationOfTheClusterComesBeforeOneOfANamespaceOfItsName: a map of the one could have the name of the other.
func TestAnApplicationOfTheClusterComesBeforeOneOfANamespaceOfItsName(t *testing.T) {
	h := newHost(t)
	world.Veth(t, "rd0", "rd1")
	world.Veth(t, "rd2", "rd3")
	a, _ := h.Start()
	tenant := h.Intent("t", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rd2")})
	tenant = export(world.Tenant(tenant, "counter", "counts", 1, 1), to(v1alpha1.MapRead, ops_))
	world.Must(t, h.Accept(a, tenant))
	h.published(true, "counter", "counts", "counts")
	ours := h.counter("xdp_count", to(v1alpha1.MapRead, metrics_))
	world.Must(t, h.Accept(a, ours))
	h.published(true, "counter", "maps.json")
	wants(t, "the folder", h.all(), []string{".bpf/counter/counts+1 -r--r----- 990", "counter/counts", "counter/counts.btf", "counter/maps.json"})
	world.Must(t, h.Accept(a, h.Tombstone(ours)))
	world.Looks(t, a)
	h.published(true, "counter", "counts", "counts")
}

// TestKillingTheAgentLeavesNoWiderPin kills an agent again and again while grants change, and looks each time.
func TestKillingTheAgentLeavesNoWiderPin(t *testing.T) {
	h := newHost(t)
	world.Veth(t, "rd0", "rd1")
	inbox := filepath.Join(h.Dir, "inbox")
	objects := filepath.Join(h.Dir, "objects")
	world.Must(t, errors.Join(os.MkdirAll(inbox, 0o755), os.MkdirAll(objects, 0o755)))
	versions := []string{"xdp_count", "xdp_count_v2", "xdp_count_v3"}
	for _, name := range versions {
		body := world.ProgramsObject(name)
		world.Must(t, os.WriteFile(filepath.Join(objects, h.Object(body)), body, 0o600))
	}
	// No agent may have got further than to one of possible. One that kept an intent goes back to no earlier one.
	var last intent.Payload
	var possible []intent.Payload
	rounds, published, kept := 50, 0, 0
	if testing.Short() {
		rounds = 10
	}
	for round := range rounds {
		var grants []v1alpha1.MapExport
		for _, group := range []string{metrics_, ops_} {
			if access := mathrand.IntN(3); access > 0 {
				grants = append(grants, to([]v1alpha1.MapAccess{"", v1alpha1.MapRead, v1alpha1.MapWrite}[access], group))
			}
		}
		last = h.counter(versions[mathrand.IntN(3)], grants...)
		sealed := h.Seal(last)
		world.Must(t, os.WriteFile(filepath.Join(inbox, "counter"), sealed, 0o600))
		h.KillAfter(time.Duration(mathrand.IntN(200)) * time.Millisecond)
		if possible = append(possible, last); len(h.wider(last)) == 0 && h.keeps(sealed) {
			possible, kept = []intent.Payload{last}, kept+1
		}
		if wider := h.wider(possible...); len(wider) > 0 {
			t.Errorf("%v are there, and no intent since the last one that was worked on grants them", wider)
		}
		if len(h.all()) > 0 {
			published++
		}
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	t.Logf("in %d of %d rounds, something was published, and in %d nothing wider than what was kept", published, rounds, kept)
	if (published == 0 || kept == 0) && !testing.Short() {
		t.Error("nothing was published in any round, or no intent was kept")
	}
	a, stop := h.Start()
	world.Must(t, h.Accept(a, last))
	world.Looks(t, a)
	stop()
	wants(t, "pins that are not granted", h.wider(last), nil)
	if grants := last.Maps["counts"].Export; len(grants) > 0 {
		if pins := len(h.all()); pins != 2*len(grants)+2 {
			t.Errorf("%v are granted, and there are %v", grants, h.all())
		}
		return
	}
	wants(t, "the folder", h.all(), nil)
}

// keeps reports whether an intent is in the agent's state.
func (h *host) keeps(sealed intent.Envelope) (is bool) {
	h.t.Helper()
	err := filepath.WalkDir(filepath.Join(h.Dir, "state"), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || atomicfile.IsTemporary(d.Name()) {
			return err
		}
		body, err := os.ReadFile(path)
		is = is || bytes.Contains(body, sealed)
		return err
	})
	if !errors.Is(err, os.ErrNotExist) {
		world.Must(h.t, err)
	}
	return is
}

// wider are the pins that others than root may open, and none of the intents grants.
func (h *host) wider(all ...intent.Payload) (wider []string) {
	h.t.Helper()
	for _, name := range h.all() {
		pin, isPin := strings.CutPrefix(name, ".bpf/counter/")
		granted := slices.ContainsFunc(all, func(p intent.Payload) bool {
			return slices.ContainsFunc(p.Maps["counts"].Export, func(e v1alpha1.MapExport) bool {
				// Who may write may read: the version that runs may have granted no more.
				return strings.HasSuffix(pin, " -r--r----- "+e.Groups[0]) ||
					e.Access == v1alpha1.MapWrite && strings.HasSuffix(pin, " -rw-rw---- "+e.Groups[0])
			})
		})
		if isPin && !granted && !strings.Contains(pin, " -rw------- ") {
			wider = append(wider, name)
		}
	}
	return wider
}
