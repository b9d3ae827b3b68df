// Package mirror hands the bytecode of live intents to agents, so that they need
// no registry, no registry credentials and no Secret.
//
// It serves objects by digest out of the controller's cache, fetches what is
// missing there once, and knows nobody but agents. It need not be trusted:
// agents hash what they get.
package mirror

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/limit"
)

// Audience is what the tokens of agents are made for.
const Audience = "skep-mirror"

// Cache has what was pulled; *registry.Client is one.
type Cache interface {
	// Object is an object of the cache; image.ErrNotFound where it is not there.
	Object(ctx context.Context, objectDigest string) ([]byte, error)
	// Keep puts an object into it.
	Keep(objectDigest string, object []byte) error
}

// Server is the mirror of one replica.
type Server struct {
	// Client reads intents from the cache and writes TokenReviews. Needed.
	Client client.Client
	// Open opens an intent's seal; false where it does not hold. Needed.
	Open func(*v1alpha1.BpfIntent) (intent.Payload, bool)
	// Cache is needed. Pull fetches into it what a sealed intent names. Needed.
	Cache Cache
	Pull  func(context.Context, intent.Payload) error
	// Agent is the user name of the agents' service account. Needed. Replica is
	// that of the controllers', who get what is in the cache and no more; empty
	// means that they get nothing.
	Agent, Replica string
	// SigningKeys returns the JSON Web Key Set that the API server publishes of the
	// keys it signs service account tokens with; nil means that it publishes none.
	// A token that one of them signed is reviewed before others.
	SigningKeys func(context.Context) ([]byte, error)
	// Peers are asked for what the cache lacks, before the registry; nil means
	// nobody.
	Peers *Peers
	// Requests hands agents requests of users; nil hands out none.
	Requests NodeRequests
	// Address is where it listens; Listener takes its place in tests.
	Address  string
	Listener net.Listener
	// Certificate shows who serves. Needed.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Now is the clock; nil means time.Now.
	Now func() time.Time

	once   sync.Once
	tokens *reviewer
	fills  singleflight.Group
	// sending counts by node what is read and sent, filling what is fetched: a
	// registry that hangs keeps no node from what is there. borrowing counts all that
	// comes from peers.
	sending, filling, borrowing limit.PerName
	// Replicas have a shelf of their own: who waits for one must not wait for
	// somebody who waits for this one.
	agents, replicas shelf
}

// NodeRequests is what agents and replicas ask of requests of users; *noderequests.Hub is one.
type NodeRequests interface {
	// Next answers the agent of a node with the next request for it, and Answer takes its answer to one.
	Next(w http.ResponseWriter, r *http.Request, node string)
	Answer(w http.ResponseWriter, r *http.Request, node string)
	// Relay answers a replica to which the agent of a node does not come.
	Relay(w http.ResponseWriter, r *http.Request)
	// Connections has the connections of polls that Next answered, to be served again. Next leaves none to its server.
	Connections(of net.Addr) net.Listener
}

// atOnce is how many objects are on their way to one node at once, and how many are
// fetched for it: a node that reads slowly, or never, keeps few of those that may be
// out at all.
const atOnce = 4

// byObject is the index of intents by the digest of their object.
const byObject = "object"

// Register indexes intents and has a manager run the Server on every replica.
func (s *Server) Register(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.BpfIntent{}, byObject, func(o client.Object) []string {
		p, ok := s.Open(o.(*v1alpha1.BpfIntent))
		if !ok || p.Tombstone {
			return nil
		}
		var objects []string
		for _, version := range p.Versions() {
			objects = append(objects, version.ObjectDigest)
		}
		return objects
	})
	if err != nil {
		return err
	}
	return mgr.Add(s)
}

