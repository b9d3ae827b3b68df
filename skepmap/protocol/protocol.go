// Package protocol is what readers of maps and the agent say to each other over the socket of a
// readers' folder: a JSON object on a line asks, and a JSON object on a line answers. It owns the
// types, their bounds and the client's connection, and must not know maps or grants.
//
// Bytes are in base64, so that a person can ask, too:
//
//	echo '{"op":"get","map":"counts","key":"AQAAAA=="}' | socat - UNIX-CONNECT:socket
package protocol

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/cilium/ebpf"
)

// The bounds of one message. The agent ends a connection that breaks one.
const (
	// MaxEntry is the most bytes of a key with its value, those of all CPUs together.
	MaxEntry = 64 << 10
	// Batch is about how many bytes of keys and values the answer to a scan has.
	Batch = 48 << 10
	// MaxRequest is the most bytes of a request with its line break.
	MaxRequest = MaxEntry/3*4 + 1024
	// MaxResponse is the same of an answer.
	MaxResponse = MaxRequest
)

// Op is what a request asks for.
type Op string

// The requests.
const (
	// Get asks for the value of Key.
	Get Op = "get"
	// Scan asks for the first entries of the map. A connection has one scan at a time.
	Scan Op = "scan"
	// Next asks for those that follow in the connection's scan.
	Next Op = "next"
	// Put sets the value of Key.
	Put Op = "put"
	// Delete deletes Key.
	Delete Op = "delete"
	// Consume asks for the descriptor of a ring buffer, which comes with the answer (SCM_RIGHTS).
	// The connection counts as the map's one consumer until it ends.
	Consume Op = "consume"
)

// Request asks for one thing. Needed are Op and Map, and what Op says.
type Request struct {
	Op  Op     `json:"op"`
	Map string `json:"map"`
	// Generation is that of the map in the listing that the reader has read. A map of another one
	// is answered by Changed; 0 asks whichever map there is.
	Generation uint64 `json:"generation,omitempty"`
	Key        []byte `json:"key,omitempty"`
	Value      []byte `json:"value,omitempty"`
	// Flags are those of an update: 0, or BPF_NOEXIST (1) or BPF_EXIST (2).
	Flags uint64 `json:"flags,omitempty"`
}

// Response answers one request. Without Code, it was done.
type Response struct {
	Code Code `json:"code,omitempty"`
	// Error is a sentence for people.
	Error string `json:"error,omitempty"`
	// Value answers Get.
	Value []byte `json:"value,omitempty"`
	// Keys and Values answer Scan and Next: those of all entries, one after the other.
	Keys   []byte `json:"keys,omitempty"`
	Values []byte `json:"values,omitempty"`
	// End says that the scan is at its end.
	End bool `json:"end,omitempty"`
}

// Code says what kind of error an answer is.
type Code string

// The codes.
const (
	// NotFound: the map has no such key.
	NotFound Code = "NotFound"
	// Exists: an update with BPF_NOEXIST found the key.
	Exists Code = "Exists"
	// Denied: the reader was not granted this, or not any more.
	Denied Code = "Denied"
	// Changed: the map is another than that of the generation asked for. Read the listing again.
	Changed Code = "Changed"
	// Busy: there are too many connections. Try again later.
	Busy Code = "Busy"
	// Consumed: another reader consumes the ring buffer.
	Consumed Code = "Consumed"
	// Invalid: the request breaks a rule, such as a key of another size.
	Invalid Code = "Invalid"
	// Failed: the kernel answered with an error.
	Failed Code = "Failed"
)

// Error is an answer with a code.
type Error struct {
	Code    Code
	Message string
}

// Error is the sentence that the agent sent.
func (e *Error) Error() string { return e.Message }

// Is reports whether a code is the same as an error of the library or of package fs.
func (e *Error) Is(target error) bool {
	switch e.Code {
	case NotFound:
		return target == ebpf.ErrKeyNotExist || target == fs.ErrNotExist
	case Exists:
		return target == ebpf.ErrKeyExist || target == fs.ErrExist
	case Denied:
		return target == fs.ErrPermission
	}
	return false
}

// Err is the error of an answer, and nil where it was done.
func (r Response) Err() error {
	if r.Code == "" {
		return nil
	}
	return &Error{Code: r.Code, Message: r.Error}
}

// Lines reads messages of at most that many bytes. One without a line break at the end is an error.
func Lines(r io.Reader, most int) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, min(4096, most)), most)
	s.Split(func(data []byte, end bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			return i + 1, data[:i], nil
		}
		if end && len(data) > 0 {
			return 0, nil, io.ErrUnexpectedEOF
		}
		return 0, nil, nil
	})
	return s
}

// ParseRequest reads a request, and checks what does not depend on the map.
func ParseRequest(line []byte) (Request, error) {
	var r Request
	if err := json.Unmarshal(line, &r); err != nil {
		return r, fmt.Errorf("read the request: %w", err)
	}
	switch {
	case !slices.Contains([]Op{Get, Scan, Next, Put, Delete, Consume}, r.Op):
		return r, fmt.Errorf("there is no request %.40q; use get, scan, next, put, delete or consume", r.Op)
	case r.Map == "":
		return r, errors.New("the request names no map")
	case r.Flags > uint64(ebpf.UpdateExist):
		return r, fmt.Errorf("flags are %d; 0, 1 (BPF_NOEXIST) and 2 (BPF_EXIST) are allowed", r.Flags)
	case len(r.Key)+len(r.Value) > MaxEntry:
		return r, fmt.Errorf("key and value have %d bytes; at most %d are allowed", len(r.Key)+len(r.Value), MaxEntry)
	}
	return r, nil
}

// Line is a message as it is sent.
func Line(message any) ([]byte, error) {
	raw, err := json.Marshal(message)
	return append(raw, '\n'), err
}
