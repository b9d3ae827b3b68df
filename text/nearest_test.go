package text

import (
	"testing"
)

func TestTheNamesMostLikeOneAreSuggested(t *testing.T) {
	names := []string{"SSL_read", "SSL_read_ex", "SSL_write", "SSL_pending", "ssl_read", "main", "", "a", "malloc"}
	for sentence, c := range map[string]struct{ name, want string }{
		"a letter too many":   {"SSL_writee", "; near it are SSL_write"},
		"letters that differ": {"mallac", "; near it are malloc"},
		"another case":        {"Main", "; near it are main"},
		"a part of others":    {"SSL_rea", "; near it are SSL_read, SSL_read_ex"},
		"nothing like it":     {"tcp_connect", ""},
		"a short one":         {"b", ""},
	} {
		n := NewNearest(c.name)
		for _, name := range append(names, names...) {
			n.Add([]byte(name))
		}
		if got := n.String(); got != c.want {
			t.Errorf("%s: %q, want %q", sentence, got, c.want)
		}
	}
}
