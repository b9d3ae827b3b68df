// Package noderequest is the envelope of requests that people make of a node and the controller seals, and the lines of an agent's
// answer. It knows no kind of request: each has a payload type and fields of its own.
package noderequest

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/skep-dev/skep/intent"
)

// MaxRequest bounds a sealed request, in bytes.
const MaxRequest = 64 << 10

// TTL is for how long a request counts, and clockSkew by how much the clocks of a node and the controller may differ.
const (
	TTL       = 30 * time.Second
	clockSkew = time.Minute
)

// The bounds of a Header, in bytes.
const (
	idBytes = 32
	maxUser = 16 << 10
)

// Header is what all requests have.
type Header struct {
	// ID is a random name in lower-case hex: an agent takes a request once.
	ID string `json:"id"`
	// Node is the node that answers, and User the person by the API server's name.
	Node string `json:"node"`
	User string `json:"user"`
	// Until is after which the request does not count, in milliseconds since 1970.
	Until int64 `json:"until"`
}

// NewHeader returns the Header of a new request that counts from now on.
func NewHeader(node, user string, now time.Time) Header {
	random := make([]byte, idBytes/2)
	_, _ = rand.Read(random) // It never fails.
	return Header{ID: hex.EncodeToString(random), Node: node, User: user, Until: now.Add(TTL).UnixMilli()}
}

// Head returns the Header, also of a request that embeds it.
func (h Header) Head() Header { return h }

// Share is whose share of requests a request takes, for messages, too. Service accounts of a namespace have one together: who may make
// one of them may make many.
func (h Header) Share() string { return ShareOf(h.User) }

// ShareOf is the Share of requests of a user.
func ShareOf(user string) string {
	if account, is := strings.CutPrefix(user, "system:serviceaccount:"); is {
		namespace, _, _ := strings.Cut(account, ":")
		return "service accounts of namespace " + namespace
	}
	return "user " + user
}

// Kept is how long an agent has to remember that it took a request.
func (h Header) Kept(now time.Time) time.Duration {
	return time.UnixMilli(h.Until).Sub(now) + clockSkew
}

// check rejects a Header that no honest controller makes.
func (h Header) check() error {
	switch {
	case len(h.ID) != idBytes || !isHex(h.ID):
		return errors.New("its id is not 32 hex digits")
	case h.Node == "" || h.User == "":
		return errors.New("it names no node or no user")
	case len(h.User) > maxUser:
		return fmt.Errorf("its user's name has more than %d bytes", maxUser)
	}
	return nil
}

// isHex reports whether a text is of lower-case hex digits alone.
func isHex(text string) bool {
	for _, c := range []byte(text) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Request is a kind of request: a struct that embeds a Header.
type Request interface {
	Head() Header
	// PayloadType is the DSSE payload type of the kind, which no other kind and no intent has.
	PayloadType() string
	// Check rejects fields that no honest controller sends.
	Check() error
}

// check rejects requests that no honest controller makes.
func check(r Request) error {
	return errors.Join(r.Head().check(), r.Check())
}

// Seal signs a request.
func Seal(s *intent.Sealer, r Request) (intent.Envelope, error) {
	if err := check(r); err != nil {
		return nil, fmt.Errorf("seal request to a node: %w", err)
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("seal request to a node: %w", err)
	}
	return s.Sign(r.PayloadType(), body)
}

// TypeOf returns the payload type that an envelope claims; empty where it has none. Open verifies it.
func TypeOf(e intent.Envelope) string {
	var claimed struct {
		PayloadType string `json:"payloadType"`
	}
	if len(e) > MaxRequest || json.Unmarshal(e, &claimed) != nil {
		return ""
	}
	return claimed.PayloadType
}

// Open returns the request if its seal holds, it is of the kind R and for this node, and it counts now. That the node takes it once
// is for the caller to see to.
func Open[R Request](t *intent.Trust, e intent.Envelope, node string, now time.Time) (R, error) {
	r, err := open[R](t, e)
	if err == nil {
		err = r.Head().counts(node, now)
	}
	if err != nil {
		var none R
		return none, fmt.Errorf("open request to a node: %w", err)
	}
	return r, nil
}

// open returns a request whose seal holds.
func open[R Request](t *intent.Trust, e intent.Envelope) (r R, err error) {
	if len(e) > MaxRequest {
		return r, fmt.Errorf("%d bytes, at most %d are read: %w", len(e), MaxRequest, intent.ErrSeal)
	}
	body, err := t.Verify(r.PayloadType(), e)
	if err != nil {
		return r, err
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return r, fmt.Errorf("%w: %w", intent.ErrFormat, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return r, fmt.Errorf("%w: more than one document", intent.ErrFormat)
	}
	if err := check(r); err != nil {
		return r, fmt.Errorf("%w: %w", intent.ErrFormat, err)
	}
	return r, nil
}

// counts rejects a request for another node or another time.
func (h Header) counts(node string, now time.Time) error {
	if h.Node != node {
		return fmt.Errorf("it is for node %.253q, and this is %s", h.Node, node)
	}
	until := time.UnixMilli(h.Until)
	if left := until.Sub(now); left < -clockSkew || left > TTL+clockSkew {
		return fmt.Errorf("it counts until %s, and the node's clock is at %s: set the clocks by NTP",
			until.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

// MaxAnswer bounds one Answer as JSON, in bytes.
const MaxAnswer = 1 << 20

// Answer is one line of what an agent answers to a request. Lines with none of it only say that the agent is there.
type Answer struct {
	// Value is a part of the answer, of a type that the kind of request has.
	Value json.RawMessage `json:"value,omitempty"`
	// Error ends the answer before it is whole, and Code is its status of HTTP.
	Error string `json:"error,omitempty"`
	Code  int    `json:"code,omitempty"`
	// End ends an answer that is whole.
	End bool `json:"end,omitempty"`
}

// The statuses of HTTP that a Code is.
const (
	NotFound      = 404
	Conflict      = 409
	TooLarge      = 413
	Unprocessable = 422
	TooMany       = 429
	Inside        = 500
	Late          = 504
)

// Failure is an error with a status of HTTP, which the person who asked is shown.
type Failure struct {
	Code int
	Text string
}

// Error implements error.
func (f Failure) Error() string { return f.Text }

// Fail returns a Failure.
func Fail(code int, format string, args ...any) error {
	return Failure{code, fmt.Sprintf(format, args...)}
}
