package mirror

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// reviewTime is how long the API server of these tests takes for a review.
const reviewTime = 50 * time.Millisecond

// countingAPI is an api that takes its time, counts the reviews, and authenticates
// the tokens with ids that begin with good.
type countingAPI struct {
	api
	reviews *atomic.Int32
}

func (c countingAPI) Create(ctx context.Context, o client.Object, all ...client.CreateOption) error {
	c.reviews.Add(1)
	select {
	case <-time.After(reviewTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	review := o.(*authenticationv1.TokenReview)
	t, err := jwt.ParseSigned(review.Spec.Token, algorithms())
	var claims jwt.Claims
	if err != nil || t.UnsafeClaimsWithoutVerification(&claims) != nil || !strings.HasPrefix(claims.ID, "good") {
		return nil //nolint:nilerr // a token that cannot be read is not authenticated
	}
	return c.api.Create(ctx, o, all...)
}

// reviewed is a mirror, and how many tokens were reviewed for it.
type reviewed struct {
	*asked
	reviews atomic.Int32
}

func serveReviewed() *reviewed {
	v := &reviewed{asked: serve(newEmptied(), nil)}
	v.Client = countingAPI{reviews: &v.reviews}
	return v
}

// shown is the answer to a token that is shown from an address.
func (v *reviewed) shown(ctx context.Context, token, address string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/objects/here", nil)
	r.RemoteAddr = address + ":1234"
	r.Header.Set("Authorization", "Bearer "+token)
	w := &answered{ResponseRecorder: httptest.NewRecorder()}
	v.handler.ServeHTTP(w, r)
	return w.ResponseRecorder
}

func TestATokenThatNoAPIServerCouldAcceptIsNotReviewed(t *testing.T) {
	v := serveReviewed()
	published, other := v.issuer, newIssuer("published")
	good := published.token("agent", "node", "good")
	unsigned := good[:strings.LastIndex(good, ".")+1]
	for name, c := range map[string]struct {
		token  string
		status int
	}{
		"nothing":                {"", http.StatusUnauthorized},
		"a word":                 {"junk", http.StatusUnauthorized},
		"three parts of no JSON": {"a.b.c", http.StatusUnauthorized},
		"no signature":           {unsigned, http.StatusUnauthorized},
		"too long":               {good + strings.Repeat("A", maxToken), http.StatusUnauthorized},
		"another audience":       {published.token("agent", "n", "good", func(c *jwt.Claims) { c.Audience = jwt.Audience{"api"} }), http.StatusUnauthorized},
		"no audience":            {published.token("agent", "n", "good", func(c *jwt.Claims) { c.Audience = nil }), http.StatusUnauthorized},
		"no expiry":              {published.token("agent", "n", "good", func(c *jwt.Claims) { c.Expiry = nil }), http.StatusUnauthorized},
		"expired an hour ago": {
			published.token("agent", "n", "good", func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(time.Now().Add(-time.Hour)) }), http.StatusUnauthorized,
		},
		"another account":      {published.token("other", "n", "good"), http.StatusForbidden},
		"no account":           {published.token("", "n", "good"), http.StatusForbidden},
		"signed by a stranger": {other.token("agent", "node", "good"), http.StatusUnauthorized},
		"a signature of something": {
			good[:strings.LastIndex(good, ".")] + other.token("agent", "node", "good")[strings.LastIndex(good, "."):], http.StatusUnauthorized,
		},
	} {
		if got := v.shown(t.Context(), c.token, "10.0.0.1"); got.Code != c.status {
			t.Errorf("%s: %d, want %d", name, got.Code, c.status)
		}
	}
	if n := v.reviews.Load(); n != 0 {
		t.Errorf("%d tokens were reviewed, want none", n)
	}
	if got := v.shown(t.Context(), good, "10.0.0.1"); got.Code != http.StatusOK || v.reviews.Load() != 1 {
		t.Errorf("a good token: %d after %d reviews, want %d after 1", got.Code, v.reviews.Load(), http.StatusOK)
	}
}

// TestAgentsAreServedDuringAFloodOfBadTokens has strangers show tokens as long as the
// agents ask. They cannot sign, but say in their tokens what they like, from the
// agents' own addresses too.
func TestAgentsAreServedDuringAFloodOfBadTokens(t *testing.T) {
	for name, c := range map[string]struct {
		published bool
		// flood is the addresses that the flood comes from.
		flood []string
		// fresh is what an agent is answered from which nobody ever had a token.
		fresh int
	}{
		"keys are published, the flood has the agents' addresses": {true, []string{"10.0.0.1", "10.0.0.2"}, http.StatusOK},
		"no keys are published, the flood has one address":        {false, []string{"10.6.6.6"}, http.StatusOK},
		"no keys are published, the flood has some addresses":     {false, []string{"10.6.6.6", "10.6.6.7", "10.6.6.8"}, http.StatusOK},
		"no keys are published, the flood has many addresses":     {false, addresses(1000), http.StatusTooManyRequests},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v, forger := serveReviewed(), newIssuer("made-up")
				if !c.published {
					v.SigningKeys = nil
				}
				if got := v.shown(t.Context(), v.issuer.token("agent", "known", "good0"), "10.0.0.1"); got.Code != http.StatusOK {
					t.Fatalf("before the flood: %d", got.Code)
				}
				const rounds, each = 20, 50
				busy := atomic.Int32{}
				flood := func(round int) {
					for n := range each {
						token := forger.token("agent", "known", fmt.Sprint("bad", round, n))
						go func() {
							got := v.shown(t.Context(), token, c.flood[(round*each+n)%len(c.flood)])
							if got.Code == http.StatusTooManyRequests && got.Header().Get("Retry-After") != "" {
								busy.Add(1)
							} else if got.Code != http.StatusUnauthorized {
								t.Errorf("a bad token: %d", got.Code)
							}
						}()
					}
				}
				for round := range rounds / 2 {
					flood(round)
					<-time.After(reviewTime)
				}
				flood(rounds / 2)
				synctest.Wait()
				began := time.Now()
				fresh := make(chan int, 1)
				go func() { fresh <- v.shown(t.Context(), v.issuer.token("agent", "fresh", "good2"), "10.0.0.2").Code }()
				renewed := v.shown(t.Context(), v.issuer.token("agent", "known", "good1"), "10.0.0.1").Code
				if got := <-fresh; renewed != http.StatusOK || got != c.fresh {
					t.Errorf("during the flood: %d for an agent with a renewed token, %d for a new one, want %d", renewed, got, c.fresh)
				}
				if took := time.Since(began); took > 4*reviewTime {
					t.Errorf("two reviews took %v, each takes %v by itself", took, reviewTime)
				}
				for round := rounds/2 + 1; round < rounds; round++ {
					flood(round)
					<-time.After(reviewTime)
				}
				<-time.After(time.Minute)
				synctest.Wait()
				if n := v.reviews.Load() - 3; n > 40 {
					t.Errorf("%d bad tokens of %d were reviewed within a second", n, rounds*each)
				}
				if busy.Load() < rounds*each/2 {
					t.Errorf("%d bad tokens of %d were answered at once with 429 and Retry-After", busy.Load(), rounds*each)
				}
			})
		})
	}
}

