package ui

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
)

// guard lets in the browser that opened the address which the process printed, and no other program.
//
// A cookie reaches every port of its host, so it is bound to a path that only the page knows.
type guard struct {
	// hosts are the names by which a browser on this machine reaches the port.
	hosts []string
	// token opens the page once, session is the cookie's value, and folder the path of the page and its data, with a slash on both sides.
	token, session, folder string
	// cookie is the cookie's name.
	cookie string

	opened atomic.Bool
}

// newGuard makes the secrets of one process.
func newGuard(port int) *guard {
	g := &guard{token: rand.Text(), session: rand.Text(), folder: "/" + rand.Text() + "/", cookie: fmt.Sprintf("skep-ui-%d", port)}
	for _, name := range []string{"127.0.0.1", "localhost", "[::1]"} {
		g.hosts = append(g.hosts, fmt.Sprintf("%s:%d", name, port))
	}
	return g
}

// address is what the user opens.
func (g *guard) address() string {
	return "http://" + g.hosts[0] + "/?" + url.Values{"token": {g.token}}.Encode()
}

// policy is what the page may load, and who may show it: its own files, and no other page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// protect has a handler answer requests of the page alone.
func (g *guard) protect(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cache-Control", "no-store")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if why := g.isForeign(r); why != "" {
			http.Error(w, why, http.StatusForbidden)
			return
		}
		if r.Method != http.MethodGet {
			h.Set("Allow", http.MethodGet)
			http.Error(w, "the page only reads", http.StatusMethodNotAllowed)
			return
		}
		if r.URL.Path == "/" && r.URL.Query().Has("token") {
			g.open(w, r)
			return
		}
		if c, err := r.Cookie(g.cookie); err != nil || !same(c.Value, g.session) || !strings.HasPrefix(r.URL.Path, g.folder) {
			http.Error(w, "Open the address that skep ui printed. It works once: if it was opened before, start skep ui again.", http.StatusForbidden)
			return
		}
		http.StripPrefix(strings.TrimSuffix(g.folder, "/"), page).ServeHTTP(w, r)
	})
}

// isForeign says why a request is not from the page; empty if it may be. A name that resolves to this machine is not its own (DNS
// rebinding), and another port of this machine is another site's.
func (g *guard) isForeign(r *http.Request) string {
	known := func(host string) bool {
		for _, one := range g.hosts {
			if strings.EqualFold(host, one) {
				return true
			}
		}
		return false
	}
	if !known(r.Host) {
		return "open the address that skep ui printed: this name is not its own"
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if host, isHTTP := strings.CutPrefix(origin, "http://"); !isHTTP || !strings.EqualFold(host, r.Host) {
			return "another page asks"
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return ""
	}
	return "another page asks; copy the address that skep ui printed into the address bar"
}

// open gives the browser that has the token the cookie, and leads it to the page.
func (g *guard) open(w http.ResponseWriter, r *http.Request) {
	if !same(r.URL.Query().Get("token"), g.token) || !g.opened.CompareAndSwap(false, true) {
		http.Error(w, "This address was opened before, or is another process's. It works once: start skep ui again for a new one.",
			http.StatusForbidden)
		return
	}
	//nolint:gosec // Secure: the page is on this machine's loopback interface, by http.
	http.SetCookie(w, &http.Cookie{Name: g.cookie, Value: g.session, Path: g.folder, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, g.folder, http.StatusSeeOther)
}

// same compares secrets in a time that does not depend on them.
func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
