package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"
)

// bounded is a transport under which a test that goes wrong ends soon.
func bounded(change func(*Bounded)) *Bounded {
	b := &Bounded{
		Inner: &http.Transport{}, Answered: func(int) {}, Silence: 10 * time.Second, Attempts: 3, Backoff: time.Millisecond,
		ManifestBytes: 4 << 20, LayerBytes: 64 << 20, Secrets: &Secrets{},
	}
	change(b)
	return b
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(code int, headers ...string) *http.Response {
	r := &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("body"))}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

func TestRetries(t *testing.T) {
	reset := fmt.Errorf("read: %w", syscall.ECONNRESET)
	tests := map[string]struct {
		method  string
		code    int
		err     error
		headers []string
		timeout time.Duration
		want    int
	}{
		"a good answer is taken":                    {method: "GET", code: 200, want: 1},
		"what is not there is not asked for again":  {method: "GET", code: 404, want: 1},
		"an overloaded registry is asked again":     {method: "GET", code: 503, want: 3},
		"a broken registry is asked again":          {method: "HEAD", code: 500, want: 3},
		"a limit on requests is waited for":         {method: "GET", code: 429, headers: []string{"Retry-After", "0"}, want: 3},
		"but not for longer than the caller has":    {method: "GET", code: 429, headers: []string{"Retry-After", "9"}, timeout: 5 * time.Second, want: 1},
		"a date to wait for is not understood":      {method: "GET", code: 429, headers: []string{"Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT"}, want: 3},
		"what is not implemented never will be":     {method: "HEAD", code: 501, want: 1},
		"a connection that broke is made again":     {method: "GET", err: reset, want: 3},
		"an unexpected end is read again":           {method: "GET", err: io.ErrUnexpectedEOF, want: 3},
		"a refused connection is not tried again":   {method: "GET", err: syscall.ECONNREFUSED, want: 1},
		"a bad certificate does not become good":    {method: "GET", err: errors.New("x509: unknown authority"), want: 1},
		"an upload is left to who started it":       {method: "PUT", code: 503, want: 1},
		"an upload that broke is left to them, too": {method: "POST", err: reset, want: 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			asked := 0
			transport := bounded(func(o *Bounded) {
				o.Inner = transportFunc(func(*http.Request) (*http.Response, error) {
					asked++
					if test.err != nil {
						return nil, test.err
					}
					return answer(test.code, test.headers...), nil
				})
			})
			ctx := t.Context()
			if test.timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, test.timeout)
				defer cancel()
			}
			req, err := http.NewRequestWithContext(ctx, test.method, "https://registry.example.com/v2/x/manifests/y", nil)
			if err != nil {
				t.Fatalf("request: %v", err)
			}
			resp, err := transport.RoundTrip(req)
			if asked != test.want {
				t.Errorf("asked %d times, want %d", asked, test.want)
			}
			if test.err != nil {
				if !errors.Is(err, test.err) {
					t.Errorf("got %v, want %v", err, test.err)
				}
				return
			}
			if err != nil || resp.StatusCode != test.code {
				t.Fatalf("got %v, want status %d", err, test.code)
			}
			// The last answer is whole: go-containerregistry reads the reasons.
			if body, err := io.ReadAll(resp.Body); string(body) != "body" || err != nil {
				t.Errorf("body %q, %v", body, err)
			}
			if err := resp.Body.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

func TestWaitsEndWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	transport := bounded(func(o *Bounded) {
		o.Backoff = time.Hour
		o.Inner = transportFunc(func(*http.Request) (*http.Response, error) {
			cancel()
			return answer(503), nil
		})
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://registry.example.com/v2/", nil)
	if err != nil {
		t.Fatalf("request: %v", err)
	}
	if resp, err := transport.RoundTrip(req); err == nil && resp.StatusCode != 503 {
		t.Errorf("got status %d, want the last answer", resp.StatusCode)
	}
}

func TestPlainHTTP(t *testing.T) {
	tests := map[string]struct {
		target string
		want   bool
	}{
		"https anywhere":                   {"https://registry.example.com/v2/", true},
		"http on this host":                {"http://127.0.0.1:5000/v2/", true},
		"http on this host by IPv6":        {"http://[::1]:5000/v2/", true},
		"http on this host by name":        {"http://localhost:5000/v2/", true},
		"http below localhost":             {"http://registry.localhost:5000/v2/", true},
		"http on a listed host":            {"http://registry.lan:5000/v2/", true},
		"http on another port of it":       {"http://registry.lan:5001/v2/", false},
		"http on a private address":        {"http://192.168.1.10:5000/v2/", false},
		"http on a .local name":            {"http://registry.local/v2/", false},
		"http on the internet":             {"http://registry.example.com/v2/", false},
		"a name that begins like loopback": {"http://127.0.0.1.example.com/v2/", false},
		"another scheme":                   {"file:///etc/passwd", false},
	}
	transport := bounded(func(o *Bounded) { o.Insecure = []string{"registry.lan:5000"} })
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			u, err := url.Parse(test.target)
			if err != nil {
				t.Fatalf("parse: %v", err)
			}
			if err := transport.permit(u); (err == nil) != test.want {
				t.Errorf("permit %s: %v", test.target, err)
			}
		})
	}
}

func TestBodiesAreBounded(t *testing.T) {
	tests := map[string]struct {
		path   string
		length int
		want   bool
	}{
		"a manifest of just the limit": {"/v2/x/manifests/y", 100, true},
		"a manifest beyond it":         {"/v2/x/manifests/y", 101, false},
		"a blob beyond that":           {"/v2/x/blobs/y", 1000, true},
		"a blob beyond its own limit":  {"/v2/x/blobs/y", 1001, false},
		"a token beyond the limit":     {"/token", 101, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			transport := bounded(func(o *Bounded) {
				o.ManifestBytes, o.LayerBytes = 100, 1000
				o.Inner = transportFunc(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(strings.Repeat("x", test.length)))}, nil
				})
			})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://registry.example.com"+test.path, nil)
			if err != nil {
				t.Fatalf("request: %v", err)
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatalf("RoundTrip: %v", err)
			}
			data, err := io.ReadAll(resp.Body)
			if (err == nil) != test.want {
				t.Errorf("read %d of %d bytes: %v", len(data), test.length, err)
			}
			// A reader that goes on after the error learns nothing more.
			if n, again := resp.Body.Read(make([]byte, 10)); !test.want && (n != 0 || again == nil) {
				t.Errorf("reading on gave %d bytes, %v", n, again)
			}
			if err := resp.Body.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}
