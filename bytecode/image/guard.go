package image

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
// address alone, which is looked at after the name was resolved: a name that
// resolves to another address the second time gets no further.
type guard struct {
	allowed *allowed
	// proxies are those that requests were sent to, host:port: whoever set them
	// trusts them.
	proxies sync.Map
}

// over has a transport dial by the guard.
func (g *guard) over(t *http.Transport) {
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
	if _, proxy := g.proxies.Load(address); !proxy && !g.allowed.trusted(address) {
		d.ControlContext = refusePrivate
	}
	return d.DialContext(ctx, network, address)
}

// refusePrivate is a net.Dialer's ControlContext: it sees the address that is about
// to be connected to.
func refusePrivate(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("read address %s: %w", address, err)
	}
	if !isPublic(to.Addr()) {
		return fmt.Errorf("refuse address %s: it is not public: list the registry as an allowed one", to.Addr())
	}
	return nil
}