// NeedLeaderElection tells a manager to run the Server on every replica.
func (s *Server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	listener := s.Listener
	if listener == nil {
		var err error
		config := net.ListenConfig{}
		if listener, err = config.Listen(ctx, "tcp", s.Address); err != nil {
			return fmt.Errorf("serve mirror: %w", err)
		}
	}
	server := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 2 * time.Minute, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10,
		TLSConfig:      &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: s.Certificate},
		BaseContext:    func(net.Listener) context.Context { return ctx },
		// A poll waits by itself on its connection, which HTTP/2 shares.
		Protocols: new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	go func() {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = server.Shutdown(grace)
	}()
	if s.Requests != nil {
		// What these connections have is TLS already.
		again := s.Requests.Connections(listener.Addr())
		go func() { _ = server.Serve(again) }()
	}
	err := server.ServeTLS(listener, "", "")
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve mirror: %w", err)
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/objects/{digest}", func(w http.ResponseWriter, r *http.Request) {
		who, err := s.reviewer().admit(r)
		if err != nil {
			reject(w, r, err)
			return
		}
		object, giveBack, err := s.object(r.Context(), r.PathValue("digest"), who)
		if err != nil {
			reject(w, r, err)
			return
		}
		defer giveBack()
		if err := send(w, object); err != nil {
			reject(w, r, err)
		}
	})
	if s.Requests != nil {
		mux.HandleFunc("GET /v1/requests", s.admitted(false, s.Requests.Next))
		mux.HandleFunc("POST /v1/requests/{id}", s.admitted(false, s.Requests.Answer))
		mux.HandleFunc("POST /v1/nodes/{node}/requests/{id}", s.admitted(true,
			func(w http.ResponseWriter, r *http.Request, _ string) { s.Requests.Relay(w, r) }))
	}
	return mux
}

// admitted hands on the requests of replicas, or of agents with their node.
func (s *Server) admitted(replica bool, next func(w http.ResponseWriter, r *http.Request, node string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := s.reviewer().admit(r)
		if err == nil && who.replica != replica {
			err = errForbidden
		}
		if err != nil {
			reject(w, r, err)
			return
		}
		next(w, r, who.node)
	}
}

// sentWithin is how long an object may be on its way, which is as long as an agent
// waits for it.
const sentWithin = time.Minute

// send writes an object to whoever reads it fast enough. An error is one before
// anything is sent.
func send(w http.ResponseWriter, object []byte) error {
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(sentWithin)); err != nil {
		return fmt.Errorf("bound how long it takes: %w", err)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(object)))
	_, _ = w.Write(object) //nolint:gosec // bytecode, of a type no browser renders
	return nil
}

// The ways a request is denied.
var (
	errUnauthorized = errors.New("show a token of audience " + Audience)
	errForbidden    = errors.New("the token is not an agent's")
	errNotLive      = errors.New("no live intent names this object")
	errNotHere      = errors.New("this replica does not have it")
	errBusy         = errors.New("too many tokens wait for review; try again")
)

// reject answers with a status and a line; what went wrong inside is logged and
// not told.
func reject(w http.ResponseWriter, r *http.Request, err error) {
	status, line := http.StatusServiceUnavailable, "the object cannot be had now; try again"
	switch {
	case errors.Is(err, errUnauthorized):
		status, line = http.StatusUnauthorized, err.Error()
	case errors.Is(err, errForbidden):
		status, line = http.StatusForbidden, err.Error()
	case errors.Is(err, errNotLive), errors.Is(err, errNotHere):
		status, line = http.StatusNotFound, err.Error()
	case errors.Is(err, errBusy):
		status, line = http.StatusTooManyRequests, err.Error()
		w.Header().Set("Retry-After", strconv.Itoa(int(busyFor.Seconds())))
	default:
		ctrl.LoggerFrom(r.Context()).Error(err, "serve object", "digest", r.PathValue("digest"))
	}
	http.Error(w, line, status)
}

// object is a live intent's object, and how to give it back. One that the cache
// has lost is fetched, but for a replica.
func (s *Server) object(ctx context.Context, digest string, who asker) ([]byte, func(), error) {
	object, giveBack, err := s.lend(ctx, digest, who)
	switch {
	case !errors.Is(err, image.ErrNotFound):
		return object, giveBack, err
	case who.replica:
		return nil, nil, errNotHere
	}
	if err := s.fill(ctx, digest, who.node); err != nil {
		return nil, nil, err
	}
	return s.lend(ctx, digest, who)
}

// lend is a live intent's object as the cache has it. From before it is read until
// it is given back it counts against its node's share.
func (s *Server) lend(ctx context.Context, digest string, who asker) ([]byte, func(), error) {
	if who.replica {
		return s.shelved(ctx, digest, &s.replicas)
	}
	leave, err := s.sending.Acquire(ctx, who.node, 1, atOnce)
	if err != nil {
		return nil, nil, err
	}
	object, giveBack, err := s.shelved(ctx, digest, &s.agents)
	if err != nil {
		leave()
		return nil, nil, err
	}
	return object, func() { giveBack(); leave() }, nil
}

