package serve_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/serve"
	"github.com/skep-dev/skep/skepmap"
	"github.com/skep-dev/skep/skepmap/protocol"
	"github.com/skep-dev/skep/test/fixture/onehash"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestMain(m *testing.M) {
	if os.Getenv(asReader) != "" {
		os.Exit(readAll())
	}
	leaks.Main(m)
}

// folder serves a folder of its own.
func folder(t testing.TB, s *serve.Server) (*serve.Folder, string) {
	t.Helper()
	return folderOf(t, s, "")
}

// folderOf is folder, of an owner.
func folderOf(t testing.TB, s *serve.Server, owner string) (*serve.Folder, string) {
	t.Helper()
	need.Kernel(t)
	path := filepath.Join(t.TempDir(), skepmap.SocketFile)
	l, err := serve.Listen(path, 0o660, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := s.Serve(l, owner)
	t.Cleanup(func() { _ = f.Close() })
	return f, path
}

func newMap(t testing.TB, spec *ebpf.MapSpec) *ebpf.Map {
	t.Helper()
	need.Kernel(t)
	m, err := ebpf.NewMap(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// grant grants a copy of a map's descriptor.
func grant(t testing.TB, m *ebpf.Map, access skepmap.Access, generation uint64, groups map[uint32]skepmap.Access) serve.Granted {
	t.Helper()
	clone, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	shared, err := serve.NewMap(clone)
	if err != nil {
		t.Fatal(err)
	}
	return serve.Granted{Map: shared, Groups: groups, Info: skepmap.MapInfo{
		Type: m.Type().String(), KeySize: m.KeySize(), ValueSize: m.ValueSize(), MaxEntries: m.MaxEntries(), Access: access, Generation: generation,
	}}
}

func dial(t testing.TB, path string) *protocol.Conn {
	t.Helper()
	c, err := protocol.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func code(err error) protocol.Code {
	if answer := new(protocol.Error); errors.As(err, &answer) {
		return answer.Code
	}
	return ""
}

func counts(t testing.TB) *ebpf.Map {
	t.Helper()
	m := newMap(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 1024})
	if err := m.Put(uint32(1), uint64(10)); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAReaderDoesWhatItWasGranted(t *testing.T) {
	f, path := folder(t, serve.New(serve.Options{}))
	m := counts(t)
	ring := newMap(t, &ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 4096})
	f.Grant(map[string]serve.Granted{
		"read": grant(t, m, skepmap.Read, 3, nil), "write": grant(t, m, skepmap.Write, 3, nil), "ring": grant(t, ring, skepmap.Consume, 3, nil),
		"group":   grant(t, m, skepmap.Read, 3, map[uint32]skepmap.Access{0: skepmap.Write, 4242: skepmap.Read}),
		"another": grant(t, m, skepmap.Read, 3, map[uint32]skepmap.Access{4242: skepmap.Write}),
		"great":   grant(t, newMap(t, &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 1 << 20, MaxEntries: 1}), skepmap.Read, 3, nil),
	})
	key, other, value := []byte{1, 0, 0, 0}, []byte{2, 0, 0, 0}, []byte{5, 0, 0, 0, 0, 0, 0, 0}
	for name, c := range map[string]struct {
		r    protocol.Request
		code protocol.Code
		text string
	}{
		"read a key":                       {protocol.Request{Op: protocol.Get, Map: "read", Key: key}, "", ""},
		"read a key of this generation":    {protocol.Request{Op: protocol.Get, Map: "read", Key: key, Generation: 3}, "", ""},
		"read a key of another generation": {protocol.Request{Op: protocol.Get, Map: "read", Key: key, Generation: 2}, protocol.Changed, "and not 2"},
		"read a key that is not there":     {protocol.Request{Op: protocol.Get, Map: "read", Key: []byte("none")}, protocol.NotFound, "key does not exist"},
		"read a key of another size":       {protocol.Request{Op: protocol.Get, Map: "read", Key: key[:3]}, protocol.Invalid, "the map has keys of 4"},
		"write what is for reading":        {protocol.Request{Op: protocol.Put, Map: "read", Key: key, Value: value}, protocol.Denied, "not for put"},
		"delete what is for reading":       {protocol.Request{Op: protocol.Delete, Map: "read", Key: key}, protocol.Denied, "not for delete"},
		"consume what is for reading":      {protocol.Request{Op: protocol.Consume, Map: "read"}, protocol.Denied, "not for consume"},
		"write":                            {protocol.Request{Op: protocol.Put, Map: "write", Key: other, Value: value}, "", ""},
		"write what is there":              {protocol.Request{Op: protocol.Put, Map: "write", Key: key, Value: value, Flags: 1}, protocol.Exists, ""},
		"write a value of another size":    {protocol.Request{Op: protocol.Put, Map: "write", Key: key, Value: value[:7]}, protocol.Invalid, "values of 8"},
		"delete what is not there":         {protocol.Request{Op: protocol.Delete, Map: "write", Key: []byte("none")}, protocol.NotFound, ""},
		"write by a group":                 {protocol.Request{Op: protocol.Put, Map: "group", Key: key, Value: value}, "", ""},
		"read what another group has":      {protocol.Request{Op: protocol.Get, Map: "another", Key: key}, protocol.Denied, "not granted to this reader"},
		"read what no reader was granted":  {protocol.Request{Op: protocol.Get, Map: "secret", Key: key}, protocol.Denied, "not granted to this reader"},
		"go on with no scan":               {protocol.Request{Op: protocol.Next, Map: "read"}, protocol.Invalid, "ask for scan first"},
		"consume":                          {protocol.Request{Op: protocol.Consume, Map: "ring"}, "", ""},
		"read a ring buffer":               {protocol.Request{Op: protocol.Get, Map: "ring", Key: key}, protocol.Denied, "not for get"},
		"read what is too great":           {protocol.Request{Op: protocol.Get, Map: "great", Key: []byte{0, 0, 0, 0}}, protocol.Invalid, "open the pin"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, path)
			defer conn.Close()
			_, err := conn.Do(t.Context(), c.r)
			if code(err) != c.code || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, want %s: %s", err, c.code, c.text)
			}
			if fd := conn.Descriptor(); (fd >= 0) != (c.r.Op == protocol.Consume && c.code == "") {
				t.Errorf("descriptor %d", fd)
			} else if fd >= 0 {
				_ = unix.Close(fd)
			}
		})
	}
}

