// Package kubeauth lets in the HTTP requests of those whom the API server lets read a
// path, as kube-rbac-proxy does: by a TokenReview and a SubjectAccessReview.
//
// It owns those two questions, how often they are asked, and how long an answer
// counts. It serves nothing itself, and knows no path.
package kubeauth

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"
)

// The bounds of reviews: how many are under way at once, of tokens that were
// allowed before and of others apart, how many of others begin in a second, whoever
// asks, how long one takes, and for how long and of how many its answer counts.
const (
	atOnce     = 4
	perSecond  = 10
	reviewTime = 10 * time.Second
	allowedFor = time.Minute
	refusedFor = 10 * time.Second
	maxAnswers = 1024
	maxToken   = 16 << 10
	retryAfter = "2"
	// refreshAfter is how old an answer may be before a request has it asked for
	// again, for the next one.
	refreshAfter = allowedFor / 2
	// knownFor is how long a token that was allowed is not a stranger's.
	knownFor = time.Hour
)

// Where the API server takes reviews.
const (
	tokenReviews  = "/apis/authentication.k8s.io/v1/tokenreviews"
	accessReviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
)

// Guard decides who is let in. It is safe for concurrent use.
type Guard struct {
	// post writes an object to the API server, and reads its answer into another.
	post func(ctx context.Context, path string, in, out any) error
	// allowed has for each token that is known the time.Time at which it was allowed.
	// It and rejected are apart, so that a flood of bad tokens drops no good one.
	allowed, refused *cache.LRUExpireCache
	// flights are the reviews under way, one for each token and path.
	flights singleflight.Group
	// known and strangers are the places for reviews; begins bounds those of
	// strangers.
	known, strangers *semaphore.Weighted
	begins           *rate.Limiter
}

// The ways a request is rejected.
var (
	errUnauthenticated = errors.New("show a token of the API server's")
	errForbidden       = errors.New("you may not get this path; bind the ClusterRole skep-metrics-reader")
	errBusy            = errors.New("too many tokens wait for review; try again")
)

// New makes a guard that asks the API server of a configuration.
func New(config *rest.Config, client *http.Client) (*Guard, error) {
	c := rest.CopyConfig(config)
	c.GroupVersion, c.ContentType, c.AcceptContentTypes = &schema.GroupVersion{}, runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	// Reviews are bounded here, and must not wait for the client.
	c.QPS, c.RateLimiter = -1, nil
	server, err := rest.UnversionedRESTClientForConfigAndClient(c, client)
	if err != nil {
		return nil, fmt.Errorf("make client of reviews: %w", err)
	}
	return newGuard(func(ctx context.Context, path string, in, out any) error {
		body, err := json.Marshal(in)
		if err != nil {
			return err
		}
		answer, err := server.Post().AbsPath(path).Body(body).Do(ctx).Raw()
		if err != nil {
			return err
		}
		return json.Unmarshal(answer, out)
	}), nil
}

func newGuard(post func(ctx context.Context, path string, in, out any) error) *Guard {
	return &Guard{
		post: post, allowed: cache.NewLRUExpireCache(maxAnswers), refused: cache.NewLRUExpireCache(maxAnswers),
		known: semaphore.NewWeighted(atOnce), strangers: semaphore.NewWeighted(atOnce), begins: rate.NewLimiter(perSecond, 2*perSecond),
	}
}

// Handler hands on the requests of those who are let in. log is told of reviews
// that failed; callers are not.
func (g *Guard) Handler(next http.Handler, log func(err error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch err := g.admit(r); {
		case err == nil:
			next.ServeHTTP(w, r)
		case errors.Is(err, errUnauthenticated):
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
		case errors.Is(err, errForbidden):
			http.Error(w, err.Error(), http.StatusForbidden)
		case errors.Is(err, errBusy):
			w.Header().Set("Retry-After", retryAfter)
			http.Error(w, err.Error(), http.StatusTooManyRequests)
		default:
			log(err)
			http.Error(w, "the API server cannot be asked who you are; try again", http.StatusServiceUnavailable)
		}
	})
}

// admit is nil where a request is let in.
func (g *Guard) admit(r *http.Request) error {
	token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found || token == "" || len(token) > maxToken {
		return errUnauthenticated
	}
	q := question{token: token, what: path{Path: r.URL.Path, Verb: strings.ToLower(r.Method)}}
	q.key = sha256.Sum256([]byte(q.what.Verb + " " + q.what.Path + " " + token))
	since, isKnown := g.allowed.Get(q.key)
	if isKnown {
		switch age := time.Since(since.(time.Time)); {
		case age < refreshAfter:
			return nil
		case age < allowedFor:
			g.flights.DoChan(q.flight(), g.ask(r.Context(), q, g.waitForPlace))
			return nil
		}
		_, err, _ := g.flights.Do(q.flight(), g.ask(r.Context(), q, g.waitForPlace))
		return err
	}
	if known, ok := g.refused.Get(q.key); ok {
		return known.(error)
	}
	_, err, _ := g.flights.Do(q.flight(), g.ask(r.Context(), q, g.takePlace))
	return err
}

// question is whether a token may do something.
type question struct {
	key   [sha256.Size]byte
	token string
	what  path
}

// flight names a question among those that are under way.
func (q question) flight() string { return string(q.key[:]) }

// ask returns what has a question reviewed, once for all who ask it meanwhile, and
// remembers the answer.
func (g *Guard) ask(ctx context.Context, q question, enter func(context.Context) (leave func(), err error)) func() (any, error) {
	return func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTime)
		defer cancel()
		leave, err := enter(ctx)
		if err != nil {
			return nil, err
		}
		defer leave()
		err = g.review(ctx, q.token, q.what)
		switch {
		case err == nil:
			g.allowed.Add(q.key, time.Now(), knownFor)
		case errors.Is(err, errUnauthenticated), errors.Is(err, errForbidden):
			g.allowed.Remove(q.key)
			g.refused.Add(q.key, err, refusedFor)
		}
		return nil, err
	}
}

// takePlace takes one of the strangers' places, where there is one now.
func (g *Guard) takePlace(context.Context) (func(), error) {
	if !g.begins.Allow() || !g.strangers.TryAcquire(1) {
		return nil, errBusy
	}
	return func() { g.strangers.Release(1) }, nil
}

// waitForPlace takes a place that no stranger can have.
func (g *Guard) waitForPlace(ctx context.Context) (func(), error) {
	if err := g.known.Acquire(ctx, 1); err != nil {
		return nil, errBusy
	}
	return func() { g.known.Release(1) }, nil
}

// review asks the API server whose a token is, and what they may.
func (g *Guard) review(ctx context.Context, token string, what path) error {
	who := tokenReview{meta: meta{"authentication.k8s.io/v1", "TokenReview"}}
	who.Spec.Token = token
	if err := g.post(ctx, tokenReviews, who, &who); err != nil {
		return fmt.Errorf("review token: %w", err)
	}
	if !who.Status.Authenticated {
		return errUnauthenticated
	}
	may, u := accessReview{meta: meta{"authorization.k8s.io/v1", "SubjectAccessReview"}}, who.Status.User
	may.Spec.User, may.Spec.UID, may.Spec.Groups, may.Spec.Extra, may.Spec.NonResourceAttributes = u.Username, u.UID, u.Groups, u.Extra, what
	if err := g.post(ctx, accessReviews, may, &may); err != nil {
		return fmt.Errorf("review access of %s: %w", u.Username, err)
	}
	if !may.Status.Allowed {
		return errForbidden
	}
	return nil
}
