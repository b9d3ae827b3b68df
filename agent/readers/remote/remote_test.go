package remote_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/remote"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent/mapread"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/module"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// snoop runs the example exec-snoop, whose pins are in root, and stops the agent: it would remove pins that it does not know.
func snoop(t *testing.T) (root string, request mapread.Request) {
	t.Helper()
	need.Kernel(t)
	w := world.New(t)
	object, err := os.ReadFile(filepath.Join(module.Root(), "examples/exec-snoop/exec_snoop.bpf.o"))
	if err != nil {
		t.Fatal(err)
	}
	a, stop := w.Start()
	p := w.Intent("exec-snoop", "xdp_pass", v1alpha1.Program{Name: "snoop",
		Attach: []v1alpha1.Attachment{{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_execve"}}})
	p.ObjectDigest = w.Object(object)
	if err := w.Accept(a, p); err != nil {
		t.Fatal(err)
	}
	stop()
	return w.BPFFS, mapread.Request{Header: noderequest.Header{Node: "node-1", User: "ann"}, Application: p.Application, UID: p.UID}
}

// pin pins a map with so many entries beside the application's, and returns its name.
func pin(t *testing.T, root string, entries uint32) string {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "many", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: entries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	events, err := filepath.Glob(filepath.Join(root, "*", "*", "m-events"))
	if err != nil || len(events) != 1 {
		t.Fatal(events, err)
	}
	if err := m.Pin(filepath.Join(filepath.Dir(events[0]), "m-many")); err != nil {
		t.Fatal(err)
	}
	return "many"
}

// answers are the lines of an answer.
type answers struct {
	mu    sync.Mutex
	lines []noderequest.Answer
}

func (a *answers) send(line noderequest.Answer) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lines = append(a.lines, line)
	return nil
}

// last is the last line, which every answer ends with.
func (a *answers) last() noderequest.Answer { return a.lines[len(a.lines)-1] }

func read(ctx context.Context, r *remote.Reader, request mapread.Request) *answers {
	a := &answers{}
	r.Read(ctx, request, a.send)
	return a
}

func TestAReadIsBoundedAndSaysWhereItEnds(t *testing.T) {
	root, request := snoop(t)
	request.Operation, request.Map = mapread.Dump, pin(t, root, 1000)
	for name, c := range map[string]struct {
		options remote.Options
		sent    int
		text    string
	}{
		"whole":      {remote.Options{}, 1000, ""},
		"in entries": {remote.Options{Entries: 10}, 10, "after 10 lines"},
		"in bytes":   {remote.Options{Bytes: 400}, 10, "there is more than one answer may have"},
		"in time":    {remote.Options{Time: time.Nanosecond}, 0, "it may take 1ns"},
	} {
		t.Run(name, func(t *testing.T) {
			c.options.Root, c.options.Log = root, slog.New(slog.DiscardHandler)
			a := read(t.Context(), remote.New(c.options), request)
			if sent := len(a.lines) - 1; sent != c.sent && (name != "in bytes" || sent == 0 || sent > 20) {
				t.Errorf("%d lines", sent)
			}
			if last := a.last(); last.End != (c.text == "") || !strings.Contains(last.Error, c.text) {
				t.Errorf("it ends by %+v", last)
			}
		})
	}
}

// TestAReadCostsAShareOfACore compares how long a read takes with how long its thread worked for it: other work of the machine
// makes that longer only.
func TestAReadCostsAShareOfACore(t *testing.T) {
	root, request := snoop(t)
	request.Operation, request.Map = mapread.Dump, pin(t, root, 20_000)
	worked := func() time.Duration {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
			t.Fatal(err)
		}
		return time.Duration(now.Nano())
	}
	var first, last time.Duration
	began := time.Now()
	remote.New(remote.Options{Root: root, Log: slog.New(slog.DiscardHandler), Share: .05}).Read(t.Context(), request, func(line noderequest.Answer) error {
		if last = worked(); first == 0 {
			first, began = last, time.Now()
		}
		return nil
	})
	if took, most := time.Since(began), 15*(last-first); took < most {
		t.Errorf("a read at a twentieth of a core takes %v, and its thread worked %v", took, last-first)
	}
}

func TestWhoAsksTooOftenTakesNothingFromOthers(t *testing.T) {
	root, request := snoop(t)
	request.Operation = mapread.List
	r := remote.New(remote.Options{Root: root, Log: slog.New(slog.DiscardHandler), UserBurst: 2})
	codes := map[int]int{}
	for range 20 {
		codes[read(t.Context(), r, request).last().Code]++
	}
	if codes[0] < 2 || codes[noderequest.TooMany] == 0 || codes[0]+codes[noderequest.TooMany] != 20 {
		t.Error(codes)
	}
	request.User = "bob"
	if last := read(t.Context(), r, request).last(); !last.End {
		t.Error(last)
	}
}

// TestOneUserLeavesPlacesToOthers whose reads come while one of the user's is under way.
func TestOneUserLeavesPlacesToOthers(t *testing.T) {
	root, request := snoop(t)
	request.Operation, request.Map = mapread.Dump, ".bss"
	bob := request
	bob.User = "bob"
	request.User = "system:serviceaccount:team:ann"
	sister := request
	sister.User = "system:serviceaccount:team:eve"
	r := remote.New(remote.Options{Root: root, Log: slog.New(slog.DiscardHandler), AtOnce: 2})
	once := sync.OnceFunc(func() {
		for _, second := range []mapread.Request{request, sister} {
			last := read(t.Context(), r, second).last()
			if last.Code != noderequest.TooMany || !strings.Contains(last.Error, "namespace team may have 1 of the 2 reads") {
				t.Errorf("a second of one user: %+v", last)
			}
		}
		if last := read(t.Context(), r, bob).last(); !last.End {
			t.Errorf("another user's: %+v", last)
		}
	})
	r.Read(t.Context(), request, func(noderequest.Answer) error { once(); return nil })
	if last := read(t.Context(), r, request).last(); !last.End {
		t.Errorf("after that: %+v", last)
	}
}

func TestAReadThatFailsInsideEndsNoAgent(t *testing.T) {
	root, request := snoop(t)
	request.Operation, request.Map = mapread.Dump, ".bss"
	r := remote.New(remote.Options{Root: root, Log: slog.New(slog.DiscardHandler)})
	a := &answers{}
	r.Read(t.Context(), request, func(line noderequest.Answer) error {
		if line.Value != nil {
			panic("inside")
		}
		return a.send(line)
	})
	if last := a.last(); last.Code != noderequest.Inside {
		t.Error(last)
	}
	if last := read(t.Context(), r, request).last(); !last.End {
		t.Errorf("its place is not free: %+v", last)
	}
}

func TestOneUserWatchesAMapAtATime(t *testing.T) {
	root, request := snoop(t)
	request.Operation, request.Map, request.Type = mapread.Watch, "events", "event"
	r := remote.New(remote.Options{Root: root, Log: slog.New(slog.DiscardHandler), Watches: 4})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var work sync.WaitGroup
	work.Go(func() {
		for ctx.Err() == nil {
			_ = exec.CommandContext(ctx, "/bin/true", "it").Run()
		}
	})
	begun, gone := make(chan struct{}), errors.New("the user is gone")
	work.Go(func() {
		once := sync.OnceFunc(func() { close(begun) })
		second := false
		r.Read(ctx, request, func(line noderequest.Answer) error {
			once()
			if !second && line.Value != nil {
				// While this one is under way, by the same thread.
				second = true
				if last := read(ctx, r, request).last(); last.Code != noderequest.Conflict {
					t.Errorf("a second watch: %+v", last)
				}
			}
			return gone
		})
	})
	select {
	case <-begun:
	case <-ctx.Done():
		t.Error("no record came")
	}
	cancel()
	work.Wait()
	// The place and the map are free again.
	ended, stop := context.WithCancel(t.Context())
	stop()
	if last := read(ended, r, request).last(); last.Code == noderequest.Conflict || last.Code == noderequest.TooMany {
		t.Error(last)
	}
}

func TestAReadOfWhatIsNotThereNamesIt(t *testing.T) {
	root, request := snoop(t)
	r := remote.New(remote.Options{Root: root, Log: slog.New(slog.DiscardHandler)})
	for name, c := range map[string]struct {
		change func(*mapread.Request)
		code   int
		text   string
	}{
		"an application": {func(r *mapread.Request) { r.Operation, r.UID = mapread.List, "../../.." }, noderequest.NotFound, "on node node-1"},
		"a map":          {func(r *mapread.Request) { r.Operation, r.Map = mapread.Dump, "../m-events" }, noderequest.NotFound, "it has .bss, events"},
		"a key":          {func(r *mapread.Request) { r.Operation, r.Map, r.Key = mapread.Get, ".bss", "7" }, noderequest.NotFound, "no such key"},
		"a type":         {func(r *mapread.Request) { r.Operation, r.Map, r.Type = mapread.Watch, "events", "nothing" }, noderequest.NotFound, "no type nothing"},
		"records":        {func(r *mapread.Request) { r.Operation, r.Map = mapread.Watch, ".bss" }, noderequest.Unprocessable, "use dump"},
	} {
		one := request
		c.change(&one)
		if last := read(t.Context(), r, one).last(); last.Code != c.code || !strings.Contains(last.Error, c.text) {
			t.Errorf("%s: %+v", name, last)
		}
	}
}
