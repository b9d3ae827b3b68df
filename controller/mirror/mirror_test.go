package mirror

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/intent"
)

// api has an intent for every object, and takes each token for what it says of
// itself.
type api struct{ client.Client }

func (api) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	review := o.(*authenticationv1.TokenReview)
	node := claimedNode(review.Spec.Token)
	review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{Audience},
		User: authenticationv1.UserInfo{Username: "agent", Extra: map[string]authenticationv1.ExtraValue{extraNode: {node}}}}
	return nil
}

func (api) List(_ context.Context, list client.ObjectList, all ...client.ListOption) error {
	var o client.ListOptions
	digest, _ := o.ApplyOptions(all).FieldSelector.RequiresExactMatch(byObject)
	list.(*v1alpha1.BpfIntentList).Items = []v1alpha1.BpfIntent{{ObjectMeta: metav1.ObjectMeta{Name: digest}}}
	return nil
}

// hanging is a cache of objects of 128 KiB that are read once release is closed.
type hanging struct {
	read    chan string
	release chan struct{}
}

func (h *hanging) Object(_ context.Context, digest string) ([]byte, error) {
	h.read <- digest
	<-h.release
	return make([]byte, 128<<10), nil
}

func (h *hanging) Keep(string, []byte) error { return nil }

// emptied is a cache that lost the objects of lost, and can be filled with them
// again once filled is closed.
type emptied struct {
	filled chan struct{}

	mu    sync.Mutex
	lost  map[string]bool
	pulls map[string]int
}

func newEmptied(lost ...string) *emptied {
	e := &emptied{filled: make(chan struct{}), lost: map[string]bool{}, pulls: map[string]int{}}
	for _, digest := range lost {
		e.lost[digest] = true
	}
	return e
}

func (e *emptied) Object(_ context.Context, digest string) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost[digest] {
		return nil, fmt.Errorf("read: %w", image.ErrNotFound)
	}
	return []byte(digest), nil
}

func (e *emptied) Keep(digest string, _ []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.lost, digest)
	return nil
}

// pull is Server.Pull from a registry that hangs.
func (e *emptied) pull(ctx context.Context, p intent.Payload) error {
	e.mu.Lock()
	e.pulls[p.ObjectDigest]++
	e.mu.Unlock()
	select {
	case <-e.filled:
		return e.Keep(p.ObjectDigest, nil)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// asked is a Server, asked over HTTP.
type asked struct {
	*Server
	issuer  *issuer
	handler http.Handler
	answers chan *answered
}

func serve(cache Cache, pull func(context.Context, intent.Payload) error) *asked {
	issuer := newIssuer("published")
	s := &Server{Client: api{}, Cache: cache, Pull: pull, Agent: "agent", SigningKeys: issuer.keys, Open: func(i *v1alpha1.BpfIntent) (intent.Payload, bool) {
		return intent.Payload{ObjectDigest: i.Name}, true
	}}
	return &asked{s, issuer, s.handler(), make(chan *answered, 100)}
}

// by has a node ask for an object, with a token of its own each time.
func (a *asked) by(ctx context.Context, node, object string) {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/objects/"+object, nil)
	r.Header.Set("Authorization", "Bearer "+a.issuer.token("agent", node, object))
	answer := &answered{ResponseRecorder: httptest.NewRecorder()}
	a.handler.ServeHTTP(answer, r)
	a.answers <- answer
}

// holdsNothing is so once all was answered and fetched.
func (a *asked) holdsNothing(t *testing.T) {
	t.Helper()
	if sending, filling, borrowing := a.sending.Users(), a.filling.Users(), a.borrowing.Users(); len(sending)+len(filling)+len(borrowing) != 0 {
		t.Errorf("shares are left of what is sent, %v, fetched, %v, and borrowed, %v", sending, filling, borrowing)
	}
	if n, m := len(a.agents.out), len(a.agents.slots); n+m != 0 {
		t.Errorf("%d objects and %d slots are left", n, m)
	}
}

// answered is an answer, and when it has to be read.
type answered struct {
	*httptest.ResponseRecorder
	until time.Time
}

func (a *answered) SetWriteDeadline(until time.Time) error {
	a.until = until
	return nil
}

// TestANodeThatReadsSlowlyKeepsNoOtherWaiting has one node ask for more than its
// share.
func TestANodeThatReadsSlowlyKeepsNoOtherWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := &hanging{read: make(chan string, 100), release: make(chan struct{})}
		s := serve(cache, nil)
		for n := range atOnce + 2 {
			go s.by(t.Context(), "slow", fmt.Sprint("slow", n))
		}
		synctest.Wait()
		impatient, leave := context.WithCancel(t.Context())
		go s.by(impatient, "slow", "slow100")
		synctest.Wait()
		leave()
		if a := <-s.answers; a.Code != http.StatusServiceUnavailable {
			t.Errorf("who went away is told %d", a.Code)
		}
		go s.by(t.Context(), "other", "other0")
		synctest.Wait()
		if n := len(cache.read); n != atOnce+1 {
			t.Errorf("%d objects are read, want %d for the one node and 1 for the other", n, atOnce)
		}
		close(cache.release)
		for range atOnce + 3 {
			if a := <-s.answers; a.Code != http.StatusOK || a.Body.Len() != 128<<10 || time.Until(a.until) != sentWithin {
				t.Errorf("%d with %d bytes, within %v", a.Code, a.Body.Len(), time.Until(a.until))
			}
		}
		synctest.Wait()
		s.holdsNothing(t)
	})
}

