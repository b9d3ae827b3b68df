package serve_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/serve"
	"github.com/skep-dev/skep/skepmap"
	"github.com/skep-dev/skep/skepmap/protocol"
	"github.com/skep-dev/skep/test/harness/await"
)

// TestMapsThatAReaderHasAreNotFrozen asks the kernel with the descriptor that a reader gets, while the map is granted and after it.
func TestMapsThatAReaderHasAreNotFrozen(t *testing.T) {
	f, path := folder(t, serve.New(serve.Options{}))
	ring := newMap(t, &ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 4096})
	array := newMap(t, &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE})
	f.Grant(map[string]serve.Granted{"events": grant(t, ring, skepmap.Consume, 1, nil), "array": grant(t, array, skepmap.Write, 1, nil)})
	conn := dial(t, path)
	if _, err := conn.Do(t.Context(), protocol.Request{Op: protocol.Consume, Map: "events"}); err != nil {
		t.Fatal(err)
	}
	passed, err := ebpf.NewMapFromFD(conn.Descriptor())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = passed.Close() }()
	for name, m := range map[string]*ebpf.Map{"events": passed, "array": array} {
		if err := m.Freeze(); !errors.Is(err, unix.EBUSY) {
			t.Errorf("%s is frozen: %v", name, err)
		}
	}
	// A reader consumes as before.
	page, err := unix.Mmap(passed.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Munmap(page); err != nil {
		t.Error(err)
	}
	f.Grant(nil)
	await.True(t, "the maps to be let go", 10*time.Second, func() bool { return array.Freeze() == nil })
}

// TestAMapCostsOneDescriptor has it in a hundred folders.
func TestAMapCostsOneDescriptor(t *testing.T) {
	s := serve.New(serve.Options{})
	g := grant(t, counts(t), skepmap.Read, 1, nil)
	var folders []*serve.Folder
	for range 100 {
		f, _ := folder(t, s)
		folders = append(folders, f)
	}
	before := descriptors(t)
	for _, f := range folders {
		f.Grant(map[string]serve.Granted{"counts": {Info: g.Info, Map: g.Map.Share()}})
	}
	if more := descriptors(t) - before; more > 0 {
		t.Errorf("a hundred grants cost %d descriptors", more)
	}
	if err := g.Map.Close(); err != nil {
		t.Error(err)
	}
	for i, f := range folders {
		if i == len(folders)-1 {
			// The last share is the map.
			if _, err := g.Map.Info(); err != nil {
				t.Errorf("the map is closed while it is granted: %v", err)
			}
		}
		f.Grant(nil)
	}
	await.True(t, "the map to be closed", 10*time.Second, func() bool { return descriptors(t) == before-1 })
}

// descriptors is how many the process has.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestWhatIsNotKeptEnds keeps one of two grants, without opening anything.
func TestWhatIsNotKeptEnds(t *testing.T) {
	f, path := folder(t, serve.New(serve.Options{}))
	m := counts(t)
	f.Grant(map[string]serve.Granted{"kept": grant(t, m, skepmap.Read, 1, nil), "ended": grant(t, m, skepmap.Write, 1, nil)})
	get := func(c *protocol.Conn, name string) error {
		_, err := c.Do(t.Context(), protocol.Request{Op: protocol.Get, Map: name, Key: []byte{1, 0, 0, 0}})
		return err
	}
	of := map[string]*protocol.Conn{"kept": dial(t, path), "ended": dial(t, path)}
	for name, c := range of {
		if err := get(c, name); err != nil {
			t.Fatal(err)
		}
	}
	f.Keep(func(name string, g serve.Granted) bool { return name == "kept" && g.Info.Access == skepmap.Read })
	if err := get(of["kept"], "kept"); err != nil {
		t.Errorf("what is kept ended: %v", err)
	}
	if err := get(of["ended"], "ended"); err == nil || code(err) != "" {
		t.Errorf("the connection that used what ended: %v", err)
	}
	if err := get(dial(t, path), "ended"); code(err) != protocol.Denied {
		t.Errorf("what ended is answered: %v", err)
	}
}

// TestAnOwnerHasSoManyConnections, over all of its folders.
func TestAnOwnerHasSoManyConnections(t *testing.T) {
	s := serve.New(serve.Options{Connections: 10, PerOwner: 3, PerFolder: 2})
	m := counts(t)
	var rejected []string
	for i, owner := range []string{"web", "web", "shop"} {
		f, path := folderOf(t, s, owner)
		f.Grant(map[string]serve.Granted{"counts": grant(t, m, skepmap.Read, 1, nil)})
		for range 2 {
			_, err := dial(t, path).Do(t.Context(), protocol.Request{Op: protocol.Get, Map: "counts", Key: []byte{1, 0, 0, 0}})
			if err != nil {
				rejected = append(rejected, fmt.Sprint(i, " ", code(err), ": ", err))
			}
		}
	}
	const want = "1 Busy: the readers of namespace web have 3 connections on this node, and no more are allowed; close one"
	if len(rejected) != 1 || rejected[0] != want {
		t.Errorf("these were rejected: %q, want %q", rejected, want)
	}
}

// TestConnectionsCostTheirOwner connects all the time, by two folders. What a connection costs without its work is 50 µs, of which an owner
// with a hundredth of a core waits for 99 times as much.
func TestConnectionsCostTheirOwner(t *testing.T) {
	s := serve.New(serve.Options{FolderShare: 1, OwnerShare: .01, Share: 1})
	m := counts(t)
	var paths []string
	for range 2 {
		f, path := folderOf(t, s, "web")
		f.Grant(map[string]serve.Granted{"counts": grant(t, m, skepmap.Read, 1, nil)})
		paths = append(paths, path)
	}
	began := time.Now()
	const rounds = 25
	for range rounds {
		for _, path := range paths {
			c := dial(t, path)
			if _, err := c.Do(t.Context(), protocol.Request{Op: protocol.Get, Map: "counts", Key: []byte{1, 0, 0, 0}}); err != nil {
				t.Fatal(err)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if took, least := time.Since(began), (2*rounds-1)*99*50*time.Microsecond; took < least {
		t.Errorf("%d connections took %s, at least %s are due", 2*rounds, took, least)
	}
	if n := s.Owners(); n != 1 {
		t.Errorf("%d owners have a pace", n)
	}
}

// TestConnectingCosts makes connections that ask for nothing, but for the last one.
func TestConnectingCosts(t *testing.T) {
	f, path := folder(t, serve.New(serve.Options{FolderShare: .01, OwnerShare: 1, Share: 1}))
	f.Grant(map[string]serve.Granted{"counts": grant(t, counts(t), skepmap.Read, 1, nil)})
	began := time.Now()
	const all = 15
	for range all - 1 {
		dial(t, path)
	}
	if _, err := dial(t, path).Do(t.Context(), protocol.Request{Op: protocol.Get, Map: "counts", Key: []byte{1, 0, 0, 0}}); err != nil {
		t.Fatal(err)
	}
	if took, least := time.Since(began), all*99*50*time.Microsecond; took < least {
		t.Errorf("the request after %d connections took %s, at least %s are due", all, took, least)
	}
}
