package mirror

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Peers are the mirrors of the other replicas. What they send is hashed, and
// they are asked for what is in their caches alone, so no question goes round.
type Peers struct {
	// Addresses lists them as host:port; this replica's own among them does no
	// harm. Needed.
	Addresses func(context.Context) ([]string, error)
	// Authorities are those that their certificate may be signed by, in PEM.
	// Needed.
	Authorities func(context.Context) ([]byte, error)
	// ServerName is what their certificate says. Needed.
	ServerName string
	// TokenFile holds a token of the controller's service account for Audience.
	// Needed.
	TokenFile string

	mu sync.Mutex
	// met is how peers are reached, and until when that is believed.
	met   *met
	until time.Time
}

// met is how peers are reached.
type met struct {
	addresses   []string
	token       string
	authorities []byte
	client      *http.Client
}

// believed is how long addresses, token and authorities are not read again: a list asks for many nodes.
const believed = 5 * time.Second

// The bounds of asking peers: how many, for how long each, for how much, which is
// what an inspection reads, and for how many objects at once.
const (
	maxPeers       = 8
	peerTimeout    = 5 * time.Second
	maxObject      = 16 << 20
	borrowedAtOnce = 4
)

// fetch is an object that a peer has.
func (p *Peers) fetch(ctx context.Context, digest string) (object []byte, err error) {
	err = p.each(ctx, func(to *http.Client, address, token string) (err error) {
		object, err = ask(ctx, to, address, digest, token)
		return err
	})
	return object, err
}

// each asks peers one after the other, until one has an answer.
func (p *Peers) each(ctx context.Context, do func(to *http.Client, address, token string) error) error {
	m, err := p.meet(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, address := range m.addresses[:min(len(m.addresses), maxPeers)] {
		err := do(m.client, address, m.token)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("ask replica %s: %w", address, err))
	}
	return errors.Join(errs...)
}

// meet finds out how peers are reached. Connections are kept for as long as the same authorities count.
func (p *Peers) meet(ctx context.Context) (*met, error) {
	p.mu.Lock()
	known, now := p.met, time.Now()
	fresh := now.Before(p.until)
	p.mu.Unlock()
	if known != nil && fresh {
		return known, nil
	}
	addresses, err := p.Addresses(ctx)
	if err != nil {
		return nil, fmt.Errorf("list replicas: %w", err)
	}
	token, err := os.ReadFile(p.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("read token for replicas: %w", err)
	}
	authorities, err := p.Authorities(ctx)
	if err != nil {
		return nil, fmt.Errorf("read authorities of replicas: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	next := &met{addresses: addresses, token: strings.TrimSpace(string(token)), authorities: authorities}
	if p.met != nil && bytes.Equal(p.met.authorities, authorities) {
		next.client = p.met.client
	} else {
		if p.met != nil {
			p.met.client.CloseIdleConnections()
		}
		next.client = newPeerClient(authorities, p.ServerName)
	}
	p.met, p.until = next, now.Add(believed)
	return next, nil
}

// meetTime is how long a connection to a peer may take, and to begin TLS: one whose node is gone stays among the addresses for a while.
const meetTime = time.Second

// newPeerClient asks servers of this name that the authorities signed for.
func newPeerClient(authorities []byte, serverName string) *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authorities)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: serverName, MinVersion: tls.VersionTLS13}, DisableCompression: true,
		DialContext: (&net.Dialer{Timeout: meetTime}).DialContext, TLSHandshakeTimeout: meetTime, IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 16}
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// relayWithin is how long a peer may take to begin the answer of an agent.
const relayWithin = 15 * time.Second

// Relay is the answer of a node's agent that a peer reaches, to a sealed request. It is to be closed.
func (p *Peers) Relay(ctx context.Context, node, id string, envelope []byte) (answer io.ReadCloser, err error) {
	err = p.each(ctx, func(to *http.Client, address, token string) error {
		ctx, cancel := context.WithCancelCause(ctx)
		late := time.AfterFunc(relayWithin, func() { cancel(context.DeadlineExceeded) })
		defer late.Stop()
		where := url.URL{Scheme: "https", Host: address, Path: "/v1/nodes/" + node + "/requests/" + id}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, where.String(), bytes.NewReader(envelope))
		if err != nil {
			cancel(nil)
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := to.Do(request)
		if err == nil && response.StatusCode != http.StatusOK {
			_ = response.Body.Close()
			err = fmt.Errorf("it answers %s", http.StatusText(response.StatusCode))
		}
		if err != nil {
			cancel(nil)
			return err
		}
		answer = relayed{response.Body, cancel}
		return nil
	})
	if err == nil && answer == nil {
		err = errors.New("there is no other replica")
	}
	return answer, err
}

// relayed is an answer that comes by a peer.
type relayed struct {
	io.ReadCloser

	cancel context.CancelCauseFunc
}

// Close implements io.Closer.
func (r relayed) Close() error {
	r.cancel(nil)
	return r.ReadCloser.Close()
}

// ask asks one peer.
func ask(ctx context.Context, asker *http.Client, address, digest, token string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	where := url.URL{Scheme: "https", Host: address, Path: "/v1/objects/" + digest}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := asker.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s", http.StatusText(response.StatusCode))
	}
	object, err := io.ReadAll(io.LimitReader(response.Body, maxObject+1))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(object); "sha256:"+hex.EncodeToString(sum[:]) != digest {
		return nil, errors.New("what it sends has another digest")
	}
	return object, nil
}

// Endpoints lists the replicas that are ready behind a Service, as its
// EndpointSlices have them. The reader should not cache: it is asked rarely.
func Endpoints(reader client.Reader, namespace, service string) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		var slices discoveryv1.EndpointSliceList
		if err := reader.List(ctx, &slices, client.InNamespace(namespace), client.MatchingLabels{discoveryv1.LabelServiceName: service}); err != nil {
			return nil, err
		}
		var addresses []string
		for _, s := range slices.Items {
			if len(s.Ports) == 0 || s.Ports[0].Port == nil {
				continue
			}
			port := strconv.Itoa(int(*s.Ports[0].Port))
			for _, e := range s.Endpoints {
				if e.Conditions.Ready != nil && !*e.Conditions.Ready || len(e.Addresses) == 0 {
					continue
				}
				addresses = append(addresses, net.JoinHostPort(e.Addresses[0], port))
			}
		}
		return addresses, nil
	}
}
