package mapreads

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/aggregated"
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/noderequests"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// reviews is an API server that answers reviews.
type reviews struct {
	client.Client
	allowed bool
	err     error
	asked   atomic.Pointer[authorizationv1.SubjectAccessReviewSpec]
	// withdrawn says that the user may not any more.
	withdrawn atomic.Bool
}

// Create implements client.Client.
func (r *reviews) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	review := o.(*authorizationv1.SubjectAccessReview)
	r.asked.Store(&review.Spec)
	review.Status.Allowed = r.allowed && !r.withdrawn.Load()
	return r.err
}

// newServer is a Server whose requests come from a user by the API server, and whose agent answers these lines.
func newServer(t *testing.T, api *reviews, answer string, maps map[string]v1alpha1.Map) http.Handler {
	t.Helper()
	s := serverOf(t, api, maps)
	s.Asker.Relay = func(context.Context, string, string, []byte) (io.ReadCloser, error) {
		if answer == "" {
			return nil, errors.New("no replica")
		}
		return io.NopCloser(strings.NewReader(answer)), nil
	}
	return handler(s)
}

// serverOf are the Options of newServer without an agent.
func serverOf(t *testing.T, api *reviews, maps map[string]v1alpha1.Map) Options {
	t.Helper()
	return Options{
		Writer: api, Asker: &noderequests.Asker{Hub: noderequests.NewHub(), Sealer: func() *intent.Sealer { return seals.New(t).Sealer }},
		Intents: func(_ context.Context, id v1alpha1.Identity) ([]intents.Intent, error) {
			return []intents.Intent{{Payload: &intent.Payload{Application: id, UID: "u", Maps: maps}}}, nil
		},
		Recheck: time.Hour,
	}
}

// handler serves the API to users that a header names.
func handler(o Options) http.Handler {
	return aggregated.Authenticated(func(r *http.Request) (user.Info, error) {
		if name := r.Header.Get("X-Remote-User"); name != "" {
			return &user.DefaultInfo{Name: name, Groups: []string{"g"}}, nil
		}
		return nil, errors.New("no user")
	}, API(o))
}

// get asks over a connection, which has deadlines.
func get(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Remote-User", "ann")
	response, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	w := httptest.NewRecorder()
	w.Code = response.StatusCode
	if _, err := io.Copy(w.Body, response.Body); err != nil {
		t.Fatal(err)
	}
	return w
}

// base is the path of the API.
const base = "/apis/" + Group + "/" + Version

const ofTeam = base + "/namespaces/team-a/bpfapplications/app/maps"

func TestTheServerAsksForItselfWhetherAUserMay(t *testing.T) {
	api := &reviews{}
	h := newServer(t, api, `{"value":{}}`+"\n", nil)
	for path, want := range map[string]authorizationv1.ResourceAttributes{
		ofTeam + "/m?node=n": {Verb: "get", Namespace: "team-a", Resource: "bpfapplications"},
		base + "/watch/clusterbpfapplications/app/maps/m?node=n": {Verb: "watch", Resource: "clusterbpfapplications"},
	} {
		w := get(t, h, path)
		asked := api.asked.Load()
		if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "bind a role") || asked == nil {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
		want.Group, want.Version, want.Name, want.Subresource = Group, Version, "app", "maps"
		if *asked.ResourceAttributes != want || asked.User != "ann" || len(asked.Groups) != 1 {
			t.Errorf("%s: it asks %+v of %+v", path, asked.ResourceAttributes, asked)
		}
	}
	api.allowed, api.err = true, errors.New("away")
	if w := get(t, h, ofTeam+"?node=n"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("without an answer: %d", w.Code)
	}
}

func TestRequestsThatAreNoneOfTheAPIServersAreRejected(t *testing.T) {
	api := &reviews{allowed: true}
	h := newServer(t, api, "", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, ofTeam+"?node=n", nil))
	if w.Code != http.StatusServiceUnavailable || api.asked.Load() != nil || w.Header().Get("Connection") != "close" {
		t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
	}
}

func TestAnAnswerThatIsNotWholeSaysSo(t *testing.T) {
	const value = `{"value":{"key":1}}` + "\n"
	for name, c := range map[string]struct {
		answer string
		code   int
		last   string
	}{
		"whole":                       {value + "{}\n" + value + `{"end":true}` + "\n", http.StatusOK, `{"key":1}`},
		"of no entries":               {"{}\n" + `{"end":true}` + "\n", http.StatusOK, ""},
		"an error":                    {`{"error":"no such map","code":404}` + "\n", http.StatusNotFound, "no such map"},
		"an error amid":               {value + `{"error":"too much","code":413}` + "\n", http.StatusOK, "too much"},
		"the agent is gone":           {value, http.StatusOK, "ended before it was whole"},
		"the agent is gone at once":   {"{}\n", http.StatusBadGateway, "ended before it was whole"},
		"no answer at all":            {"<html>\n", http.StatusBadGateway, "what is no answer"},
		"a status that is none":       {`{"error":"odd","code":7}` + "\n", http.StatusBadGateway, "odd"},
		"a line without end":          {`{"value":"` + strings.Repeat("x", 2<<20), http.StatusBadGateway, "ended before it was whole"},
		"nobody who reaches the node": {"", http.StatusGatewayTimeout, "node n:"},
	} {
		w := get(t, newServer(t, &reviews{allowed: true}, c.answer, nil), ofTeam+"/m?node=n")
		lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n")
		if last := lines[len(lines)-1]; w.Code != c.code || !strings.Contains(last, c.last) || last != "" && !json.Valid([]byte(last)) {
			t.Errorf("%s: %d, ends by %.300s", name, w.Code, last)
		}
	}
}

