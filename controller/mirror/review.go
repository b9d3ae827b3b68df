package mirror

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// asker is whose a token is: a replica's, or the agent's of a node.
type asker struct {
	replica bool
	node    string
}

// reviewer finds out whose tokens are. The API server reviews each token once a
// while, and few at a time: whoever reaches the mirror shows as many tokens as
// they like.
type reviewer struct {
	client         client.Client
	agent, replica string
	keys           *signingKeys
	now            func() time.Time

	flights singleflight.Group
	// accepted and denied are answers by the hash of the token. They are apart, so
	// that a flood of bad tokens drops no good one.
	accepted, refused *cache.LRUExpireCache
	// addresses are those from which a token was accepted.
	addresses *cache.LRUExpireCache
	// proven, familiar and strange are the tokens' lanes; see laneOf.
	proven, familiar, strange *lane
}

// answer is whose a token is, or why it was denied.
type answer struct {
	asker asker
	err   error
}

// The bounds of what is remembered of tokens: for how long, and of how many.
const (
	acceptedFor  = 2 * time.Minute
	refusedFor   = 10 * time.Second
	familiarFor  = 2 * time.Hour
	maxAnswers   = 8192
	maxAddresses = 8192
)

// askedAtOnce is how many proven tokens the API server reviews at once.
const askedAtOnce = 8

// The bounds of a review: how long it takes with the wait for it, and how long a token
// that nothing proves waits for a place.
const (
	reviewTimeout    = 10 * time.Second
	strangerPatience = 2 * time.Second
)

func newReviewer(c client.Client, agent, replica string, keys func(context.Context) ([]byte, error), now func() time.Time) *reviewer {
	remember := func(most int) *cache.LRUExpireCache { return cache.NewLRUExpireCacheWithClock(most, cacheClock(now)) }
	return &reviewer{
		client: c, agent: agent, replica: replica, now: now, keys: &signingKeys{fetch: keys},
		accepted: remember(maxAnswers), refused: remember(maxAnswers), addresses: remember(maxAddresses),
		proven:   newLane(laneOptions{atOnce: askedAtOnce, burst: 8, patience: reviewTimeout}, now),
		familiar: newLane(laneOptions{atOnce: 4, burst: 8, perSecond: 20, patience: strangerPatience}, now),
		strange:  newLane(laneOptions{atOnce: 2, burst: 4, perSecond: 10, patience: strangerPatience}, now),
	}
}

// cacheClock is a function as a cache asks for the time.
type cacheClock func() time.Time

// Now implements cache.Clock.
func (c cacheClock) Now() time.Time { return c() }

// admit returns whose the token of a request is.
func (v *reviewer) admit(r *http.Request) (asker, error) {
	token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found || token == "" {
		return asker{}, errUnauthorized
	}
	address, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		address = r.RemoteAddr
	}
	return v.asker(r.Context(), token, address)
}

// asker returns whose a token is, if it is an agent's or a replica's. Whoever
// shows the same token meanwhile waits for the same review.
func (v *reviewer) asker(ctx context.Context, token, address string) (asker, error) {
	key := sha256.Sum256([]byte(token))
	if known, ok := v.remembered(key); ok {
		return known.asker, known.err
	}
	claimed, err := v.parse(token)
	if err != nil {
		return asker{}, err
	}
	reviewed := v.flights.DoChan(string(key[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
		defer cancel()
		who, err := v.decide(ctx, token, address, claimed)
		if who.node == "" {
			// A token that is bound to no node has a share of its own.
			who.node = string(key[:])
		}
		v.remember(key, address, answer{who, err})
		return who, err
	})
	select {
	case <-ctx.Done():
		return asker{}, ctx.Err()
	case result := <-reviewed:
		return result.Val.(asker), result.Err
	}
}

// remembered is the answer about a token; false where there is none or it is too
// old.
func (v *reviewer) remembered(key [sha256.Size]byte) (answer, bool) {
	for _, all := range []*cache.LRUExpireCache{v.accepted, v.refused} {
		if known, ok := all.Get(key); ok {
			return known.(answer), true
		}
	}
	return answer{}, false
}

// remember keeps an answer, unless it is that there was none.
func (v *reviewer) remember(key [sha256.Size]byte, address string, a answer) {
	switch {
	case a.err == nil:
		v.accepted.Add(key, a, acceptedFor)
		v.addresses.Add(address, nil, familiarFor)
	case errors.Is(a.err, errUnauthorized), errors.Is(a.err, errForbidden):
		v.refused.Add(key, a, refusedFor)
	}
}

// decide has the API server review a token, once its lane has a place for it. A
// forged one is denied without.
func (v *reviewer) decide(ctx context.Context, token, address string, c claims) (asker, error) {
	proof := v.keys.verify(ctx, c, v.now())
	if proof == forged {
		return asker{}, errUnauthorized
	}
	lane, name := v.laneOf(proof, address, c)
	leave, err := lane.enter(ctx, name)
	if err != nil {
		return asker{}, err
	}
	defer leave()
	return v.review(ctx, token)
}

// laneOf is where a token waits for its review, and under which name it has a
// share there. Nobody takes a place of the lane above with what they made up:
//
//   - a proven token bears the signature of the API server, and names its node;
//   - a familiar address is one from which a token was accepted before. Where the API
//     server publishes no keys, agents that were accepted come before strangers;
//   - all others share what is left by their address.
func (v *reviewer) laneOf(p proof, address string, c claims) (*lane, string) {
	if p == proven {
		return v.proven, c.subject + "/" + c.node
	}
	if _, known := v.addresses.Get(address); known {
		return v.familiar, address
	}
	return v.strange, address
}

// extraNode is where the API server says of a Pod's token which node the Pod is
// on.
const extraNode = "authentication.kubernetes.io/node-name"

// review asks the API server whose a token is.
func (v *reviewer) review(ctx context.Context, token string) (asker, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}}}
	if err := v.client.Create(ctx, review); err != nil {
		return asker{}, fmt.Errorf("review token: %w", err)
	}
	// An API server that does not know audiences names none.
	if !review.Status.Authenticated || !slices.Contains(review.Status.Audiences, Audience) {
		return asker{}, errUnauthorized
	}
	user := review.Status.User
	switch {
	case user.Username == v.replica && v.replica != "":
		return asker{replica: true}, nil
	case user.Username != v.agent:
		return asker{}, errForbidden
	}
	return asker{node: strings.Join(user.Extra[extraNode], "/")}, nil
}
