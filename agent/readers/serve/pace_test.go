package serve_test

import (
	"errors"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/serve"
	"github.com/skep-dev/skep/skepmap"
	"github.com/skep-dev/skep/test/harness/await"
)

// aGet is a request for the first entry of counts.
const aGet = `{"op":"get","map":"m","key":"AAAAAA=="}` + "\n"

// connect connects to a socket, without a word.
func connect(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func write(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// answers reads that many answers.
func answers(conn net.Conn, most int, each func()) {
	some := make([]byte, 4096)
	for seen := 0; seen < most; {
		n, err := conn.Read(some)
		if err != nil {
			return
		}
		for range strings.Count(string(some[:n]), "\n") {
			seen++
			each()
		}
	}
}

// TestOwnersTakeTurns: the readers of one folder have every other turn, whatever the readers of many folders of another owner ask for.
func TestOwnersTakeTurns(t *testing.T) {
	const many, most, asked = 8, 200, 10
	s := serve.New(serve.Options{FolderShare: 1, OwnerShare: 1, Share: .005})
	m := newMap(t, &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	open := func(owner string) *net.UnixConn {
		f, path := folderOf(t, s, owner)
		f.Grant(map[string]serve.Granted{"m": grant(t, m, skepmap.Read, 1, nil)})
		return connect(t, path)
	}
	few := open("few")
	var others atomic.Int64
	for range many {
		conn := open("many")
		write(t, conn, strings.Repeat(aGet, most))
		go answers(conn, most, func() { others.Add(1) })
	}
	await.True(t, "answers of many folders", time.Minute, func() bool { return others.Load() >= many })
	before := others.Load()
	write(t, few, strings.Repeat(aGet, asked))
	answers(few, asked, func() {})
	if got := others.Load() - before; got > asked*many/2 {
		t.Errorf("%d folders of another owner had %d answers while one had %d", many, got, asked)
	}
}

// isRead reports whether all that was sent was read.
func isRead(t *testing.T, conn *net.UnixConn) bool {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	if err := raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return left == 0
}

// TestARequestInPiecesTakesItsTime: what comes byte by byte is not read at any pace.
func TestARequestInPiecesTakesItsTime(t *testing.T) {
	f, path := folder(t, serve.New(serve.Options{}))
	f.Grant(map[string]serve.Granted{"m": grant(t, counts(t), skepmap.Read, 1, nil)})
	conn := connect(t, path)
	const pieces = 20
	began := time.Now()
	for range pieces {
		write(t, conn, " ")
		for !isRead(t, conn) {
			runtime.Gosched()
		}
	}
	if took := time.Since(began); took < (pieces-2)*20*time.Millisecond {
		t.Errorf("%d pieces were read in %s", pieces, took)
	}
	write(t, conn, aGet)
	answers(conn, 1, func() {})
}

// TestASocketEndsWhateverAReaderPassed passes a connection that lingers: who reads the message closes it, and the kernel waits meanwhile.
func TestASocketEndsWhateverAReaderPassed(t *testing.T) {
	f, path := folder(t, serve.New(serve.Options{Request: time.Second}))
	f.Grant(map[string]serve.Granted{"m": grant(t, counts(t), skepmap.Read, 1, nil)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	lingers, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	// With what it did not read, its end ends the other, too.
	defer func() { _ = peer.Close() }()
	full := errors.Join(lingers.(*net.TCPConn).SetLinger(600), lingers.SetWriteDeadline(time.Now().Add(time.Second)))
	for full == nil {
		_, full = lingers.Write(make([]byte, 1<<20))
	}
	file, err := lingers.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, path)
	write(t, conn, aGet)
	answers(conn, 1, func() {})
	if _, _, err := conn.WriteMsgUnix([]byte(" "), unix.UnixRights(int(file.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	// The copy that the message has is the last.
	_ = file.Close()
	_ = lingers.Close()
	await.True(t, "the message to be read", time.Minute, func() bool { return isRead(t, conn) })
	withdrawn := make(chan struct{})
	go func() {
		f.Keep(func(string, serve.Granted) bool { return false })
		close(withdrawn)
	}()
	select {
	case <-withdrawn:
	case <-time.After(20 * time.Second):
		t.Error("a withdrawal waits")
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Close() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the socket has not ended")
		_ = peer.Close()
		<-ended
	}
}