// shelved is a live intent's object from a shelf.
func (s *Server) shelved(ctx context.Context, digest string, on *shelf) ([]byte, func(), error) {
	if _, err := s.live(ctx, digest); err != nil {
		return nil, nil, err
	}
	return on.lend(ctx, digest, func(ctx context.Context) ([]byte, error) { return s.Cache.Object(ctx, digest) })
}

// fill waits until the cache has an object again, and has it fetched for a node
// unless it is already. That goes on though nobody waits for it any more, since
// they will ask again, and counts against the node's share until it ends.
func (s *Server) fill(ctx context.Context, digest, node string) error {
	leave, err := s.filling.Acquire(ctx, node, 1, atOnce)
	if err != nil {
		return err
	}
	filled := make(chan error, 1)
	go func() {
		defer leave()
		versions, err := s.live(ctx, digest)
		if err == nil {
			_, err, _ = s.fills.Do(digest, func() (any, error) { return nil, s.fetch(context.WithoutCancel(ctx), digest, versions) })
		}
		filled <- err
	}()
	select {
	case err := <-filled:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// The bounds of pulling one object: how many applications' images and pull Secrets
// are tried, and how long each may take before the next one.
const (
	triedFor    = 8
	triedWithin = 15 * time.Second
)

// fetch brings an object into the cache: from a replica that has it, else from the
// registry. Each application that names it has an image and pull Secrets of its own,
// and they are tried one after the other: those of one may be wrong. Of each
// namespace one comes before a second, and who is first changes.
func (s *Server) fetch(ctx context.Context, digest string, versions []intent.Payload) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var errs []error
	if s.Peers != nil {
		err := s.borrow(ctx, digest)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	versions = inTurn(versions, triedFor)
	for i, p := range versions {
		err := s.pull(ctx, p, i == len(versions)-1)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("fetch image of %s: %w", p.Application, err))
	}
	return errors.Join(errs...)
}

// pull pulls an image within its time; the last one has all that is left.
func (s *Server) pull(ctx context.Context, p intent.Payload, last bool) error {
	if !last {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, triedWithin)
		defer cancel()
	}
	return s.Pull(ctx, p)
}

// inTurn returns at most so many versions, in random order: one of each namespace, and
// then the second of each.
func inTurn(versions []intent.Payload, most int) []intent.Payload {
	versions = slices.Clone(versions)
	rand.Shuffle(len(versions), func(i, j int) { versions[i], versions[j] = versions[j], versions[i] }) //nolint:gosec // whose turn it is guards no secret
	seen, turn := map[string]int{}, map[string]int{}
	for _, p := range versions {
		turn[p.UID] = seen[p.Application.Namespace]
		seen[p.Application.Namespace]++
	}
	slices.SortStableFunc(versions, func(x, y intent.Payload) int { return cmp.Compare(turn[x.UID], turn[y.UID]) })
	return versions[:min(len(versions), most)]
}

// borrow brings an object into the cache from a replica that has it. It stands in
// memory on its way, as few may at a time; there is no longer wait for that than
// for one replica.
func (s *Server) borrow(ctx context.Context, digest string) error {
	patience, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	leave, err := s.borrowing.Acquire(patience, "", 1, borrowedAtOnce)
	if err != nil {
		return fmt.Errorf("wait to ask replicas: %w", err)
	}
	defer leave()
	object, err := s.Peers.fetch(ctx, digest)
	if err != nil {
		return err
	}
	return s.Cache.Keep(digest, object)
}

// live are the versions of live intents that name an object, one of each intent.
func (s *Server) live(ctx context.Context, digest string) ([]intent.Payload, error) {
	var intents v1alpha1.BpfIntentList
	if err := s.Client.List(ctx, &intents, client.MatchingFields{byObject: digest}); err != nil {
		return nil, fmt.Errorf("list intents: %w", err)
	}
	var all []intent.Payload
	for i := range intents.Items {
		p, ok := s.Open(&intents.Items[i])
		if !ok {
			continue
		}
		versions := p.Versions()
		if at := slices.IndexFunc(versions, func(v intent.Payload) bool { return v.ObjectDigest == digest }); at >= 0 {
			all = append(all, versions[at])
		}
	}
	if len(all) == 0 {
		return nil, errNotLive
	}
	return all, nil
}

// reviewer decides whose tokens are; it is made on first use.
func (s *Server) reviewer() *reviewer {
	s.once.Do(func() {
		s.tokens = newReviewer(s.Client, s.Agent, s.Replica, s.SigningKeys, clock.OrSystem(s.Now))
	})
	return s.tokens
}
