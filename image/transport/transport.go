// Package transport is the one way to registries: an HTTP transport with bounds.
//
// It owns which hosts may be asked and dialled, how long and how large an answer may be,
// what is tried again, and the secrets that were shown, which no answer may repeat. It reads
// no image.
package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/skep-dev/skep/image"
)

// Bounded is the one way to registries: it rejects plain HTTP where it was not
// asked for, ends answers that stall or never end, and retries what may pass.
type Bounded struct {
	Inner         http.RoundTripper
	Answered      func(status int)
	Silence       time.Duration
	Attempts      int
	Backoff       time.Duration
	ManifestBytes int64
	LayerBytes    int64
	Insecure      []string
	Allowed       *Allowed
	Secrets       *Secrets
}

// RoundTrip implements http.RoundTripper.
func (t *Bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := t.permit(req.URL); err != nil {
		return nil, err
	}
	if _, redirects := origin(req); redirects > redirectLimit {
		return nil, fmt.Errorf("redirect to %s is not allowed: it is the %dth in a row", req.URL.Host, redirects)
	}
	if before := sender(req); before != nil && leadsInside(before, req.URL) {
		return nil, fmt.Errorf("redirect to %s is not allowed: %s is on another machine", req.URL.Host, before.Host)
	}
	t.Secrets.Note(req)
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		resp, err := t.Inner.RoundTrip(req)
		if err == nil {
			t.Secrets.discreet(req, resp)
		}
		return resp, err
	}
	resp, err := t.tried(req)
	if err == nil && forReferrers(req) {
		return t.listed(req, resp)
	}
	return resp, err
}

// tried makes one attempt after the other.
func (t *Bounded) tried(req *http.Request) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		resp, err := t.once(req)
		wait, again := t.again(req.Context(), resp, err, attempt)
		if !again {
			return resp, err
		}
		if resp != nil {
			_ = resp.Body.Close()
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-req.Context().Done():
			timer.Stop()
			return nil, req.Context().Err()
		}
	}
}

// permit rejects a host whose name tells that it is not public, unless it is allowed
// by name, and plain HTTP to any that is neither loopback nor listed.
// go-containerregistry by itself also falls back to it for private addresses
// and .local names.
func (t *Bounded) permit(u *url.URL) error {
	if !t.Allowed.host(u.Host) {
		return fmt.Errorf("host %s is not allowed: it is not public: list it as an allowed registry (--allowed-registry)", u.Host)
	}
	if u.Scheme == "https" {
		return nil
	}
	if u.Scheme != "http" {
		return fmt.Errorf("scheme %q to %s is not allowed: use https", u.Scheme, u.Host)
	}
	if isLoopback(u.Hostname()) || slices.Contains(t.Insecure, u.Host) {
		return nil
	}
	return fmt.Errorf("plain HTTP to %s is not allowed: credentials could be read and tags forged on the way: use HTTPS, or list the host as an insecure registry",
		u.Host)
}

