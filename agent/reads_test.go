package agent_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/need"
)

// opened watches the kept objects, and returns how often each was opened since the
// last call.
func (w *world) opened() func() map[string]int {
	w.t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, filepath.Join(w.dir, "state", "objects"), unix.IN_OPEN); err != nil {
		w.t.Fatal(err)
	}
	return func() map[string]int {
		all, buffer := map[string]int{}, make([]byte, 1<<16)
		for {
			n, err := unix.Read(fd, buffer)
			if err != nil || n <= 0 {
				return all
			}
			for at := 0; at < n; {
				event := (*unix.InotifyEvent)(unsafe.Pointer(&buffer[at])) // as inotify(7) lays it out
				at += unix.SizeofInotifyEvent
				name := string(bytes.TrimRight(buffer[at:at+int(event.Len)], "\x00"))
				at += int(event.Len)
				if event.Mask&unix.IN_ISDIR == 0 && !strings.HasPrefix(name, ".") {
					all[name]++
				}
			}
		}
	}
}

// TestALoadThatWaitsReadsNoObject has many loads wait for one that takes seconds.
func TestALoadThatWaitsReadsNoObject(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "cn0", "cn1")
	a := w.idle(w.options())
	var all []intent.Payload
	for i := range 10 {
		p := w.intent(fmt.Sprint("app", i), "raw_tp_count", rawProgram())
		p.ObjectDigest = w.object(append(programsObject("raw_tp_count"), byte(i)))
		all = append(all, p)
	}
	chained := []intent.Payload{w.member("ca", "xdp_count", "count_packets", 1), w.member("cb", "xdp_pass", "xdp_pass", 2)}
	hand := func(payloads ...intent.Payload) {
		t.Helper()
		for _, p := range payloads {
			if err := a.Accept(w.seal(p)); err != nil {
				t.Fatal(err)
			}
		}
	}
	in := func(payloads ...intent.Payload) {
		t.Helper()
		until(t, "all to be in", 2*time.Minute, func() bool {
			a.Reconcile(t.Context())
			for _, p := range payloads {
				if !isAt(a, p) {
					return false
				}
			}
			return true
		})
	}
	hand(chained...)
	in(chained...)
	slow := w.intent("slow", "raw_tp_count", rawProgram())
	let := a.HoldLoads(slow.UID)
	t.Cleanup(let)
	hand(slow)
	until(t, "the slow load to begin", time.Minute, func() bool { a.Reconcile(t.Context()); return w.loads(a, "slow") })
	opened := w.opened()
	moved := w.member("ca", "xdp_count", "count_packets", 3)
	hand(append(all, moved)...)
	fetched := func() bool {
		for _, p := range all {
			if _, err := os.Stat(filepath.Join(w.dir, "state", "objects", strings.TrimPrefix(p.ObjectDigest, "sha256:"))); err != nil {
				return false
			}
		}
		return true
	}
	until(t, "objects to be fetched", time.Minute, func() bool { a.Reconcile(t.Context()); return fetched() })
	for range 3 {
		a.Reconcile(t.Context())
	}
	if n := len(opened()); n != 0 || !w.loads(a, "app0") || !w.loads(a, "ca") {
		t.Errorf("while they wait (%t, %t), %d objects are read", w.loads(a, "app0"), w.loads(a, "ca"), n)
	}
	let()
	in(append(all, moved, slow)...)
	for name, times := range opened() {
		if times > 1 {
			t.Errorf("%s was read %d times", name, times)
		}
	}
}

// TestATornObjectIsFetchedAgain has objects that a crash tore, which is found out when
// they are loaded: each alone, and both as a chain.
func TestATornObjectIsFetchedAgain(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "cn0", "cn1")
	a := w.idle(w.options())
	first, second := w.member("ca", "xdp_count", "count_packets", 1), w.member("cb", "xdp_pass", "xdp_pass", 2)
	for _, next := range []intent.Payload{first, w.member("ca", "xdp_count", "count_packets", 3)} {
		for _, p := range []intent.Payload{first, second} {
			path := filepath.Join(w.dir, "state", "objects", strings.TrimPrefix(p.ObjectDigest, "sha256:"))
			if err := os.WriteFile(path, []byte("torn"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Accept(w.seal(next), w.seal(second)); err != nil {
			t.Fatal(err)
		}
		until(t, "both to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return isAt(a, next) && isIn(a, second) })
	}
	if got := chainOf(t, a); got != "cb:xdp_pass ca:count_packets" {
		t.Errorf("chain is %q", got)
	}
}

// TestTwoProgramsOfOneObjectShareAnInterface: they have their maps in common.
func TestTwoProgramsOfOneObjectShareAnInterface(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "cn0", "cn1")
	a := w.idle(w.options())
	object, err := os.ReadFile("program/chain/testdata/shared.o")
	if err != nil {
		t.Fatal(err)
	}
	p := w.intent("both", "xdp_pass", v1alpha1.Program{Name: "one", Attach: on("xdp", "cn0")}, v1alpha1.Program{Name: "two", Attach: on("xdp", "cn0")})
	p.ObjectDigest = w.object(object)
	if err := a.Accept(w.seal(p)); err != nil {
		t.Fatal(err)
	}
	until(t, "both to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, p) })
}