// TestAWithdrawnGrantEndsItsConnections, also those that are idle, and no others.
func TestAWithdrawnGrantEndsItsConnections(t *testing.T) {
	f, path := folder(t, serve.New(serve.Options{}))
	m, kept := counts(t), counts(t)
	alone := func() map[string]serve.Granted {
		return map[string]serve.Granted{"kept": grant(t, kept, skepmap.Read, 1, nil)}
	}
	both := func(access skepmap.Access, generation uint64) map[string]serve.Granted {
		return map[string]serve.Granted{"counts": grant(t, m, access, generation, nil), "kept": grant(t, kept, skepmap.Read, 1, nil)}
	}
	key := []byte{1, 0, 0, 0}
	for name, c := range map[string]struct {
		first  protocol.Request
		now    map[string]serve.Granted
		ends   bool
		answer protocol.Code
	}{
		"it is granted again":           {protocol.Request{Op: protocol.Get, Map: "counts", Key: key}, both(skepmap.Write, 1), false, ""},
		"it is withdrawn":               {protocol.Request{Op: protocol.Get, Map: "counts", Key: key}, alone(), true, ""},
		"less is granted":               {protocol.Request{Op: protocol.Delete, Map: "counts", Key: []byte("none")}, both(skepmap.Read, 1), true, ""},
		"less, which it did not use":    {protocol.Request{Op: protocol.Get, Map: "counts", Key: key}, both(skepmap.Read, 1), false, ""},
		"the map is another one":        {protocol.Request{Op: protocol.Get, Map: "counts", Key: key}, both(skepmap.Write, 2), true, ""},
		"it used only what stays":       {protocol.Request{Op: protocol.Get, Map: "kept", Key: key}, alone(), false, ""},
		"a scan continues with the map": {protocol.Request{Op: protocol.Scan, Map: "counts"}, both(skepmap.Write, 1), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f.Grant(both(skepmap.Write, 1))
			conn := dial(t, path)
			defer conn.Close()
			if _, err := conn.Do(t.Context(), c.first); err != nil && code(err) != protocol.NotFound {
				t.Fatal(err)
			}
			f.Grant(c.now)
			again := c.first
			if again.Op == protocol.Scan {
				again.Op = protocol.Next
			}
			_, err := conn.Do(t.Context(), again)
			if ended := err != nil && code(err) == ""; ended != c.ends || !ended && err != nil {
				t.Errorf("after that: %v", err)
			}
		})
	}
}

