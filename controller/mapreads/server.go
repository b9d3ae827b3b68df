// Package mapreads serves maps.skep.dev, by which people with the right read the maps of applications on nodes: kube-apiserver
// authenticates, authorises and audits each request and hands it on. It owns who may, how often, and the way to the node's
// agent; it reads no map, and no other server's requests.
package mapreads

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/intent/mapread"
	"github.com/skep-dev/skep/listen"
)

// Group and Version are the API's.
const (
	Group   = "maps." + v1alpha1.Group
	Version = "v1alpha1"
)

// The bounds: how many requests of one user, of whom so many may begin at once and one more each second, and of all users are
// on their way at once, of which no more than ofWatches last: others have place to read. What is beyond is answered 429.
// kube-apiserver has no more connections than listen allows one address.
const (
	userBurst     = 20
	userPerSecond = 1
	ofUser        = 4
	ofAll         = 12
	ofWatches     = 8
	maxUsers      = 4096
)

// Server serves the API on every replica.
type Server struct {
	// Listener or Address is where. Certificate shows who serves, and Authorities are those that signed it, in PEM. Needed.
	Address     string
	Listener    net.Listener
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Authorities func(context.Context) ([]byte, error)
	// Live reads past the cache, and Writer writes the APIService and asks whether users may. Needed.
	Live   client.Reader
	Writer client.Client
	// Intents finds the sealed intents of an application, and Sealer signs requests to agents. Needed.
	Intents func(context.Context, v1alpha1.Identity) ([]intents.Intent, error)
	Sealer  func() *intent.Sealer
	// Hub has the agents that poll this replica. Needed. Relay asks other replicas for the answer of a node's agent; nil means
	// that there are none.
	Hub   *Hub
	Relay func(ctx context.Context, node, id string, envelope []byte) (io.ReadCloser, error)
	// Recheck is how often a user who watches is asked about again; zero means 5 seconds.
	Recheck time.Duration

	proxy *frontProxy
	users *cache.LRUExpireCache
	mu    sync.Mutex
	// under counts the requests on their way, by user.
	under        map[string]int
	all, watches int
}

// NeedLeaderElection tells a manager to run the Server on every replica.
func (s *Server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	listener := s.Listener
	if listener == nil {
		var err error
		if listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address); err != nil {
			return fmt.Errorf("serve reads of maps: %w", err)
		}
	}
	s.proxy = &frontProxy{reader: s.Live}
	s.users, s.under = cache.NewLRUExpireCache(maxUsers), map[string]int{}
	if s.Recheck == 0 {
		s.Recheck = 5 * time.Second
	}
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { s.follow(ctx) })
	// Which certificate counts, changes; the handler verifies it for each request.
	config := &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: s.Certificate, ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true}
	return listen.Serve(ctx, listener, config, s.handler())
}

// The paths: kube-apiserver finds verb, resource, name and subresource in them, and decides by these alone. The verb watch is in
// the path, since a watch of one object by a parameter would be a get.
const (
	root       = "/apis/" + Group
	base       = root + "/" + Version
	namespaced = "/namespaces/{namespace}/bpfapplications/{name}/maps"
	clustered  = "/clusterbpfapplications/{name}/maps"
)

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for path, object := range map[string]any{root: apiGroup(), base: apiResources()} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, object) })
	}
	for _, scope := range []string{namespaced, clustered} {
		mux.HandleFunc("GET "+base+scope, s.read(mapread.List))
		mux.HandleFunc("GET "+base+scope+"/{map}", s.read(mapread.Dump))
		mux.HandleFunc("GET "+base+"/watch"+scope+"/{map}", s.read(mapread.Watch))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := s.proxy.user(r)
		if err != nil {
			// It keeps no connection, of which there are few.
			w.Header().Set("Connection", "close")
			reject(w, fail(http.StatusUnauthorized, "%v", err))
			return
		}
		// A request has no body, and takes as long as its answer does.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, who)))
	})
}

// userKey is the key of a request's user in its context.
type userKey struct{}

// read answers one operation.
func (s *Server) read(operation mapread.Operation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who := r.Context().Value(userKey{}).(user.Info)
		request, err := requestOf(r, operation, who.GetName())
		if err == nil {
			err = s.serve(w, r, who, request)
		}
		if err != nil {
			reject(w, err)
		}
	}
}

// requestOf is what a request asks for.
func requestOf(r *http.Request, operation mapread.Operation, who string) (mapread.Request, error) {
	id := v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	if id.Namespace != "" {
		id.Kind = v1alpha1.KindBpfApplication
	}
	query := r.URL.Query()
	request := mapread.Request{Node: query.Get("node"), User: who, Application: id, Operation: operation, Map: r.PathValue("map"), Type: query.Get("type")}
	if operation == mapread.Dump && query.Has("key") {
		request.Operation, request.Key = mapread.Get, query.Get("key")
	}
	if request.Node == "" {
		return request, fail(http.StatusBadRequest, "no node is named: add ?node=NAME, by kubectl skep map --node NAME; kubectl get bpfnodes lists them")
	}
	for what, name := range map[string]string{"node": request.Node, "namespace": id.Namespace, "application": id.Name} {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 && name != "" {
			return request, fail(http.StatusBadRequest, "%s %.64q is no name: %s", what, name, strings.Join(problems, "; "))
		}
	}
	random := make([]byte, 16)
	_, _ = rand.Read(random) // It never fails.
	request.ID = hex.EncodeToString(random)
	return request, nil
}

