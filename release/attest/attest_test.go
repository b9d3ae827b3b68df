package attest_test

import (
	"encoding/json"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/release/attest"
)

// sum is a checksum of go.sum, and sumHex the same in hex.
const (
	sum    = "h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
	sumHex = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

var at = time.Date(2026, 3, 4, 5, 6, 7, 0, time.FixedZone("", 3600))

// build is what Go wrote into a binary; one module replaces another.
func build() *debug.BuildInfo {
	return &debug.BuildInfo{
		GoVersion: "go1.26.8", Path: "github.com/skep-dev/skep/cmd/skep", Main: debug.Module{Path: "github.com/skep-dev/skep", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "gopkg.in/ini.v1", Version: "v1.67.0", Sum: sum},
			{Path: "example.com/old", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/new", Version: "v2.0.0+incompatible", Sum: sum}},
			{Path: "example.com/local", Version: "v0.0.0", Replace: &debug.Module{Path: "./local", Version: "(devel)"}},
		},
	}
}

func binary() attest.Binary {
	return attest.Binary{Command: "skep", Arch: "arm64", SHA256: strings.Repeat("a", 64), Build: build()}
}

func parsed(t *testing.T, content []byte, err error) cyclonedx.BOM {
	t.Helper()
	var b cyclonedx.BOM
	if err == nil {
		err = json.Unmarshal(content, &b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// parts are the package URLs of what a bill lists, or names without one, with the checksum.
func parts(b cyclonedx.BOM) map[string]string {
	all := map[string]string{}
	for _, c := range *b.Components {
		name, hash := c.PackageURL, ""
		if name == "" {
			name = c.Name
		}
		if c.Hashes != nil {
			hash = (*c.Hashes)[0].Value
		}
		all[name] = hash
	}
	return all
}

func TestABillOfMaterialsHasWhatIsLinked(t *testing.T) {
	content, err := attest.BinarySBOM(binary(), "v1.2.3", at)
	b := parsed(t, content, err)
	modules := map[string]string{
		"pkg:golang/stdlib@1.26.8":                         "",
		"pkg:golang/gopkg.in/ini.v1@v1.67.0":               sumHex,
		"pkg:golang/example.com/new@v2.0.0%2Bincompatible": sumHex,
		"pkg:golang/example.com/local@v0.0.0":              "",
	}
	if diff := cmp.Diff(modules, parts(b)); diff != "" {
		t.Error(diff)
	}
	about := b.Metadata.Component
	if about.PackageURL != "pkg:golang/github.com/skep-dev/skep@v1.2.3?goarch=arm64&goos=linux#cmd/skep" || (*about.Hashes)[0].Value != strings.Repeat("a", 64) {
		t.Errorf("it is about %+v", about)
	}
	if b.SerialNumber != "" || b.Metadata.Timestamp != "2026-03-04T04:06:07Z" || len(*(*b.Dependencies)[0].Dependencies) != len(modules) {
		t.Errorf("%+v, %+v", b.Metadata, b.Dependencies)
	}

	content, err = attest.ImageSBOM(attest.Image{Binary: binary(), Digest: strings.Repeat("b", 64), Files: []attest.Subject{{Name: "etc/roots", SHA256: "cc"}}},
		"v1.2.3", at)
	b = parsed(t, content, err)
	modules["etc/roots"], modules[about.PackageURL] = "cc", strings.Repeat("a", 64)
	if diff := cmp.Diff(modules, parts(b)); diff != "" {
		t.Error(diff)
	}
	if got := b.Metadata.Component.PackageURL; got != "pkg:oci/skep@sha256:"+strings.Repeat("b", 64)+"?arch=arm64&tag=v1.2.3" {
		t.Errorf("it is about %s", got)
	}
	if got := *b.Dependencies; len(got) != 2 || len(*got[0].Dependencies) != 2 || len(*got[1].Dependencies) != 4 {
		t.Errorf("%+v", got)
	}
}

func TestProvenanceIsAboutEverySubject(t *testing.T) {
	b := attest.Build{
		Builder: "https://example.com/ci", Source: "https://github.com/skep-dev/skep", Revision: strings.Repeat("d", 40), Version: "v1.2.3",
		Folder: "ghcr.io/skep-dev", Time: at,
		Platforms: []string{"linux/amd64"}, Flags: []string{"-trimpath"}, Environment: []string{"GOFLAGS="}, Go: "go1.26.8", Modules: attest.Modules(build()),
	}
	subjects := []attest.Subject{{Name: "skep", SHA256: strings.Repeat("a", 64)}, {Name: "ghcr.io/skep-dev/skep", SHA256: strings.Repeat("b", 64)}}
	content, err := attest.Provenance(b, subjects)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"_type":"https://in-toto.io/Statement/v1",` +
		`"subject":[{"name":"skep","digest":{"sha256":"` + strings.Repeat("a", 64) + `"}},{"name":"ghcr.io/skep-dev/skep","digest":{"sha256":"` +
		strings.Repeat("b", 64) + `"}}],` +
		`"predicateType":"https://slsa.dev/provenance/v1","predicate":{"buildDefinition":{` +
		`"buildType":"https://github.com/skep-dev/skep/blob/main/docs/release.md#provenance",` +
		`"externalParameters":{"folder":"ghcr.io/skep-dev","platforms":["linux/amd64"],"source":{"digest":{"gitCommit":"` + strings.Repeat("d", 40) +
		`"},"uri":"git+https://github.com/skep-dev/skep"},"sourceDateEpoch":1772597167,"version":"v1.2.3"},` +
		`"internalParameters":{"command":"go build","environment":["GOFLAGS="],"flags":["-trimpath"]},` +
		`"resolvedDependencies":[{"digest":{"gitCommit":"` + strings.Repeat("d", 40) + `"},"uri":"git+https://github.com/skep-dev/skep@` + strings.Repeat("d", 40) +
		`"},` +
		`{"name":"go","uri":"pkg:golang/stdlib@1.26.8"},{"uri":"pkg:golang/example.com/local@v0.0.0"},` +
		`{"digest":{"dirHash":"` + sumHex + `"},"uri":"pkg:golang/example.com/new@v2.0.0%2Bincompatible"},` +
		`{"digest":{"dirHash":"` + sumHex + `"},"uri":"pkg:golang/gopkg.in/ini.v1@v1.67.0"}]},` +
		`"runDetails":{"builder":{"id":"https://example.com/ci"}}}}`
	if diff := cmp.Diff(want, string(content)); diff != "" {
		t.Error(diff)
	}
	b.Builder = ""
	if _, err := attest.Provenance(b, subjects); err == nil {
		t.Error("nobody built it")
	}
	if _, err := attest.Statement(attest.PredicateSBOM, []byte("{}"), nil); err == nil {
		t.Error("it is about nothing")
	}
}
