package protocol_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/skepmap/protocol"
)

// pair are both ends of a connection.
func pair(t testing.TB) (client, server *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "socket")
		conn, err := net.FileConn(file)
		if err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
		ends[i] = conn.(*net.UnixConn)
		t.Cleanup(func() { _ = conn.Close() })
	}
	return ends[0], ends[1]
}

// answer has the server send bytes and end, whatever it is asked.
func answer(t testing.TB, sent []byte, descriptors ...int) (*protocol.Conn, func()) {
	t.Helper()
	client, server := pair(t)
	var rights []byte
	if len(descriptors) > 0 {
		rights = unix.UnixRights(descriptors...)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = server.Read(make([]byte, protocol.MaxRequest))
		if len(sent) > 0 {
			n, _, err := server.WriteMsgUnix(sent, rights, nil)
			if err == nil {
				_, _ = server.Write(sent[n:])
			}
		}
		_ = server.Close()
	}()
	c := protocol.NewConn(client)
	return c, func() { _ = c.Close(); <-done }
}

func TestAnAnswerIsReadWithItsError(t *testing.T) {
	for name, c := range map[string]struct {
		sent string
		want error
		text string
	}{
		"a value":              {`{"value":"AQI="}` + "\n", nil, ""},
		"no such key":          {`{"code":"NotFound","error":"map m has no such key"}` + "\n", ebpf.ErrKeyNotExist, "no such key"},
		"not granted":          {`{"code":"Denied","error":"m is not granted"}` + "\n", fs.ErrPermission, "not granted"},
		"a key that is there":  {`{"code":"Exists","error":"it exists"}` + "\n", ebpf.ErrKeyExist, ""},
		"nothing":              {"", nil, "EOF"},
		"half an answer":       {`{"value":"AQI="}`, nil, "unexpected EOF"},
		"no JSON":              {"hello\n", nil, "invalid character"},
		"a line without bound": {strings.Repeat("x", protocol.MaxResponse+1), nil, "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, end := answer(t, []byte(c.sent))
			defer end()
			r, err := conn.Do(t.Context(), protocol.Request{Op: protocol.Get, Map: "m"})
			switch {
			case c.want == nil && c.text == "":
				if err != nil || string(r.Value) != "\x01\x02" {
					t.Errorf("%v, %v", r, err)
				}
			case err == nil, c.want != nil && !errors.Is(err, c.want), !strings.Contains(err.Error(), c.text):
				t.Errorf("%v, want %v with %q", err, c.want, c.text)
			}
		})
	}
}

func TestADescriptorComesWithItsAnswer(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	conn, end := answer(t, []byte("{}\n"), int(file.Fd()))
	defer end()
	if _, err := conn.Do(t.Context(), protocol.Request{Op: protocol.Consume, Map: "m"}); err != nil {
		t.Fatal(err)
	}
	passed := os.NewFile(uintptr(conn.Descriptor()), "passed")
	defer passed.Close()
	if _, err := passed.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file.Name()); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	if fd := conn.Descriptor(); fd != -1 {
		t.Errorf("descriptor %d is given twice", fd)
	}
}

func TestARequestEndsWithItsContext(t *testing.T) {
	client, _ := pair(t)
	conn := protocol.NewConn(client)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := conn.Do(ctx, protocol.Request{Op: protocol.Get, Map: "m"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestASocketBelowALongPathIsReached(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("n", 63), strings.Repeat("a", 120))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "socket")
	short, done, err := protocol.Short(path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", short)
	done()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := protocol.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestARequestThatBreaksARuleIsRejected(t *testing.T) {
	line := func(r protocol.Request) string {
		raw, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	for name, c := range map[string]struct{ line, want string }{
		"nothing":             {"", "unexpected end"},
		"another request":     {`{"op":"freeze","map":"m"}`, `no request "freeze"`},
		"no map":              {`{"op":"get"}`, "names no map"},
		"flags of the kernel": {`{"op":"put","map":"m","flags":4}`, "flags are 4"},
		"key that is no text": {`{"op":"get","map":"m","key":"*"}`, "illegal base64"},
		"a great value":       {line(protocol.Request{Op: protocol.Put, Map: "m", Value: make([]byte, protocol.MaxEntry+1)}), "at most 65536"},
	} {
		if _, err := protocol.ParseRequest([]byte(c.line)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	most := line(protocol.Request{Op: protocol.Put, Map: strings.Repeat("m", 128), Key: []byte("k"), Value: make([]byte, protocol.MaxEntry-1)})
	if r, err := protocol.ParseRequest([]byte(most)); err != nil || len(r.Value) != protocol.MaxEntry-1 || len(most) >= protocol.MaxRequest {
		t.Errorf("the greatest request has %d bytes of %d: %v", len(most), protocol.MaxRequest, err)
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte(`{"op":"get","map":"counts","key":"AQAAAA=="}`))
	f.Add([]byte(`{"op":"put","map":"counts","generation":3,"key":"AQAAAA==","value":"AQ==","flags":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := protocol.ParseRequest(raw)
		if err != nil {
			return
		}
		line, err := protocol.Line(r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := protocol.ParseRequest(line)
		if err != nil || again.Op != r.Op || again.Map != strings.ToValidUTF8(r.Map, "\uFFFD") || !bytes.Equal(again.Key, r.Key) {
			t.Errorf("%s: %+v, %v", line, again, err)
		}
	})
}

// FuzzConn has an agent answer whatever it likes, with a descriptor.
func FuzzConn(f *testing.F) {
	f.Add([]byte(`{"value":"AQI="}`+"\n"), true)
	f.Add([]byte(`{"code":"Denied","error":"no"}`+"\n{}\n"), false)
	f.Fuzz(func(t *testing.T, sent []byte, passes bool) {
		var descriptors []int
		if passes {
			null, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer null.Close()
			descriptors = append(descriptors, int(null.Fd()))
		}
		conn, end := answer(t, sent, descriptors...)
		defer end()
		for range 3 {
			if _, err := conn.Do(t.Context(), protocol.Request{Op: protocol.Scan, Map: "m"}); err != nil {
				break
			}
		}
		if fd := conn.Descriptor(); fd >= 0 {
			if !passes {
				t.Error("a descriptor came from nowhere")
			}
			_ = unix.Close(fd)
		}
	})
}