// TestWhatIsFetchedKeepsNobodyWaiting has five nodes ask for what a registry hangs
// at, more than are sent at once: they get all the while what is there.
func TestWhatIsFetchedKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes, lost := []string{"a", "b", "c", "d", "e"}, []string(nil)
		for _, node := range nodes {
			for n := range atOnce {
				lost = append(lost, fmt.Sprint(node, n))
			}
		}
		cache := newEmptied(lost...)
		s := serve(cache, cache.pull)
		for _, object := range lost {
			go s.by(t.Context(), object[:1], object)
		}
		synctest.Wait()
		for _, node := range nodes {
			go s.by(t.Context(), node, "here")
		}
		synctest.Wait()
		if n := len(s.answers); n != len(nodes) {
			t.Errorf("%d nodes have what is there while a registry hangs, want %d", n, len(nodes))
		}
		close(cache.filled)
		for range len(lost) + len(nodes) {
			if a := <-s.answers; a.Code != http.StatusOK {
				t.Errorf("answered with %d", a.Code)
			}
		}
		synctest.Wait()
		s.holdsNothing(t)
	})
}

// TestANodeHasFewFetched: what it left counts as long as that is fetched, which goes
// on since registries are slower than agents are patient, and these ask again.
func TestANodeHasFewFetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := newEmptied("0", "1", "2", "3", "4")
		s := serve(cache, cache.pull)
		impatient, leave := context.WithCancel(t.Context())
		for n := range atOnce {
			go s.by(impatient, "greedy", fmt.Sprint(n))
		}
		synctest.Wait()
		leave()
		for range atOnce {
			if a := <-s.answers; a.Code != http.StatusServiceUnavailable {
				t.Errorf("who went away is told %d", a.Code)
			}
		}
		go s.by(t.Context(), "greedy", "4")
		synctest.Wait()
		if n := len(cache.pulls); n != atOnce {
			t.Errorf("%d objects are fetched for one node, want %d", n, atOnce)
		}
		// Who has a share left has it fetched, and joins what is fetched already.
		go s.by(t.Context(), "other", "4")
		go s.by(t.Context(), "other", "0")
		synctest.Wait()
		if cache.pulls["4"] != 1 || cache.pulls["0"] != 1 {
			t.Errorf("what another node asks for is fetched %d times, and what is fetched %d times", cache.pulls["4"], cache.pulls["0"])
		}
		close(cache.filled)
		for range 3 {
			if a := <-s.answers; a.Code != http.StatusOK {
				t.Errorf("answered with %d", a.Code)
			}
		}
		synctest.Wait()
		if len(cache.lost) != 0 {
			t.Errorf("lost still: %v", cache.lost)
		}
		s.holdsNothing(t)
	})
}

// TestFewObjectsComeFromPeersAtOnce: each stands in memory on its way. Who waits
// longer than a peer would be waited for asks the registry.
func TestFewObjectsComeFromPeersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost []string
		for n := range 3 * atOnce {
			lost = append(lost, fmt.Sprint(n))
		}
		cache := newEmptied(lost...)
		close(cache.filled)
		s := serve(cache, cache.pull)
		asked, release := make(chan struct{}, 100), make(chan struct{})
		s.Peers = &Peers{Addresses: func(context.Context) ([]string, error) {
			asked <- struct{}{}
			<-release
			return nil, errors.New("there are none")
		}}
		began := time.Now()
		for n, object := range lost {
			go s.by(t.Context(), fmt.Sprint("node", n), object)
		}
		synctest.Wait()
		if len(asked) != borrowedAtOnce {
			t.Fatalf("peers are asked for %d objects at once, want %d", len(asked), borrowedAtOnce)
		}
		for range len(lost) - borrowedAtOnce {
			if a := <-s.answers; a.Code != http.StatusOK || time.Since(began) != peerTimeout {
				t.Errorf("answered with %d after %v", a.Code, time.Since(began))
			}
		}
		close(release)
		for range borrowedAtOnce {
			if a := <-s.answers; a.Code != http.StatusOK {
				t.Errorf("answered with %d", a.Code)
			}
		}
		synctest.Wait()
		s.holdsNothing(t)
	})
}

// slowAPI is an api that answers about tokens once release is closed.
type slowAPI struct {
	api
	asked   chan struct{}
	release chan struct{}
}

func (s *slowAPI) Create(ctx context.Context, o client.Object, all ...client.CreateOption) error {
	s.asked <- struct{}{}
	<-s.release
	return s.api.Create(ctx, o, all...)
}

func TestFewTokensAreAskedAboutAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowAPI{asked: make(chan struct{}, 100), release: make(chan struct{})}
		s := serve(newEmptied(), nil)
		s.Client = slow
		for n := range 3 * askedAtOnce {
			go s.by(t.Context(), fmt.Sprint("node", n), "here")
		}
		synctest.Wait()
		if n := len(slow.asked); n != askedAtOnce {
			t.Errorf("the API server is asked about %d tokens at once, want %d", n, askedAtOnce)
		}
		close(slow.release)
		for range 3 * askedAtOnce {
			if a := <-s.answers; a.Code != http.StatusOK {
				t.Errorf("answered with %d", a.Code)
			}
		}
	})
}