// TestOneReaderConsumes, whichever folder it is in.
func TestOneReaderConsumes(t *testing.T) {
	s := serve.New(serve.Options{})
	ring := newMap(t, &ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 4096})
	var paths []string
	for range 2 {
		f, path := folder(t, s)
		f.Grant(map[string]serve.Granted{"events": grant(t, ring, skepmap.Consume, 1, nil)})
		paths = append(paths, path)
	}
	consume := func(conn *protocol.Conn) error {
		_, err := conn.Do(t.Context(), protocol.Request{Op: protocol.Consume, Map: "events"})
		if fd := conn.Descriptor(); fd >= 0 {
			_ = unix.Close(fd)
		}
		return err
	}
	first, second := dial(t, paths[0]), dial(t, paths[1])
	for range 2 {
		if err := consume(first); err != nil {
			t.Fatal(err)
		}
	}
	if err := consume(second); code(err) != protocol.Consumed {
		t.Fatalf("a second consumer: %v", err)
	}
	_ = first.Close()
	await.True(t, "the second reader consumes after the first has ended", time.Minute, func() bool { return consume(second) == nil })
}

// TestAReaderThatTakesNoAnswersHoldsNothing: it asks, and never reads.
func TestAReaderThatTakesNoAnswersHoldsNothing(t *testing.T) {
	f, path := folder(t, serve.New(serve.Options{Request: time.Hour}))
	m := newMap(t, &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 60 << 10, MaxEntries: 1})
	f.Grant(map[string]serve.Granted{"m": grant(t, m, skepmap.Read, 1, nil)})
	line := []byte(`{"op":"get","map":"m","key":"AAAAAA=="}` + "\n")
	for range 4 {
		slow, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = slow.Close() })
		if _, err := slow.Write(slices.Repeat(line, 100)); err != nil {
			t.Fatal(err)
		}
	}
	quick := dial(t, path)
	for range 20 {
		if _, err := quick.Do(t.Context(), protocol.Request{Op: protocol.Get, Map: "m", Key: make([]byte, 4)}); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() { f.Grant(nil); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("a withdrawal waits for readers that take no answers")
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	s := serve.New(serve.Options{Connections: 3, PerFolder: 2})
	m := counts(t)
	var paths []string
	for range 2 {
		f, path := folder(t, s)
		f.Grant(map[string]serve.Granted{"counts": grant(t, m, skepmap.Read, 1, nil)})
		paths = append(paths, path)
	}
	ask := func(conn *protocol.Conn) error {
		_, err := conn.Do(t.Context(), protocol.Request{Op: protocol.Get, Map: "counts", Key: []byte{1, 0, 0, 0}})
		return err
	}
	first := dial(t, paths[0])
	for _, conn := range []*protocol.Conn{first, dial(t, paths[0]), dial(t, paths[1])} {
		if err := ask(conn); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(dial(t, paths[0])); code(err) != protocol.Busy || !strings.Contains(err.Error(), "the socket has 2 connections") {
		t.Errorf("a third on one socket: %v", err)
	}
	if err := ask(dial(t, paths[1])); code(err) != protocol.Busy || !strings.Contains(err.Error(), "the agent has 3 connections") {
		t.Errorf("a fourth in all: %v", err)
	}
	_ = first.Close()
	await.True(t, "there is room once a connection has ended", time.Minute, func() bool { return ask(dial(t, paths[1])) == nil })
}

// TestABatchOfKeysOfOneHashIsShort has a map whose entries the kernel finds one after the other, which takes long for each: all folders wait
// for an answer.
func TestABatchOfKeysOfOneHashIsShort(t *testing.T) {
	f, path := folder(t, serve.New(serve.Options{}))
	m := newMap(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 1, MaxEntries: 1 << 15, Flags: unix.BPF_F_ZERO_SEED})
	const entries = 16_000
	n := 0
	for key := range onehash.Keys(1 << 15) {
		if n++; n > entries {
			break
		}
		if err := m.Put(key, byte(1)); err != nil {
			t.Fatal(err)
		}
	}
	f.Grant(map[string]serve.Granted{"same": grant(t, m, skepmap.Read, 1, nil)})
	r, err := dial(t, path).Do(t.Context(), protocol.Request{Op: protocol.Scan, Map: "same"})
	if n := len(r.Keys) / 4; err != nil || n == 0 || n > entries/4 {
		t.Errorf("%d entries in one answer, %v", n, err)
	}
}

// TestNoOwnerTakesTheConnectionsOfAnother has one owner take all that there are, by several folders.
func TestNoOwnerTakesTheConnectionsOfAnother(t *testing.T) {
	s := serve.New(serve.Options{Connections: 5, PerFolder: 3})
	m := counts(t)
	open := func(owner string) string {
		f, path := folderOf(t, s, owner)
		f.Grant(map[string]serve.Granted{"counts": grant(t, m, skepmap.Read, 1, nil)})
		return path
	}
	ask := func(conn *protocol.Conn) error {
		_, err := conn.Do(t.Context(), protocol.Request{Op: protocol.Get, Map: "counts", Key: []byte{1, 0, 0, 0}})
		return err
	}
	alive := func(all []*protocol.Conn) (n int) {
		for _, conn := range all {
			if ask(conn) == nil {
				n++
			}
		}
		return n
	}
	var greedy, shop []*protocol.Conn
	for range 2 {
		path := open("greedy")
		for range 3 {
			greedy = append(greedy, dial(t, path))
		}
	}
	if n := alive(greedy); n != 5 {
		t.Fatalf("%d connections of one owner, want 5", n)
	}
	path := open("shop")
	for range 3 {
		shop = append(shop, dial(t, path))
	}
	if n, left := alive(shop), alive(greedy); n != 2 || left != 3 {
		t.Errorf("another owner has %d of 5, and the first one %d; want 2 and 3", n, left)
	}
}

func TestAConnectionThatBreaksABoundIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		sent    string
		options serve.Options
		answer  string
	}{
		"a line without end":     {strings.Repeat("x", protocol.MaxRequest+1), serve.Options{}, "token too long"},
		"half a request":         {`{"op":`, serve.Options{Request: 50 * time.Millisecond}, "timeout"},
		"nothing":                {"", serve.Options{Idle: 50 * time.Millisecond}, "timeout"},
		"no JSON is an answer":   {"hello\n", serve.Options{Idle: 50 * time.Millisecond}, "invalid character"},
		"another protocol, HTTP": {"GET / HTTP/1.1\r\n\r\n", serve.Options{Idle: 50 * time.Millisecond}, "invalid character"},
	} {
		t.Run(name, func(t *testing.T) {
			f, path := folder(t, serve.New(c.options))
			f.Grant(nil)
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = conn.Write([]byte(c.sent))
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			var got []byte
			buffer := make([]byte, 4096)
			for err == nil {
				var n int
				n, err = conn.Read(buffer)
				got = append(got, buffer[:n]...)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(string(got), c.answer) {
				t.Errorf("%q, %v; want %q", got, err, c.answer)
			}
		})
	}
}