// serve answers a request. An error is one before anything of the answer was sent.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, who user.Info, request mapread.Request) error {
	log := ctrl.Log.WithName("mapreads").WithValues("user", request.User, "application", request.Application.String(), "map", request.Map,
		"operation", request.Operation, "node", request.Node, "request", request.ID)
	leave, err := s.enter(request.User, request.Operation == mapread.Watch)
	if err != nil {
		return err
	}
	defer leave()
	if err := s.allowed(r.Context(), who, request); err != nil {
		log.Info("a read of a map is rejected", "error", err.Error())
		return err
	}
	if err := s.complete(r.Context(), &request); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	answer, err := s.ask(ctx, request)
	if err != nil {
		log.Info("a read of a map is not answered", "error", err.Error())
		return err
	}
	defer answer.Close()
	log.Info("a map is read")
	if request.Operation == mapread.Watch {
		var checking sync.WaitGroup
		defer checking.Wait()
		defer cancel(nil)
		checking.Go(func() { s.recheck(ctx, cancel, who, request) })
	}
	// A read of the answer ends with the context.
	defer context.AfterFunc(ctx, func() { _ = answer.Close() })()
	return s.copy(ctx, w, answer, request)
}

// enter counts a request, within what a user and all users may.
func (s *Server) enter(name string, watches bool) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lasts := 0
	if watches {
		lasts = 1
	}
	own, ok := s.users.Get(name)
	if !ok {
		own = rate.NewLimiter(userPerSecond, userBurst)
		s.users.Add(name, own, time.Hour)
	}
	switch {
	case !own.(*rate.Limiter).Allow():
		return nil, fail(http.StatusTooManyRequests, "user %s asks too often: %d reads of maps a second are allowed; try again in a few seconds", name, userPerSecond)
	case s.under[name] >= ofUser:
		return nil, fail(http.StatusTooManyRequests, "user %s has %d reads of maps on their way, and no more are allowed at once; end one", name, ofUser)
	case s.all >= ofAll:
		return nil, fail(http.StatusTooManyRequests, "%d reads of maps are on their way, and no more are allowed at once; try again later", ofAll)
	case s.watches+lasts > ofWatches:
		return nil, fail(http.StatusTooManyRequests, "%d watches of maps are on their way, and no more are allowed at once; try again later", ofWatches)
	}
	s.under[name]++
	s.all++
	s.watches += lasts
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		s.watches -= lasts
		if s.under[name]--; s.under[name] == 0 {
			delete(s.under, name)
		}
	}, nil
}

// ask has the agent of a node answer.
func (s *Server) ask(ctx context.Context, request mapread.Request) (io.ReadCloser, error) {
	request.Until = time.Now().Add(mapread.TTL).UnixMilli()
	envelope, err := mapread.Seal(s.Sealer(), request)
	if err != nil {
		return nil, fail(http.StatusBadRequest, "%v", err)
	}
	answer, err := s.Hub.Ask(ctx, request.Node, request.ID, envelope, deliverTime)
	if errors.Is(err, errNotHere) && s.Relay != nil {
		if answer, err = s.Relay(ctx, request.Node, request.ID, envelope); err != nil {
			ctrl.Log.WithName("mapreads").V(1).Info("no replica reaches the agent", "node", request.Node, "error", err.Error())
			err = errNotHere
		}
	}
	switch {
	case errors.Is(err, errNotHere):
		return nil, fail(http.StatusGatewayTimeout, "node %s: %v. Is there such a Node, and does skep-agent run there with --map-reads, "+
			"which the chart's mapReads.enabled sets? After a start it takes some seconds", request.Node, err)
	case err != nil:
		return nil, fail(http.StatusGatewayTimeout, "node %s: %v", request.Node, err)
	}
	return answer, nil
}

// copy sends the values of an answer, one JSON object a line, and last a Status if it is not whole.
func (s *Server) copy(ctx context.Context, w http.ResponseWriter, answer io.Reader, request mapread.Request) error {
	lines := bufio.NewScanner(answer)
	lines.Buffer(make([]byte, 0, 64<<10), mapread.MaxAnswer)
	out := &stream{w: w, control: http.NewResponseController(w), prompt: request.Operation == mapread.Watch}
	for lines.Scan() && ctx.Err() == nil {
		var line mapread.Answer
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return out.fail(http.StatusBadGateway, fmt.Sprintf("node %s: its agent sends what is no answer", request.Node))
		}
		switch {
		case line.Error != "":
			return out.fail(line.Code, fmt.Sprintf("node %s: %s", request.Node, line.Error))
		case line.End:
			return out.flush()
		}
		if err := out.line(line.Value); err != nil {
			return nil //nolint:nilerr // The user is gone.
		}
	}
	if ctx.Err() != nil {
		var known failure
		if errors.As(context.Cause(ctx), &known) {
			return out.fail(known.code, known.text)
		}
		return nil
	}
	return out.fail(http.StatusBadGateway, fmt.Sprintf("node %s: the answer of its agent ended before it was whole", request.Node))
}
