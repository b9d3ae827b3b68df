package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/release/build"
	"github.com/skep-dev/skep/release/dist"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/signing/sign"
	"github.com/skep-dev/skep/test/harness/workers"
)

// TestMain lets the test binary render CUE, as the command does.
func TestMain(m *testing.M) {
	schemas.MaybeRenderChild()
	workers.Use()
	os.Exit(m.Run())
}

func TestWhatIsReleasedBesideImages(t *testing.T) {
	made := dist.Made{
		Stamp: build.Stamp{Version: "v1.2.3-rc.1", Time: time.Unix(1_800_000_000, 0)}, Source: "..", Folder: "registry.example.com/team",
		Images: map[string]string{
			"controller": "skep-controller@sha256:" + strings.Repeat("a", 64), "agent": "skep-agent@sha256:" + strings.Repeat("b", 64),
		},
	}
	artifacts, files, err := more(t.Context(), made)
	if err != nil {
		t.Fatal(err)
	}
	tags := map[string]string{}
	for _, a := range artifacts {
		tags[a.Repository] = a.Tag
	}
	for repository, tag := range map[string]string{
		"charts/skep": "1.2.3-rc.1", "kustomize/skep": "v1.2.3-rc.1", "policies/baseline": "v1.2.3-rc.1", "policies/restricted": "v1.2.3-rc.1",
		"policies/library": "v1.2.3-rc.1",
	} {
		if tags[repository] != tag {
			t.Errorf("%s has the tag %q: %v", repository, tags[repository], tags)
		}
	}
	if len(tags) != 6 || len(files) != 1 || files[0].Name != notesFile || len(files[0].Content) == 0 {
		t.Errorf("%v, %d files", tags, len(files))
	}
	made.Images["agent"] = "skep-agent:v1.2.3"
	if _, _, err := more(t.Context(), made); err == nil || !strings.Contains(err.Error(), "name image of agent") {
		t.Errorf("an image that is not named by digest: %v", err)
	}
}

func TestAKeyIsReadWithThePasswordOfTheEnvironment(t *testing.T) {
	private, _, err := sign.GenerateKey([]byte("open sesame"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cosign.key")
	if err := os.WriteFile(file, private, 0o600); err != nil {
		t.Fatal(err)
	}
	for sentence, c := range map[string]struct {
		password string
		signs    bool
	}{
		"the password":      {"open sesame", true},
		"another password":  {"open barley", false},
		"an empty password": {"", false},
	} {
		t.Setenv(passwordVariable, c.password)
		key, err := privateKey(file)
		if (err == nil) != c.signs || (key != nil) != c.signs {
			t.Errorf("%s: %v", sentence, err)
		}
		if left, set := os.LookupEnv(passwordVariable); set {
			t.Errorf("%s: commands would be run with the password %q", sentence, left)
		}
		if err != nil && !strings.Contains(err.Error(), "$"+passwordVariable) {
			t.Errorf("%s: %v", sentence, err)
		}
		if err != nil && c.password != "" && strings.Contains(err.Error(), c.password) {
			t.Errorf("%s stands in the error: %v", sentence, err)
		}
	}
	if key, err := privateKey(""); key != nil || err != nil {
		t.Errorf("no key is %v, %v", key, err)
	}
}

func TestARunThatCannotBeIsRefusedAtOnce(t *testing.T) {
	for sentence, c := range map[string]struct {
		args  []string
		epoch string
		says  string
	}{
		"no version":              {nil, "", "write VERSION=vX.Y.Z"},
		"a version that is none":  {[]string{"-version", "1"}, "", "write it as vX.Y.Z"},
		"a version of no module":  {[]string{"-version", "v2.0.0"}, "", "give it the path of that major version first"},
		"a time that is none":     {[]string{"-version", "v1.2.3"}, "now", "is no number of seconds since 1970"},
		"a time before 1970":      {[]string{"-version", "v1.2.3"}, "-1", "is no number of seconds since 1970"},
		"a time of no archive":    {[]string{"-version", "v1.2.3"}, "8589934592", "after the year 2242"},
		"a version without flag":  {[]string{"v1.2.3"}, "", `"v1.2.3" is none; the version is given as`},
		"a key that is not there": {[]string{"-version", "v1.2.3", "-key", "missing.key"}, "", "read key"},
	} {
		t.Setenv(epochVariable, c.epoch)
		var out strings.Builder
		if err := run(&out, append(c.args, "-dir", filepath.Join(t.TempDir(), "release"))); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", sentence, err)
		}
	}
	if err := run(io.Discard, []string{"-help"}); err != nil {
		t.Errorf("help is asked for: %v", err)
	}
	if at, err := epoch("1800000000"); err != nil || !cmp.Equal(at, time.Unix(1_800_000_000, 0)) {
		t.Errorf("%v, %v", at, err)
	}
}
