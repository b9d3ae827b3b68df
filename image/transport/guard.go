package transport

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
	"time"
)

// guard dials for a transport. A host that is not named is dialled at a public
// address alone, and one that a redirect leads to at no address of this machine,
// unless this machine sent the redirect. The address is looked at after the name was
// resolved: a name that resolves to another address the second time gets no further.
type guard struct {
	allowed *Allowed
	// proxies are those that requests were sent to, host:port: whoever set them
	// trusts them.
	proxies sync.Map
}

// Guard has a transport dial where a is allowed to, and nowhere else.
func Guard(t *http.Transport, a *Allowed) {
	g := &guard{allowed: a}
	t.DialContext, t.DialTLSContext, t.Dial, t.DialTLS = g.dial, nil, nil, nil //nolint:staticcheck // none may go around it
	proxy := t.Proxy
	if proxy == nil {
		return
	}
	t.Proxy = func(r *http.Request) (*url.URL, error) {
		by, err := proxy(r)
		if by != nil {
			g.proxies.Store(proxyAddress(by), nil)
		}
		return by, err
	}
}

// proxyAddress is what a transport dials for a proxy.
func proxyAddress(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func (g *guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	switch _, proxy := g.proxies.Load(address); {
	case proxy:
	case !g.allowed.trusted(address):
		d.ControlContext = rejectPrivate
	case wasSent(ctx):
		d.ControlContext = rejectLoopback
	}
	return d.DialContext(ctx, network, address)
}

// sentKey marks the context of a request to which a host that is not on this
// machine redirected.
type sentKey struct{}

// markSent is the context of a request, with that mark where it applies.
func markSent(req *http.Request) context.Context {
	if from := sender(req); from != nil && !isLoopback(from.Hostname()) {
		return context.WithValue(req.Context(), sentKey{}, true)
	}
	return req.Context()
}

func wasSent(ctx context.Context) bool { return ctx.Value(sentKey{}) != nil }

// rejectLoopback is a net.Dialer's ControlContext. A name that resolves to this
// machine leads there as well as its address does.
func rejectLoopback(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("read address %s: %w", address, err)
	}
	if a := to.Addr().Unmap(); a.IsLoopback() || a.IsUnspecified() {
		return fmt.Errorf("address %s is not allowed: it is this machine's, and a redirect from elsewhere leads to it", a)
	}
	return nil
}

// rejectPrivate is a net.Dialer's ControlContext: it sees the address that is about
// to be connected to.
func rejectPrivate(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("read address %s: %w", address, err)
	}
	if !isPublic(to.Addr()) {
		return fmt.Errorf("address %s is not allowed: it is not public but %s: list the registry as an allowed one (--allowed-registry)",
			to.Addr(), kindOfAddress(to.Addr()))
	}
	return nil
}
