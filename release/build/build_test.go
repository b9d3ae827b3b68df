package build_test

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/release/build"
)

func TestALinkIsStampedForAReleaseAlone(t *testing.T) {
	stamp := &build.Stamp{Version: "v1.2.3", Revision: "abc", Time: time.Unix(0, 0)}
	at := "github.com/skep-dev/skep/cmd/internal/version."
	for sentence, c := range map[string]struct {
		link  build.Link
		flags []string
	}{
		"a release says what it is, and nothing of the machine": {build.Link{Stamp: stamp}, []string{
			"-tags", "grpcnotrace", "-trimpath", "-buildvcs=false", "-ldflags",
			"-s -w -X " + at + "release=v1.2.3 -X " + at + "revision=abc -X " + at + "committed=1970-01-01T00:00:00Z",
		}},
		"anything else says what Go knows of it": {build.Link{}, []string{"-tags", "grpcnotrace", "-ldflags", "-s -w"}},
	} {
		if diff := cmp.Diff(c.flags, c.link.Flags()); diff != "" {
			t.Errorf("%s: %s", sentence, diff)
		}
		if got := slices.Contains(c.link.Environment(), "GOAMD64=v1"); got != (c.link.Stamp != nil) {
			t.Errorf("%s: %v", sentence, c.link.Environment())
		}
	}
}

func TestAuthoritiesAreThoseOfMozilla(t *testing.T) {
	rest := build.MozillaAuthorities()
	pool, names := x509.NewCertPool(), ""
	for len(rest) > 0 {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			t.Fatalf("%d bytes are not PEM", len(rest))
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil || !c.IsCA {
			t.Fatalf("%v: %v", c, err)
		}
		pool.AddCert(c)
		names += c.Subject.String() + "\n"
	}
	if !strings.Contains(names, "ISRG Root X1") || strings.Count(names, "\n") < 80 {
		t.Errorf("authorities are\n%s", names)
	}
}
