package admission

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"testing"
	"time"
)

var names = []string{"skep-webhook.skep-system.svc", "127.0.0.1"}

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func mustIssue(t *testing.T, at time.Time, names []string, before []byte) map[string][]byte {
	t.Helper()
	data, err := issue(at, names, before)
	if err != nil {
		t.Fatal(err)
	}
	data[keyPaths] = joinPaths(newPath(), nil)
	return data
}

func TestWhatIsIssuedHoldsForItsNamesAndIsRenewedInTime(t *testing.T) {
	p, err := parse(mustIssue(t, start, names, nil))
	if err != nil {
		t.Fatal(err)
	}
	if !p.covers(names) || !p.covers(names[1:]) || p.covers([]string{"skep-mirror.skep-system.svc"}) {
		t.Errorf("it holds for %v and %v", p.certificate.Leaf.DNSNames, p.certificate.Leaf.IPAddresses)
	}
	leaf := p.certificate.Leaf
	if !p.issuedAt.Equal(start) || !p.renewAt.Before(leaf.NotAfter.Add(-7*24*time.Hour)) || !p.renewAt.After(start) {
		t.Errorf("issued %s, renewed %s, ends %s", p.issuedAt, p.renewAt, leaf.NotAfter)
	}
	if leaf.IsCA || len(leaf.ExtKeyUsage) != 1 || leaf.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth {
		t.Errorf("the certificate may be used for %v, authority: %v", leaf.ExtKeyUsage, leaf.IsCA)
	}
}

func TestWhatCannotBeServedIsMadeAnew(t *testing.T) {
	good, other := mustIssue(t, start, names, nil), mustIssue(t, start, names, nil)
	with := func(key string, value []byte) map[string][]byte {
		data := maps.Clone(good)
		data[key] = value
		return data
	}
	for name, data := range map[string]map[string][]byte{
		"nothing is stored":          nil,
		"the key is another's":       with(keyPrivate, other[keyPrivate]),
		"the key is garbled":         with(keyPrivate, []byte("none")),
		"the authority is another's": with(keyAuthorities, other[keyAuthorities]),
		"the authority is gone":      with(keyAuthorities, nil),
		"there is no path":           with(keyPaths, nil),
		"the path can be guessed":    with(keyPaths, []byte("validate")),
	} {
		if _, err := parse(data); err == nil {
			t.Errorf("%s, and it is taken", name)
		}
	}
}

func TestAuthoritiesOverlapUntilTheyEnd(t *testing.T) {
	count := func(bundle []byte) (n int) {
		for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
			n++
		}
		return n
	}
	first := mustIssue(t, start, names, nil)
	second := mustIssue(t, start.Add(validity-early), names, first[keyAuthorities])
	if !bytes.Contains(second[keyAuthorities], first[keyAuthorities]) || count(second[keyAuthorities]) != 2 {
		t.Errorf("%d authorities, and the first is not among them", count(second[keyAuthorities]))
	}
	if _, err := parse(second); err != nil {
		t.Errorf("beside an older authority: %v", err)
	}
	third := mustIssue(t, start.Add(validity+time.Second), names, second[keyAuthorities])
	if bytes.Contains(third[keyAuthorities], first[keyAuthorities]) || count(third[keyAuthorities]) != 2 {
		t.Error("an authority is trusted beyond its end")
	}
	many := first
	for range 5 {
		many = mustIssue(t, start, names, append(append([]byte{}, many[keyAuthorities]...), first[keyAuthorities]...))
	}
	if n := count(many[keyAuthorities]); n != maxAuthorities {
		t.Errorf("%d authorities are trusted, of at most %d", n, maxAuthorities)
	}
}

func TestTheNextCertificateIsShownWhenItIsTrusted(t *testing.T) {
	now := start
	c := &Certificates{Now: func() time.Time { return now }}
	show := func(at time.Time) pair {
		t.Helper()
		p, err := parse(mustIssue(t, at, names, nil))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	shows := func(when string, want pair) {
		t.Helper()
		got, err := c.Get(nil)
		if err != nil || !got.Leaf.Equal(want.certificate.Leaf) {
			t.Errorf("%s: another certificate is shown (%v)", when, err)
		}
	}
	if _, err := c.Get(nil); err == nil {
		t.Error("something is shown before there is anything")
	}
	first := show(now)
	c.show(first)
	shows("at first", first)
	now = now.Add(validity - early)
	second := show(now)
	c.show(second)
	if wait := second.next(now, false); !wait.Equal(now.Add(overlap)) {
		t.Errorf("the second waits until %s", wait)
	}
	shows("while the second is published", first)
	now = now.Add(overlap)
	c.show(second)
	shows("when it was", second)
	now = now.Add(validity)
	third := show(now)
	c.show(third)
	shows("after the one before has ended", third)
}
