package ui_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/ui"
)

// source says the same always, and counts what it is asked.
type source struct {
	asked atomic.Int64
	err   error
}

func (s *source) Overview(context.Context) (ui.Overview, error) {
	s.asked.Add(1)
	return ui.Overview{Place: "here"}, s.err
}

func (s *source) Node(context.Context, string) (view.NodeView, error) {
	s.asked.Add(1)
	return view.NodeView{}, s.err
}

func (s *source) Application(context.Context, v1alpha1.Identity) (view.NodeViewList, error) {
	s.asked.Add(1)
	return view.NodeViewList{}, s.err
}

// serve serves a page until the test ends.
func serve(t *testing.T, s ui.Source) *ui.Server {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	server, err := ui.Listen(ctx, 0, s)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- server.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return server
}

// browser keeps the cookies that it gets, sends them with every request, and follows no redirect.
type browser struct{ cookies []*http.Cookie }

// ask sends a request with headers, of which Host is the request's.
func ask(t *testing.T, b *browser, method, address string, headers map[string]string) (resp *http.Response, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	req.Host = headers["Host"]
	for _, c := range b.cookies {
		req.AddCookie(c)
	}
	resp, err = http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	b.cookies = append(b.cookies, resp.Cookies()...)
	defer func() { _ = resp.Body.Close() }()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(all)
}

// enter opens the address, and returns where the page is.
func enter(t *testing.T, b *browser, s *ui.Server) string {
	t.Helper()
	resp, body := ask(t, b, http.MethodGet, s.Address(), nil)
	if resp.StatusCode != http.StatusSeeOther {
		t.Fatalf("the address answers %d: %s", resp.StatusCode, body)
	}
	at, err := resp.Location()
	if err != nil {
		t.Fatal(err)
	}
	return at.String()
}

func TestTheAddressOpensOneBrowserOnce(t *testing.T) {
	s := serve(t, &source{})
	first, second := &browser{}, &browser{}
	u, err := url.Parse(s.Address())
	if err != nil {
		t.Fatal(err)
	}
	// What looks at links before a person does, and what another page leads to, do not use the address up.
	for _, request := range []struct {
		method  string
		headers map[string]string
	}{{http.MethodHead, nil}, {http.MethodGet, map[string]string{"Sec-Fetch-Site": "cross-site"}}} {
		if resp, _ := ask(t, second, request.method, s.Address(), request.headers); resp.StatusCode < 400 {
			t.Fatalf("%s with %v answers %d", request.method, request.headers, resp.StatusCode)
		}
	}
	if resp, _ := ask(t, second, http.MethodGet, "http://"+u.Host+"/?token=guessed", nil); resp.StatusCode != http.StatusForbidden {
		t.Fatalf("a guessed token answers %d", resp.StatusCode)
	}
	resp, _ := ask(t, first, http.MethodGet, s.Address(), nil)
	cookies := resp.Cookies()
	if len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteStrictMode || cookies[0].Path != resp.Header.Get("Location") {
		t.Fatalf("the cookie is %v", cookies)
	}
	page := "http://" + u.Host + cookies[0].Path
	if resp, body := ask(t, first, http.MethodGet, page, nil); resp.StatusCode != http.StatusOK || !strings.Contains(body, "<main") {
		t.Errorf("the page answers %d: %s", resp.StatusCode, body)
	}
	if resp, body := ask(t, second, http.MethodGet, s.Address(), nil); resp.StatusCode != http.StatusForbidden || !strings.Contains(body, "was opened before") {
		t.Errorf("the second use of the address answers %d: %s", resp.StatusCode, body)
	}
	if resp, _ := ask(t, second, http.MethodGet, page, nil); resp.StatusCode != http.StatusForbidden {
		t.Errorf("a browser without the cookie gets %d", resp.StatusCode)
	}
	second.cookies = []*http.Cookie{{Name: cookies[0].Name, Value: "guessed"}}
	if resp, _ := ask(t, second, http.MethodGet, page, nil); resp.StatusCode != http.StatusForbidden {
		t.Errorf("a browser with another cookie gets %d", resp.StatusCode)
	}
}