// TestAScanCostsAShare measures the time of a processor of a scan beside that of a clock.
func TestAScanCostsAShare(t *testing.T) {
	const share = .1
	f, path := folder(t, serve.New(serve.Options{FolderShare: share}))
	m := newMap(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 1 << 16})
	keys, values := make([]uint32, 1<<16), make([]uint64, 1<<16)
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := m.BatchUpdate(keys, values, nil); err != nil {
		t.Fatal(err)
	}
	f.Grant(map[string]serve.Granted{"m": grant(t, m, skepmap.Read, 1, nil)})
	scan := func(path string) (entries int, took time.Duration) {
		conn, began := dial(t, path), time.Now()
		for op := protocol.Scan; ; op = protocol.Next {
			r, err := conn.Do(t.Context(), protocol.Request{Op: op, Map: "m"})
			if err != nil {
				t.Fatal(err)
			}
			if r.End {
				return entries, time.Since(began)
			}
			entries += len(r.Keys) / 4
		}
	}
	entries, paced := scan(path)
	// The same on a server without a bound.
	free, freePath := folder(t, serve.New(serve.Options{FolderShare: 1, Share: 1}))
	free.Grant(map[string]serve.Granted{"m": grant(t, m, skepmap.Read, 1, nil)})
	// A busy machine makes any of them slow.
	_, quick := scan(freePath)
	for range 9 {
		_, took := scan(freePath)
		quick = min(quick, took)
	}
	if entries != 1<<16 || paced < 2*quick {
		t.Errorf("%d entries took %s at a share of %v, and %s without a bound", entries, paced, share, quick)
	}
}