// addresses are so many.
func addresses(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("10.7.%d.%d", i/256, i%256))
	}
	return all
}

// TestANodeWithManyTokensKeepsNoOtherWaiting has a node that was taken over show good
// tokens without end, as its kubelet may ask for.
func TestANodeWithManyTokensKeepsNoOtherWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := serveReviewed()
		for n := range 1000 {
			go v.shown(t.Context(), v.issuer.token("agent", "greedy", fmt.Sprint("good", n)), "10.0.0.1")
		}
		synctest.Wait()
		began := time.Now()
		got := v.shown(t.Context(), v.issuer.token("agent", "other", "good"), "10.0.0.1")
		if took := time.Since(began); got.Code != http.StatusOK || took > 2*reviewTime {
			t.Errorf("%d after %v", got.Code, took)
		}
		if n := v.reviews.Load(); n > 10 {
			t.Errorf("%d tokens of two nodes were reviewed at once", n)
		}
	})
}

func TestRefusalsAreRememberedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := serveReviewed()
		bad := v.issuer.token("agent", "node", "bad")
		for range 100 {
			v.shown(t.Context(), bad, "10.0.0.1")
		}
		if n := v.reviews.Load(); n != 1 {
			t.Errorf("%d reviews of one bad token", n)
		}
		<-time.After(refusedFor + time.Second)
		if v.shown(t.Context(), bad, "10.0.0.1"); v.reviews.Load() != 2 {
			t.Errorf("%d reviews after the refusal was forgotten, want 2", v.reviews.Load())
		}
	})
}

func TestKeysOfTheAPIServerAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := serveReviewed()
		now, fetches, failing := newIssuer("first"), 0, false
		v.SigningKeys = func(ctx context.Context) ([]byte, error) {
			if fetches++; failing {
				return nil, errors.New("the API server is away")
			}
			return now.keys(ctx)
		}
		prove := func(by *issuer) proof {
			c, err := v.reviewer().parse(by.token("agent", "node", "good"))
			if err != nil {
				t.Fatal(err)
			}
			return v.reviewer().keys.verify(t.Context(), c, time.Now())
		}
		first, stranger := now, newIssuer("stranger")
		if got := prove(first); got != proven || fetches != 1 {
			t.Errorf("the key of the API server: %v after %d fetches", got, fetches)
		}
		for range 100 {
			if got := prove(stranger); got != unproven {
				t.Errorf("a key that is not published: %v", got)
			}
		}
		if fetches != 1 {
			t.Errorf("%d fetches at once for keys that nobody published", fetches)
		}
		// A new key under a new name, then under the same one.
		for _, id := range []string{"second", "second"} {
			now = newIssuer(id)
			<-time.After(keysEvery)
			if got := prove(now); got != proven {
				t.Errorf("the new key %s: %v", id, got)
			}
		}
		// What cannot be fetched makes no token a forged one.
		failing, now = true, newIssuer("second")
		<-time.After(keysEvery)
		if got := prove(now); got != unproven {
			t.Errorf("a key that cannot be fetched: %v", got)
		}
	})
}
