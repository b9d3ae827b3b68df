package build_test

import (
	"crypto/x509"
	"encoding/pem"
	"runtime"
	"runtime/debug"
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
		"anything else says what Go knows of it": {build.Link{}, []string{"-tags", "grpcnotrace", "-trimpath", "-ldflags", "-s -w"}},
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

func TestABinarySaysHowItWasBuilt(t *testing.T) {
	link := build.Link{Arch: "arm64", Stamp: &build.Stamp{}}
	asked := []debug.BuildSetting{
		{Key: "-buildmode", Value: "exe"}, {Key: "-compiler", Value: "gc"}, {Key: "-tags", Value: "grpcnotrace"}, {Key: "-trimpath", Value: "true"},
		{Key: "DefaultGODEBUG", Value: "a=1"}, {Key: "CGO_ENABLED", Value: "0"}, {Key: "GOARCH", Value: "arm64"}, {Key: "GOOS", Value: "linux"},
		{Key: "GOARM64", Value: "v8.0"},
	}
	for sentence, c := range map[string]struct {
		goVersion string
		more      debug.BuildSetting
		says      string
	}{
		"as it was asked for": {runtime.Version(), asked[0], ""},
		"by another Go":       {"go1.2.3", asked[0], `it was built by "go1.2.3"`},
		"with an experiment":  {runtime.Version(), debug.BuildSetting{Key: "GOEXPERIMENT", Value: "nosimd"}, "it was built with GOEXPERIMENT=nosimd"},
		"with other tags":     {runtime.Version(), debug.BuildSetting{Key: "-tags", Value: "other"}, "it was built with -tags=other"},
	} {
		err := link.Check(&debug.BuildInfo{GoVersion: c.goVersion, Settings: append(slices.Clone(asked), c.more)})
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", sentence, err)
		}
	}
}