// TestAScanFindsEntriesThatABatchDoesNotHold: the kernel gives whole buckets of a hash, and a batch of great values is one entry.
func TestAScanFindsEntriesThatABatchDoesNotHold(t *testing.T) {
	f, path := folder(t, serve.New(serve.Options{FolderShare: 1, Share: 1}))
	m := newMap(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 40 << 10, MaxEntries: 64})
	for i := range byte(64) {
		if err := m.Put([]byte{i, 0, 0, 0}, slices.Repeat([]byte{i}, 40<<10)); err != nil {
			t.Fatal(err)
		}
	}
	f.Grant(map[string]serve.Granted{"m": grant(t, m, skepmap.Read, 1, nil)})
	found := map[byte]int{}
	conn := dial(t, path)
	for op := protocol.Scan; ; op = protocol.Next {
		r, err := conn.Do(t.Context(), protocol.Request{Op: op, Map: "m"})
		if err != nil {
			t.Fatal(err)
		}
		if r.End {
			break
		}
		if len(r.Keys) != 4 || len(r.Values) != 40<<10 || r.Values[len(r.Values)-1] != r.Keys[0] {
			t.Fatalf("key %v with %d bytes", r.Keys, len(r.Values))
		}
		found[r.Keys[0]]++
	}
	for i := range byte(64) {
		if found[i] != 1 {
			t.Errorf("key %d was found %d times", i, found[i])
		}
	}
}

// TestTheSocketsModeIsWhoMayConnect.
func TestTheSocketsModeIsWhoMayConnect(t *testing.T) {
	need.Root(t)
	path := filepath.Join(t.TempDir(), "socket")
	for range 2 { // the second time, an agent that was killed left one
		l, err := serve.Listen(path, 0o660, 4242)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		var s unix.Stat_t
		if err := unix.Stat(path, &s); err != nil || s.Gid != 4242 || info.Mode() != fs.ModeSocket|0o660 {
			t.Errorf("%v of group %d, %v", info.Mode(), s.Gid, err)
		}
		_ = l.Close()
	}
}

// FuzzServer sends whatever to a server that has a map for writing, and then asks for a key.
func FuzzServer(f *testing.F) {
	f.Add([]byte(`{"op":"get","map":"m","key":"AQAAAA=="}` + "\n"))
	f.Add([]byte(`{"op":"put","map":"m","generation":1,"key":"AQAAAA==","value":"AQAAAAAAAAA=","flags":2}` + "\n" +
		`{"op":"scan","map":"m"}` + "\n" + `{"op":"next","map":"m"}` + "\n"))
	f.Add([]byte(`{"op":"consume","map":"m"}` + "\n" + `{"op":"delete","map":"m","key":"AQAAAA=="}`))
	folder, path := folder(f, serve.New(serve.Options{FolderShare: 1, Share: 1}))
	folder.Grant(map[string]serve.Granted{"m": grant(f, counts(f), skepmap.Write, 1, nil)})
	f.Fuzz(func(t *testing.T, sent []byte) {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(sent); err == nil {
			_ = conn.(*net.UnixConn).CloseWrite()
			buffer := make([]byte, 64<<10)
			for err == nil {
				_, err = conn.Read(buffer)
			}
		}
		alive := dial(t, path)
		defer alive.Close()
		if _, err := alive.Do(t.Context(), protocol.Request{Op: protocol.Scan, Map: "m"}); err != nil {
			t.Errorf("after that: %v", err)
		}
	})
}
