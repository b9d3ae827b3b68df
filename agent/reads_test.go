package agent_test

import (
	"bytes"
	"context"
	"errors"
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
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// opened watches the kept objects, and returns how often each was opened since the
// last call.
func opened(w *world.World) func() map[string]int {
	w.T.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, filepath.Join(w.Dir, "state", "objects"), unix.IN_OPEN); err != nil {
		w.T.Fatal(err)
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
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a := w.Idle(w.Options())
	var all []intent.Payload
	for i := range 10 {
		p := w.Intent(fmt.Sprint("app", i), "raw_tp_count", world.RawProgram())
		p.ObjectDigest = w.Object(append(world.ProgramsObject("raw_tp_count"), byte(i)))
		all = append(all, p)
	}
	chained := []intent.Payload{world.Member(w, "ca", "xdp_count", "count_packets", 1), world.Member(w, "cb", "xdp_pass", "xdp_pass", 2)}
	hand := func(payloads ...intent.Payload) {
		t.Helper()
		for _, p := range payloads {
			if err := a.Accept(w.Seal(p)); err != nil {
				t.Fatal(err)
			}
		}
	}
	in := func(payloads ...intent.Payload) {
		t.Helper()
		world.Until(t, "all to be in", 2*time.Minute, func() bool {
			a.Reconcile(t.Context())
			for _, p := range payloads {
				if !world.IsAt(a, p) {
					return false
				}
			}
			return true
		})
	}
	hand(chained...)
	in(chained...)
	slow := w.Intent("slow", "raw_tp_count", world.RawProgram())
	let := a.HoldLoads(slow.UID)
	t.Cleanup(let)
	hand(slow)
	world.Until(t, "the slow load to begin", time.Minute, func() bool { a.Reconcile(t.Context()); return loads(w, a, "slow") })
	opened := opened(w)
	moved := world.Member(w, "ca", "xdp_count", "count_packets", 3)
	hand(append(all, moved)...)
	fetched := func() bool {
		for _, p := range all {
			if _, err := os.Stat(filepath.Join(w.Dir, "state", "objects", strings.TrimPrefix(p.ObjectDigest, "sha256:"))); err != nil {
				return false
			}
		}
		return true
	}
	world.Until(t, "objects to be fetched", time.Minute, func() bool { a.Reconcile(t.Context()); return fetched() })
	for range 3 {
		a.Reconcile(t.Context())
	}
	if n := len(opened()); n != 0 || !loads(w, a, "app0") || !loads(w, a, "ca") {
		t.Errorf("while they wait (%t, %t), %d objects are read", loads(w, a, "app0"), loads(w, a, "ca"), n)
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
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a := w.Idle(w.Options())
	first, second := world.Member(w, "ca", "xdp_count", "count_packets", 1), world.Member(w, "cb", "xdp_pass", "xdp_pass", 2)
	for _, next := range []intent.Payload{first, world.Member(w, "ca", "xdp_count", "count_packets", 3)} {
		for _, p := range []intent.Payload{first, second} {
			path := filepath.Join(w.Dir, "state", "objects", strings.TrimPrefix(p.ObjectDigest, "sha256:"))
			if err := os.WriteFile(path, []byte("torn"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Accept(w.Seal(next), w.Seal(second)); err != nil {
			t.Fatal(err)
		}
		world.Until(t, "both to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsAt(a, next) && world.IsIn(a, second) })
	}
	if got := world.ChainOf(t, a); got != "cb:xdp_pass ca:count_packets" {
		t.Errorf("chain is %q", got)
	}
}

// TestTwoProgramsOfOneObjectShareAnInterface: they have their maps in common.
func TestTwoProgramsOfOneObjectShareAnInterface(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a := w.Idle(w.Options())
	object, err := os.ReadFile("program/chain/testdata/shared.o")
	if err != nil {
		t.Fatal(err)
	}
	p := w.Intent("both", "xdp_pass", v1alpha1.Program{Name: "one", Attach: world.On("xdp", "cn0")}, v1alpha1.Program{Name: "two", Attach: world.On("xdp", "cn0")})
	p.ObjectDigest = w.Object(object)
	if err := a.Accept(w.Seal(p)); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "both to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, p) })
}

func TestARegistryThatHangsKeepsNothingFromHealing(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "rf0", "rf1")
	o := w.Options()
	release := make(chan struct{})
	slow := w.Object(world.ProgramsObject("raw_tp_count"))
	o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
		if digest == slow {
			select {
			case <-release:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return w.Fetch(ctx, digest)
	}
	a := w.StartWith(o)
	if err := w.Accept(a, w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})); err != nil {
		t.Fatal(err)
	}
	_, l := world.One(t, a)
	if err := a.Accept(w.Seal(w.Intent("slow", "raw_tp_count", world.RawProgram()))); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the fetch to be told", time.Minute, func() bool {
		s := a.Status()
		return len(s) == 2 && s[1].Conditions[0].Reason == "Fetching" && s[1].Error == ""
	})
	if err := os.Remove(l.Pin); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the pin to be healed", time.Minute, func() bool { _, err := os.Stat(l.Pin); return err == nil })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := a.Settled(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Settled = %v while an object is on its way", err)
	}
	close(release)
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	if got := world.Targets(a); len(got) != 2 {
		t.Errorf("targets = %v", got)
	}
}