func TestOnlyThePageIsAnswered(t *testing.T) {
	s := serve(t, &source{})
	b := &browser{}
	page := enter(t, b, s)
	u, err := url.Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	port := u.Port()
	for name, test := range map[string]struct {
		method, path string
		headers      map[string]string
		want         int
	}{
		"the page":                               {http.MethodGet, "", nil, 200},
		"its script":                             {http.MethodGet, "app.js", nil, 200},
		"its data":                               {http.MethodGet, "data/overview", map[string]string{"Sec-Fetch-Site": "same-origin"}, 200},
		"by the name localhost":                  {http.MethodGet, "", map[string]string{"Host": "localhost:" + port}, 200},
		"by the name of a page that is rebound":  {http.MethodGet, "", map[string]string{"Host": "evil.example:" + port}, 403},
		"by another port's name":                 {http.MethodGet, "", map[string]string{"Host": "127.0.0.1:1"}, 403},
		"by a name without a port":               {http.MethodGet, "", map[string]string{"Host": "127.0.0.1"}, 403},
		"asked by another site":                  {http.MethodGet, "data/overview", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		"asked by another port of this machine":  {http.MethodGet, "data/overview", map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		"asked by another origin":                {http.MethodGet, "data/overview", map[string]string{"Origin": "http://127.0.0.1:1"}, 403},
		"asked by an origin that has no name":    {http.MethodGet, "data/overview", map[string]string{"Origin": "null"}, 403},
		"asked by itself":                        {http.MethodGet, "data/overview", map[string]string{"Origin": "http://127.0.0.1:" + port}, 200},
		"a write":                                {http.MethodPost, "data/overview", nil, 405},
		"a deletion":                             {http.MethodDelete, "", nil, 405},
		"a file that is not the page's":          {http.MethodGet, "server.go", nil, 404},
		"a file above the page's":                {http.MethodGet, "..%2fserver.go", nil, 404},
		"a node with a name that is none":        {http.MethodGet, "data/node?name=" + strings.Repeat("n", 300), nil, 502},
		"without the folder, which has a secret": {http.MethodGet, "/", nil, 403},
	} {
		t.Run(name, func(t *testing.T) {
			at := page + test.path
			if test.path == "/" {
				at = "http://" + u.Host + "/"
			}
			resp, body := ask(t, b, test.method, at, test.headers)
			if resp.StatusCode != test.want {
				t.Errorf("it answers %d, want %d: %.200s", resp.StatusCode, test.want, body)
			}
			for header, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "X-Frame-Options": "DENY"} {
				if got := resp.Header.Get(header); got != want {
					t.Errorf("%s is %q", header, got)
				}
			}
			if csp := resp.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'; ") || strings.Contains(csp, "unsafe") {
				t.Errorf("the policy is %q", csp)
			}
		})
	}
}

func TestWhatTheBrowserHasIsNotSentAgain(t *testing.T) {
	s := serve(t, &source{})
	b := &browser{}
	page := enter(t, b, s)
	resp, _ := ask(t, b, http.MethodGet, page+"data/overview", nil)
	tag := resp.Header.Get("ETag")
	resp, body := ask(t, b, http.MethodGet, page+"data/overview", map[string]string{"If-None-Match": tag})
	if resp.StatusCode != http.StatusNotModified || body != "" {
		t.Errorf("the same answers %d: %s", resp.StatusCode, body)
	}
	if resp, _ := ask(t, b, http.MethodGet, page+"data/overview", map[string]string{"If-None-Match": `"another"`}); resp.StatusCode != http.StatusOK {
		t.Errorf("something else answers %d", resp.StatusCode)
	}
}

func TestAnErrorIsShownAsText(t *testing.T) {
	s := serve(t, &source{err: errors.New("forbidden: <script>")})
	b := &browser{}
	page := enter(t, b, s)
	resp, body := ask(t, b, http.MethodGet, page+"data/overview", nil)
	if resp.StatusCode != http.StatusBadGateway || resp.Header.Get("Content-Type") != "application/json" ||
		!strings.Contains(body, `forbidden: \u003cscript\u003e`) {
		t.Errorf("it answers %d, %s", resp.StatusCode, body)
	}
}
