package nodeview

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/intent/viewread"
)

// The bounds of a node's answers to users of the cluster: how many begin in a second and at once, of one user and of all, of how many
// users that is remembered, how many are made at the same time, and how long one may take.
const (
	perSecond = 5
	burst     = 60
	perAll    = 20
	burstAll  = 240
	maxUsers  = 64
	atOnce    = 2
	answerIn  = 8 * time.Second
)

// Teller answers the requests of users of the cluster, by what a Viewer describes. It is safe for concurrent use.
type Teller struct {
	view   func(ctx context.Context, scope view.Scope) (view.NodeView, error)
	log    *slog.Logger
	all    *rate.Limiter
	places chan struct{}

	mu    sync.Mutex
	users *cache.LRUExpireCache
}

// NewTeller returns a Teller of what a Viewer's View returns.
func NewTeller(describe func(ctx context.Context, scope view.Scope) (view.NodeView, error), log *slog.Logger) *Teller {
	return &Teller{view: describe, log: log, all: rate.NewLimiter(perAll, burstAll), places: make(chan struct{}, atOnce),
		users: cache.NewLRUExpireCache(maxUsers)}
}

// Tell answers a request by lines, of which the last has an End or an Error. It ends where send returns an error or ctx ends.
func (t *Teller) Tell(ctx context.Context, request viewread.Request, send func(noderequest.Answer) error) {
	values, err := t.values(ctx, request)
	for _, value := range values {
		if send(noderequest.Answer{Value: value}) != nil {
			return
		}
	}
	if err != nil {
		t.log.Warn("the node is not described whole to a user of the cluster", "user", request.User, "request", request.ID, "error", err)
		known := noderequest.Failure{Code: noderequest.Inside, Text: err.Error()}
		_ = errors.As(err, &known)
		_ = send(noderequest.Answer{Error: known.Text, Code: known.Code})
		return
	}
	t.log.Debug("the node is described to a user of the cluster", "user", request.User, "request", request.ID, "lines", len(values))
	_ = send(noderequest.Answer{End: true})
}

// values are the lines of an answer; with an error, those before it.
func (t *Teller) values(ctx context.Context, request viewread.Request) ([]json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	if !t.of(request.Share()).Allow() {
		return nil, noderequest.Fail(noderequest.TooMany, "you ask the node too often: it describes itself to a user %d times a second; try again in a few seconds",
			perSecond)
	}
	if !t.all.Allow() {
		return nil, noderequest.Fail(noderequest.TooMany, "the node is asked too often: it describes itself %d times a second; try again in a few seconds", perAll)
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
		value, err := json.Marshal(node)
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
	if left := slices.DeleteFunc(slices.Clone(node.LeftOut), func(what string) bool { return !strings.HasSuffix(what, DidNotFit) }); len(left) > 0 {
		err = noderequest.Fail(noderequest.TooLarge, "some are not shown: %s", strings.Join(left, ", "))
	}
	return values, err
}

// of is the rate of a share: who asks without end takes nothing from others.
func (t *Teller) of(share string) *rate.Limiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own, ok := t.users.Get(share); ok {
		return own.(*rate.Limiter)
	}
	own := rate.NewLimiter(perSecond, burst)
	t.users.Add(share, own, time.Hour)
	return own
}
