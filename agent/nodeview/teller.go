package nodeview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/intent/viewread"
)

// The bounds of a node's answers to users of the cluster: how many begin in a second and at once, how many are made at the same
// time, and how long one may take.
const (
	perSecond = 10
	burst     = 60
	atOnce    = 2
	answerIn  = 8 * time.Second
)

// keptLog is how much of the end of a verifier's log remains where a description does not fit, in bytes.
const keptLog = 4 << 10

// Teller answers the requests of users of the cluster, by what a Viewer describes. It is safe for concurrent use.
type Teller struct {
	view   func(ctx context.Context, scope view.Scope) (view.NodeView, error)
	log    *slog.Logger
	rate   *rate.Limiter
	places chan struct{}
}

// NewTeller returns a Teller of what a Viewer's View returns.
func NewTeller(describe func(ctx context.Context, scope view.Scope) (view.NodeView, error), log *slog.Logger) *Teller {
	return &Teller{view: describe, log: log, rate: rate.NewLimiter(perSecond, burst), places: make(chan struct{}, atOnce)}
}

// Tell answers a request by lines, of which the last has an End or an Error. It ends where send returns an error or ctx ends.
func (t *Teller) Tell(ctx context.Context, request viewread.Request, send func(noderequest.Answer) error) {
	values, err := t.values(ctx, request)
	if err != nil {
		t.log.Warn("the node is not described to a user of the cluster", "user", request.User, "request", request.ID, "error", err)
		known := noderequest.Failure{Code: noderequest.Inside, Text: err.Error()}
		_ = errors.As(err, &known)
		_ = send(noderequest.Answer{Error: known.Text, Code: known.Code})
		return
	}
	t.log.Debug("the node is described to a user of the cluster", "user", request.User, "request", request.ID, "lines", len(values))
	for _, value := range values {
		if send(noderequest.Answer{Value: value}) != nil {
			return
		}
	}
	_ = send(noderequest.Answer{End: true})
}

// values are the lines of an answer.
func (t *Teller) values(ctx context.Context, request viewread.Request) ([]json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	if !t.rate.Allow() {
		return nil, noderequest.Fail(noderequest.TooMany, "the node is asked too often: it describes itself %d times a second; try again in a few seconds", perSecond)
	}
	select {
	case t.places <- struct{}{}:
		defer func() { <-t.places }()
	case <-ctx.Done():
		return nil, noderequest.Fail(noderequest.Late, "the node describes itself to others, and did not come to this request within %s; try again", answerIn)
	}
	node, err := t.view(ctx, request.Scope)
	if err != nil {
		return nil, err
	}
	if !request.Attachments {
		value, err := fit(node, viewread.MaxView)
		return []json.RawMessage{value}, err
	}
	var values []json.RawMessage
	for _, a := range view.Attachments(node) {
		value, err := json.Marshal(a)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}

// fit is a description of at most so many bytes as JSON: without what takes most room, if it must.
func fit(n view.NodeView, most int) (json.RawMessage, error) {
	leaveOut := []func() string{
		func() string {
			for i := range n.Applications {
				a := &n.Applications[i]
				a.VerifierLog = a.VerifierLog[max(0, len(a.VerifierLog)-keptLog):]
			}
			return fmt.Sprintf("The verifier's logs did not fit: their last %d KiB are shown.", keptLog>>10)
		},
		func() string { n.Programs = nil; return "The programs in the kernel did not fit." },
		func() string { n.Interfaces = nil; return "The interfaces did not fit." },
	}
	for {
		value, err := json.Marshal(n)
		switch {
		case err != nil:
			return nil, err
		case len(value) <= most:
			return value, nil
		case len(leaveOut) == 0:
			return nil, noderequest.Fail(noderequest.TooLarge, "the description has more than %d MiB: ask for one application, or for the attachments", most>>20)
		}
		n.LeftOut = append(n.LeftOut, leaveOut[0]())
		leaveOut = leaveOut[1:]
	}
}
