// Package mapread is the format of requests of people to read maps on a node, which the controller seals, and of an agent's
// answers. It reads no map, and says nothing of what is loaded.
package mapread

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// PayloadType is the DSSE payload type of a request to read a map: Open takes it for no intent.
const PayloadType = "application/vnd.skep.map-read+json"

// MaxRequest bounds a sealed request, in bytes.
const MaxRequest = 64 << 10

// TTL is for how long a request counts, and clockSkew by how much the clocks of a node and the controller may differ.
const (
	TTL       = 30 * time.Second
	clockSkew = time.Minute
)

// Operation is what is read.
type Operation string

// The operations: the maps of an application, all entries of a map, the entry of a key, and records as they come.
const (
	List      Operation = "list"
	Dump      Operation = "dump"
	Get       Operation = "get"
	Watch     Operation = "watch"
	idBytes             = 32
	maxText             = 16 << 10
	maxMapRef           = 512
)

// Request is a request of a person to read a map on a node. It reads, and changes nothing that is loaded.
type Request struct {
	// ID is a random name in lower-case hex: an agent takes a request once.
	ID string `json:"id"`
	// Node is the node that reads, and User the person by the API server's name.
	Node string `json:"node"`
	User string `json:"user"`
	// Application and UID name the application.
	Application v1alpha1.Identity `json:"application"`
	UID         string            `json:"uid"`
	// Operation says what is read, of which Map; Key is that of Get, as skep map get takes it, and Type the struct of a
	// record for Watch.
	Operation Operation `json:"operation"`
	Map       string    `json:"map,omitempty"`
	Key       string    `json:"key,omitempty"`
	Type      string    `json:"type,omitempty"`
	// Until is after which the request does not count, in milliseconds since 1970.
	Until int64 `json:"until"`
}

// Seal signs a request.
func Seal(s *intent.Sealer, r Request) (intent.Envelope, error) {
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("seal request to read a map: %w", err)
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("seal request to read a map: %w", err)
	}
	return s.Sign(PayloadType, body)
}

// Open returns the request if its seal holds, it is for this node and it counts now. That the node takes it once is
// for the caller to see to.
func Open(t *intent.Trust, e intent.Envelope, node string, now time.Time) (Request, error) {
	if len(e) > MaxRequest {
		return Request{}, fmt.Errorf("open request to read a map: %d bytes, at most %d are read: %w", len(e), MaxRequest, intent.ErrSeal)
	}
	body, err := t.Verify(PayloadType, e)
	if err != nil {
		return Request{}, fmt.Errorf("open request to read a map: %w", err)
	}
	var r Request
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return Request{}, fmt.Errorf("open request to read a map: %w: %w", intent.ErrFormat, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return Request{}, fmt.Errorf("open request to read a map: %w: more than one document", intent.ErrFormat)
	}
	if err := r.check(); err != nil {
		return Request{}, fmt.Errorf("open request to read a map: %w: %w", intent.ErrFormat, err)
	}
	if r.Node != node {
		return Request{}, fmt.Errorf("open request to read a map: it is for node %.253q, and this is %s", r.Node, node)
	}
	until := time.UnixMilli(r.Until)
	if left := until.Sub(now); left < -clockSkew || left > TTL+clockSkew {
		return Request{}, fmt.Errorf("open request to read a map: it counts until %s, and the node's clock is at %s: set the clocks by NTP",
			until.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return r, nil
}

// Kept is how long an agent has to remember that it took a request.
func (r Request) Kept(now time.Time) time.Duration {
	return time.UnixMilli(r.Until).Sub(now) + clockSkew
}

// check rejects requests that no honest controller makes.
func (r Request) check() error {
	operations := []Operation{List, Dump, Get, Watch}
	switch {
	case len(r.ID) != idBytes || !isHex(r.ID):
		return errors.New("its id is not 32 hex digits")
	case r.Node == "" || r.User == "":
		return errors.New("it names no node or no user")
	case r.Application.Kind == "" || r.Application.Name == "" || r.UID == "":
		return errors.New("it names no application")
	case !slices.Contains(operations, r.Operation):
		return fmt.Errorf("operation %.16q is not known; it is one of %v", r.Operation, operations)
	case (r.Map == "") != (r.Operation == List):
		return errors.New("all operations but list name a map")
	case len(r.User) > maxText, len(r.Key) > maxText, len(r.Map) > maxMapRef, len(r.Type) > maxMapRef:
		return fmt.Errorf("a name has more than %d bytes, or a key or user more than %d", maxMapRef, maxText)
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

// MaxAnswer bounds one Answer as JSON, in bytes.
const MaxAnswer = 1 << 20

// Answer is one line of what an agent answers to a Request. Lines with none of it only say that the agent is there.
type Answer struct {
	// Value is a map, an entry or a record, as skep map -o json prints it.
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
