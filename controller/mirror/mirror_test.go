package mirror

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// api has an intent for every object, and takes node/token for a token of the agent
// on that node.
type api struct{ client.Client }

func (api) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	review := o.(*authenticationv1.TokenReview)
	node, _, _ := strings.Cut(review.Spec.Token, "/")
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
// share, with a token of its own each time.
func TestANodeThatReadsSlowlyKeepsNoOtherWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := &hanging{read: make(chan string, 100), release: make(chan struct{})}
		s := &Server{Client: api{}, Cache: cache, Agent: "agent", Open: func(i *v1alpha1.BpfIntent) (intent.Payload, bool) {
			return intent.Payload{ObjectDigest: i.Name}, true
		}}
		handler, answers := s.handler(), make(chan *answered, 100)
		ask := func(ctx context.Context, node string, n int) {
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprint("/v1/objects/", node, n), nil)
			r.Header.Set("Authorization", fmt.Sprint("Bearer ", node, "/", n))
			a := &answered{ResponseRecorder: httptest.NewRecorder()}
			handler.ServeHTTP(a, r)
			answers <- a
		}
		for n := range sentAtOnce + 2 {
			go ask(t.Context(), "slow", n)
		}
		synctest.Wait()
		impatient, leave := context.WithCancel(t.Context())
		go ask(impatient, "slow", 100)
		synctest.Wait()
		leave()
		if a := <-answers; a.Code != http.StatusServiceUnavailable {
			t.Errorf("who went away is told %d", a.Code)
		}
		go ask(t.Context(), "other", 0)
		synctest.Wait()
		if n := len(cache.read); n != sentAtOnce+1 {
			t.Errorf("%d objects are read, want %d for the one node and 1 for the other", n, sentAtOnce)
		}
		close(cache.release)
		for range sentAtOnce + 3 {
			if a := <-answers; a.Code != http.StatusOK || a.Body.Len() != 128<<10 || time.Until(a.until) != sentWithin {
				t.Errorf("%d with %d bytes, within %v", a.Code, a.Body.Len(), time.Until(a.until))
			}
		}
		synctest.Wait()
		if len(s.shares.of) != 0 {
			t.Errorf("%d shares are left", len(s.shares.of))
		}
	})
}
