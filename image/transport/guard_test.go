package transport

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/harness/need"
)

func TestADialStopsAtAnAddressThatIsNotPublic(t *testing.T) {
	asked := httptest.NewServer(http.NotFoundHandler())
	defer asked.Close()
	need.Localhost(t)
	address := strings.TrimPrefix(asked.URL, "http://")
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		patterns []string
		proxy    string
		to       string
		reached  bool
	}{
		"it is not named":         {[]string{"*"}, "", address, false},
		"its name resolves to it": {[]string{"*"}, "", "localhost:" + port, false},
		"another port is":         {[]string{"*", "127.0.0.1:1"}, "", address, false},
		"it is named":             {[]string{"*", address}, "", address, true},
		"its name is":             {[]string{"localhost:" + port}, "", "localhost:" + port, true},
		"it is a proxy's address": {[]string{"*"}, asked.URL, address, true},
	} {
		names, err := ParseAllowed(c.patterns, nil)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{}
		if c.proxy != "" {
			by, err := url.Parse(c.proxy)
			if err != nil {
				t.Fatal(err)
			}
			transport.Proxy = http.ProxyURL(by)
		}
		Guard(transport, names)
		if c.proxy != "" {
			if _, err := transport.Proxy(httptest.NewRequest(http.MethodGet, "https://ghcr.io/v2/", nil)); err != nil {
				t.Fatal(err)
			}
		}
		conn, err := transport.DialContext(t.Context(), "tcp", c.to)
		if err == nil {
			_ = conn.Close()
		}
		if (err == nil) != c.reached {
			t.Errorf("%s: %v", name, err)
		}
		if !c.reached && !strings.Contains(err.Error(), "it is not public") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhichAddressesArePublic(t *testing.T) {
	for address, public := range map[string]bool{
		"1.1.1.1": true, "2606:4700::1111": true, "::ffff:1.1.1.1": true, "172.32.0.1": true, "100.128.0.1": true,
		"127.0.0.1": false, "10.1.2.3": false, "172.16.0.1": false, "192.168.0.1": false, "169.254.169.254": false, "0.0.0.0": false, "100.64.0.1": false,
		"224.0.0.1": false, "255.255.255.255": false, "::1": false, "::": false, "fe80::1": false, "fd00:ec2::254": false, "::ffff:127.0.0.1": false,
		"64:ff9b::a00:1": false, "2002:a00:1::": false, "ff02::1": false, "fe80::1%eth0": false, "168.63.129.16": false,
	} {
		if isPublic(netip.MustParseAddr(address)) != public {
			t.Errorf("%s: public is not %v", address, public)
		}
	}
}

// TestANameThatResolvesToThisMachine is dialled for whoever names it, and for no
// redirect from elsewhere.
func TestANameThatResolvesToThisMachine(t *testing.T) {
	inside := httptest.NewServer(http.NotFoundHandler())
	defer inside.Close()
	transport := &http.Transport{}
	Guard(transport, nil)
	for from, reached := range map[string]bool{"": true, "https://127.0.0.1/": true, "https://registry.example.com/": false} {
		req := httptest.NewRequest(http.MethodGet, "https://name.example.com/", nil)
		if from != "" {
			req.Response = &http.Response{Request: httptest.NewRequest(http.MethodGet, from, nil)}
		}
		conn, err := transport.DialContext(markSent(req), "tcp", inside.Listener.Addr().String())
		if err == nil {
			_ = conn.Close()
		}
		if (err == nil) != reached {
			t.Errorf("from %q: %v", from, err)
		}
	}
}
