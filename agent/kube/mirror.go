package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Mirror is where objects come from: the controller, by digest. What comes is
// hashed again by the client.
type Mirror struct {
	// URL is the mirror's, https.
	URL string
	// CAFile holds the certificates that the mirror's may be signed by, in PEM;
	// default are the system's. TokenFile holds a token of the mirror's own
	// audience. Both are read for each object.
	CAFile, TokenFile string
	// ServerName is what the mirror's certificate is to say; default is the
	// URL's host.
	ServerName string
	// MaxBytes bounds an object; default 16 MiB, which is what an inspection
	// reads.
	MaxBytes int64
}

// The bounds of what is read beside the object.
const (
	maxCABytes    = 1 << 20
	maxTokenBytes = 64 << 10
)

// errNoMirror says that the agent was given no address.
var errNoMirror = errors.New("the mirror has no https address; set --mirror")

// digests are the only ones that a path is made of.
var digests = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Fetch returns the object with the digest. Errors hold neither the token nor
// what the mirror said.
func (m Mirror) Fetch(ctx context.Context, digest string) ([]byte, error) {
	body, err := m.get(ctx, digest)
	if err != nil {
		return nil, fmt.Errorf("fetch %s from mirror: %w", digest, err)
	}
	return body, nil
}

func (m Mirror) get(ctx context.Context, digest string) ([]byte, error) {
	if !digests.MatchString(digest) {
		return nil, errors.New("no digest of an object")
	}
	// It is made anew for each object, which are few.
	line := mirrorLine{mirror: m, within: 30 * time.Second}
	defer line.close()
	response, err := line.do(ctx, http.MethodGet, "v1/objects/"+digest, nil)
	if err != nil {
		return nil, err
	}
	body, err := m.read(response)
	return body, errors.Join(err, response.Body.Close())
}

// mirrorLine asks the mirror with the node's token, which is read for each request, over one connection at a time. It is kept for as long
// as the file of certificates says the same. It is safe for concurrent use.
type mirrorLine struct {
	mirror Mirror
	// within bounds the wait for the header of an answer; zero is no bound.
	within time.Duration

	mu        sync.Mutex
	bundle    []byte
	transport *http.Transport
}

// idleFor is how long a connection is kept without a request, which is less than the mirror keeps it.
const idleFor = 30 * time.Second

// do asks. The response is to be closed. Errors hold neither the token nor the address.
func (l *mirrorLine) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	base, err := url.Parse(l.mirror.URL)
	if err != nil || base.Scheme != "https" || base.Host == "" {
		return nil, errNoMirror
	}
	token, err := readFile(l.mirror.TokenFile, maxTokenBytes)
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	transport, err := l.open()
	if err != nil {
		return nil, err
	}
	base.RawQuery = ""
	request, err := http.NewRequestWithContext(ctx, method, base.JoinPath(path).String(), body)
	if err != nil {
		return nil, scrub(err)
	}
	// An answer ends its connection: the controller would keep the buffers of one for each node of a list.
	request.Close = body != nil
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	// A token goes nowhere but to the mirror.
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	return response, scrub(err)
}

// open returns a connection whose certificates count now.
func (l *mirrorLine) open() (*http.Transport, error) {
	m := l.mirror
	var bundle []byte
	if m.CAFile != "" {
		var err error
		if bundle, err = readFile(m.CAFile, maxCABytes); err != nil {
			return nil, fmt.Errorf("read certificates: %w", err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.transport != nil && bytes.Equal(l.bundle, bundle) {
		return l.transport, nil
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: m.ServerName}
	if m.CAFile != "" {
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("read certificates: %s holds none in PEM", m.CAFile)
		}
	}
	if l.transport != nil {
		// What is on its way ends by itself.
		l.transport.CloseIdleConnections()
	}
	l.bundle = bundle
	l.transport = &http.Transport{TLSClientConfig: settings, TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: l.within,
		IdleConnTimeout: idleFor, DisableCompression: true, MaxConnsPerHost: 1}
	return l.transport, nil
}

// close closes the connection, if no request uses it.
func (l *mirrorLine) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.transport != nil {
		l.transport.CloseIdleConnections()
	}
}

// read takes the object out of the answer.
func (m Mirror) read(r *http.Response) ([]byte, error) {
	switch {
	case r.StatusCode == http.StatusOK:
	case r.StatusCode == http.StatusUnauthorized, r.StatusCode == http.StatusForbidden:
		return nil, fmt.Errorf("it rejects the node's token (%d); the token must have the mirror's audience and the agent's service account", r.StatusCode)
	case r.StatusCode == http.StatusNotFound:
		return nil, errors.New("it does not have it (404): no intent names it, or no controller has it yet")
	case r.StatusCode == http.StatusTooManyRequests, r.StatusCode >= 500:
		return nil, fmt.Errorf("it cannot answer now (%d)", r.StatusCode)
	default:
		return nil, fmt.Errorf("it answers %d, which no mirror does", r.StatusCode)
	}
	most := m.MaxBytes
	if most == 0 {
		most = 16 << 20
	}
	if r.ContentLength > most {
		return nil, tooLarge(most)
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		return nil, scrub(err)
	}
	if int64(len(body)) > most {
		return nil, tooLarge(most)
	}
	return body, nil
}

func tooLarge(most int64) error {
	return fmt.Errorf("it sends more than %d bytes, and an object has no more", most)
}

// scrub takes the address off an error; it may hold a password, and is known.
func scrub(err error) error {
	if where := new(url.Error); errors.As(err, &where) {
		return where.Err
	}
	return err
}

// fetch asks the mirror, and counts.
func (a *Agent) fetch(ctx context.Context, digest string) ([]byte, error) {
	began := time.Now()
	body, err := a.opts.Mirror.Fetch(ctx, digest)
	a.metrics.fetched(time.Since(began), err)
	return body, err
}