func isLoopback(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// once makes one attempt. The answer's body keeps the watch on silence and the
// bound on length.
func (t *Bounded) once(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(markSent(req))
	watch := time.AfterFunc(t.Silence, func() { cancel(image.ErrSilent) })
	resp, err := t.Inner.RoundTrip(req.WithContext(ctx))
	if err != nil {
		t.Answered(0)
		watch.Stop()
		defer cancel(nil)
		return nil, silentOr(ctx, t.Silence, err)
	}
	t.Answered(resp.StatusCode)
	noteAnswer(ctx, resp.StatusCode)
	watch.Stop()
	resp.Body = &boundedBody{
		inner: resp.Body, ctx: ctx, cancel: cancel, watch: watch, silence: t.Silence,
		left: t.bound(req), bound: t.bound(req),
	}
	if resp.StatusCode != http.StatusOK || !forBlob(req) {
		resp.Body = counted(resp.Body, valuesOf(req))
	}
	t.Secrets.discreet(req, resp)
	if err := rejectRealm(req.URL, resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// redirectLimit is that of net/http, which go-containerregistry's own check of
// redirects replaces.
const redirectLimit = 10

// sender is the address whose answer redirected to a request; nil where none did.
func sender(req *http.Request) *url.URL {
	if req.Response == nil || req.Response.Request == nil {
		return nil
	}
	return req.Response.Request.URL
}

// leadsInside reports whether a host that is not on this machine sends to one that
// is, by its name.
func leadsInside(from, to *url.URL) bool {
	return isLoopback(to.Hostname()) && !isLoopback(from.Hostname())
}

// rejectRealm rejects a registry that is not on this machine and names a token
// service that is.
func rejectRealm(from *url.URL, resp *http.Response) error {
	if resp.StatusCode != http.StatusUnauthorized {
		return nil
	}
	for _, header := range resp.Header.Values("WWW-Authenticate") {
		for text := range strings.SplitSeq(strings.ReplaceAll(header, `\`, ""), `"`) {
			if realm, err := url.Parse(text); err == nil && realm.Host != "" && leadsInside(from, realm) {
				return fmt.Errorf("token service %s is not allowed: %s is on another machine", realm.Host, from.Host)
			}
		}
	}
	return nil
}

// origin is the request that was redirected to this one, and in how many steps.
func origin(req *http.Request) (first *http.Request, redirects int) {
	for req.Response != nil && req.Response.Request != nil {
		req = req.Response.Request
		redirects++
	}
	return req, redirects
}

// bound is the most bytes an answer may have: a layer's where a blob was asked
// for, a list's where referrers were.
func (t *Bounded) bound(req *http.Request) int64 {
	switch {
	case forBlob(req):
		return max(t.LayerBytes, t.ManifestBytes)
	case forReferrers(req):
		return max(ListBytes, t.ManifestBytes)
	}
	return t.ManifestBytes
}

// forBlob reports whether a blob was asked for, by this request or by the one that
// was redirected to it.
func forBlob(req *http.Request) bool {
	first, _ := origin(req)
	return strings.Contains(first.URL.Path, "/blobs/")
}

// valuesOf is the most values that what was asked for may hold.
func valuesOf(req *http.Request) int {
	if forReferrers(req) {
		return image.ReferrerLimit
	}
	return image.ValueLimit
}

// retryAfterLimit bounds the wait a registry may ask for.
const retryAfterLimit = 10 * time.Second

// again reports whether and after what wait to try once more: on failures of the
// network and on answers that mean "not now", as long as the context allows.
func (t *Bounded) again(ctx context.Context, resp *http.Response, err error, attempt int) (time.Duration, bool) {
	if attempt >= t.Attempts || ctx.Err() != nil {
		return 0, false
	}
	wait := t.Backoff << (attempt - 1)
	switch {
	case err != nil:
		if !isBroken(err) {
			return 0, false
		}
	case notNow(resp.StatusCode):
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s >= 0 {
			wait = min(time.Duration(s)*time.Second, retryAfterLimit)
		}
	default:
		return 0, false
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= wait {
		return 0, false
	}
	return wait, true
}

// isBroken tells a connection that broke, which another may not, from one that
// could not be made and from silence.
func isBroken(err error) bool {
	return slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed},
		func(broken error) bool { return errors.Is(err, broken) })
}

// notNow reports whether a status means that another time it may go well.
func notNow(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status >= 500 && status != http.StatusNotImplemented
}

func silentOr(ctx context.Context, silence time.Duration, err error) error {
	if errors.Is(context.Cause(ctx), image.ErrSilent) {
		return fmt.Errorf("%w for %s", image.ErrSilent, silence)
	}
	return err
}

// boundedBody ends with an error at the bound, and when nothing comes for too
// long.
type boundedBody struct {
	inner   io.ReadCloser
	ctx     context.Context
	cancel  context.CancelCauseFunc
	watch   *time.Timer
	silence time.Duration
	left    int64
	bound   int64
	once    sync.Once
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, image.TooLong(b.bound)
	}
	// One byte more than allowed tells an answer of just the allowed length
	// from a longer one.
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	b.watch.Reset(b.silence)
	n, err := b.inner.Read(p)
	b.watch.Stop()
	b.left -= int64(n)
	if b.left < 0 {
		return 0, image.TooLong(b.bound)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = silentOr(b.ctx, b.silence, err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *boundedBody) Close() error {
	b.once.Do(func() {
		b.watch.Stop()
		b.cancel(nil)
	})
	return b.inner.Close()
}