func TestRecordsThatAReaderIsGrantedAreNotWatched(t *testing.T) {
	maps := map[string]v1alpha1.Map{
		"events": {Export: []v1alpha1.MapExport{{Access: v1alpha1.MapConsume}}}, "other": {Export: []v1alpha1.MapExport{{Access: v1alpha1.MapRead}}},
	}
	h := newServer(t, &reviews{allowed: true}, `{"end":true}`+"\n", maps)
	for path, want := range map[string]int{"events": http.StatusConflict, "other": http.StatusOK} {
		if w := get(t, h, base+"/watch/namespaces/team-a/bpfapplications/app/maps/"+path+"?node=n"); w.Code != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestMapsThatANodeMayHaveFromAnotherApplicationAreReadThere(t *testing.T) {
	const watched = base + "/watch/namespaces/team-a/bpfapplications/app/maps"
	s := serverOf(t, &reviews{allowed: true}, nil)
	s.Asker.Relay = func(context.Context, string, string, []byte) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(`{"end":true}` + "\n")), nil
	}
	s.Intents = func(_ context.Context, id v1alpha1.Identity) ([]intents.Intent, error) {
		before := &intent.Payload{Application: id, UID: "u", Maps: map[string]v1alpha1.Map{
			"taken": {From: &v1alpha1.MapSource{Application: "owner", Map: "m"}}, "events": {Export: []v1alpha1.MapExport{{Access: v1alpha1.MapConsume}}},
		}}
		return []intents.Intent{{Payload: &intent.Payload{Application: id, UID: "u", Previous: before}}}, nil
	}
	for path, want := range map[string]int{
		ofTeam: http.StatusOK, ofTeam + "/events": http.StatusOK, watched + "/other": http.StatusOK,
		ofTeam + "/taken": http.StatusConflict, watched + "/taken": http.StatusConflict, watched + "/events": http.StatusConflict,
	} {
		if w := get(t, handler(s), path+"?node=n"); w.Code != want || want == http.StatusConflict && !strings.Contains(w.Body.String(), "spec.maps.") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func FuzzPath(f *testing.F) {
	for _, path := range []string{ofTeam + "/m?node=n", ofTeam + "/..%2f..?node=n", base + "/watch/namespaces/a%2Fb/bpfapplications/c/maps/m?node=n&type=t"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://host"+path, nil)
		if err != nil || !strings.HasPrefix(path, "/") {
			return
		}
		r.Header.Set("X-Remote-User", "ann")
		api, w := &reviews{}, httptest.NewRecorder()
		newServer(t, api, `{"value":"secret"}`+"\n", nil).ServeHTTP(w, r)
		if strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s is answered without a right", path)
		}
		if asked := api.asked.Load(); asked != nil && strings.ContainsAny(asked.ResourceAttributes.Name+asked.ResourceAttributes.Namespace, "/.%") &&
			strings.Contains(asked.ResourceAttributes.Name, "/") {
			t.Errorf("%s: it asks for %+v", path, asked.ResourceAttributes)
		}
	})
}

// endless is the answer of an agent from which nothing comes but that it is there.
type endless struct{ ended chan struct{} }

// Read implements io.Reader.
func (e endless) Read(b []byte) (int, error) {
	select {
	case <-e.ended:
		return 0, io.EOF
	default:
		return copy(b, "{}\n"), nil
	}
}

// Close implements io.Closer.
func (e endless) Close() error {
	close(e.ended)
	return nil
}

func TestAWatchEndsWhereTheUserMayNotWatchAnyMore(t *testing.T) {
	api := &reviews{allowed: true}
	s := serverOf(t, api, nil)
	s.Recheck = time.Millisecond
	s.Asker.Relay = func(context.Context, string, string, []byte) (io.ReadCloser, error) {
		// From now on, the user may not.
		api.withdrawn.Store(true)
		e := endless{make(chan struct{})}
		return closedOnce{e, sync.OnceValue(e.Close)}, nil
	}
	w := get(t, handler(s), base+"/watch/namespaces/team-a/bpfapplications/app/maps/m?node=n")
	lines := strings.Fields(w.Body.String())
	if w.Code != http.StatusOK && w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), `"code":403`) {
		t.Errorf("%d, %d words", w.Code, len(lines))
	}
}

// closedOnce is closed by the first that comes.
type closedOnce struct {
	io.Reader
	once func() error
}

// Close implements io.Closer.
func (c closedOnce) Close() error { return c.once() }
