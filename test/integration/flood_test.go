package integration

import (
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/mirror"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// forger makes tokens that say what an agent's do, each another, under the name of
// the API server's own key or under one that nobody published.
type forger struct {
	claims  jwt.Claims
	signers []jose.Signer
	made    atomic.Int64
}

func newForger(t *testing.T, from string) *forger {
	t.Helper()
	f := &forger{}
	token, err := jwt.ParseSigned(from, []jose.SignatureAlgorithm{jose.RS256, jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	if err := token.UnsafeClaimsWithoutVerification(&f.claims); err != nil {
		t.Fatal(err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{token.Headers[0].KeyID, "made-up"} {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		f.signers = append(f.signers, signer)
	}
	return f
}

// next is a token that was not shown before: half of the time one whose signature is
// another's, which costs nothing to make.
func (f *forger) next() (string, error) {
	n := f.made.Add(1)
	claims := f.claims
	claims.ID = fmt.Sprint("forged", n)
	return jwt.Signed(f.signers[n%2]).Claims(claims).Serialize()
}

// TestAgentsFetchDuringAFloodOfBadTokens: whoever reaches the mirror shows tokens
// from several connections, all from the address that the agents have as well.
func TestAgentsFetchDuringAFloodOfBadTokens(t *testing.T) {
	c := newCluster(t)
	var reviews atomic.Int64
	var published atomic.Bool
	served, _ := c.serve(t.TempDir(), func(o *controller.Options) {
		o.Config = rest.CopyConfig(o.Config)
		o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
					reviews.Add(1)
				}
				resp, err := next.RoundTrip(r)
				if strings.HasSuffix(r.URL.Path, "/jwks") && err == nil && resp.StatusCode == http.StatusOK {
					published.Store(true)
				}
				return resp, err
			})
		})
	})
	c.create(c.Signer("team-a"))
	digest, size := c.opened(c.loads("app", "one")).ObjectDigest, len(programs.Object("tracepoint_count"))
	known := c.token("skep-agent", mirror.Audience)
	fetch := func(what, token string) time.Duration {
		t.Helper()
		began := time.Now()
		if status, body := served.get(t, digest, token); status != http.StatusOK || len(body) != size {
			t.Errorf("%s: %d, %d bytes", what, status, len(body))
		}
		return time.Since(began)
	}
	// An API server that is busy may be asked more than once for its keys.
	c.until("the API server's keys to be known", func() error {
		if status, _ := served.get(t, digest, c.token("skep-agent", mirror.Audience)); status != http.StatusOK || !published.Load() {
			return fmt.Errorf("an agent's token: %d", status)
		}
		return nil
	})
	var before []time.Duration
	for n := range 5 {
		before = append(before, fetch("before the flood", c.tokenOn(fmt.Sprint("node-", n))))
	}
	fetch("a known agent", known)

	forged, asked, answered := newForger(t, known), reviews.Load(), atomic.Int64{}
	over, flood := make(chan struct{}), sync.WaitGroup{}
	for range 16 {
		flood.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				token, err := forged.next()
				if err != nil {
					t.Error(err)
					return
				}
				if status, _ := served.get(t, digest, token); status != http.StatusUnauthorized && status != http.StatusTooManyRequests {
					t.Errorf("a forged token: %d", status)
				}
				answered.Add(1)
			}
		})
	}
	began := time.Now()
	c.until("the flood to rise", func() error {
		if n := answered.Load(); n < 200 {
			return fmt.Errorf("%d tokens", n)
		}
		return nil
	})
	var during []time.Duration
	for n := range 5 {
		// The agent is known; the token is new each time, as after each hour.
		during = append(during, fetch("a token that the API server made a moment ago", c.tokenOn(fmt.Sprint("node-", n))))
		fetch("a known agent", known)
	}
	close(over)
	flood.Wait()
	took := time.Since(began)
	// Strangers have 20 reviews at once and 10 a second, and the agents 5.
	spent, most := reviews.Load()-asked, int64(30+10*took.Seconds())
	slices.Sort(before)
	slices.Sort(during)
	t.Logf("%d bad tokens in %v cost %d reviews; a fetch with a new token took %v, and %.1f times as long during the flood",
		answered.Load(), took.Round(time.Millisecond), spent, before[2], float64(during[2])/float64(before[2]))
	if spent > most {
		t.Errorf("%d bad tokens in %v cost %d reviews by the API server, want %d at most", answered.Load(), took, spent, most)
	}
}
