package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/release/build"
	fixture "github.com/skep-dev/skep/test/fixture/images"
)

// pretended makes images of files that only have the binaries' names.
func pretended(t *testing.T) []made {
	t.Helper()
	dir := t.TempDir()
	for _, c := range build.Components() {
		for _, command := range c.Commands() {
			if err := os.WriteFile(filepath.Join(dir, command), []byte(command), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	all, err := imagesOf(dir, "arm64")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// content lists what is in an image: each path with its mode.
func content(t *testing.T, image v1.Image) map[string]int64 {
	t.Helper()
	rc := mutate.Extract(image)
	defer rc.Close()
	found := map[string]int64{}
	for r := tar.NewReader(rc); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = h.Mode
	}
}

func TestAnImageHoldsItsBinaryAndNoMore(t *testing.T) {
	want := map[string]map[string]int64{
		"controller": {"skep-controller": 0o755, "etc": 0o755, "etc/ssl": 0o755, "etc/ssl/certs": 0o755, build.AuthoritiesFile: 0o644},
		"agent":      {"skep-agent": 0o755, "skep-mounter": 0o755},
		// The command line.
		"": {"skep": 0o755, "etc": 0o755, "etc/ssl": 0o755, "etc/ssl/certs": 0o755, build.AuthoritiesFile: 0o644},
	}
	again := pretended(t)
	for i, m := range pretended(t) {
		if diff := cmp.Diff(want[m.Value], content(t, m)); diff != "" {
			t.Errorf("%s: %s", m.Command, diff)
		}
		config, err := m.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if got := config.Config; got.Entrypoint[0] != "/"+m.Command || got.User != m.User || config.OS != "linux" || config.Architecture != "arm64" {
			t.Errorf("%s is run as %+v", m.Value, got)
		}
		first, err := m.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if second, err := again[i].Digest(); err != nil || first != second {
			t.Errorf("%s made twice is %s and %s: %v", m.Value, first, second, err)
		}
	}
}

func TestWhatIsPushedIsWhatTheValuesName(t *testing.T) {
	folder := fixture.Real(t).Host + "/team"
	file := filepath.Join(t.TempDir(), "images.yaml")
	all := pretended(t)
	t.Chdir("../..")
	var said strings.Builder
	if err := pushed(t.Context(), &said, all, folder, file); err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]struct {
		Image        struct{ Repository, Digest string }
		NodeSelector map[string]string
	}
	if err := yaml.UnmarshalStrict(body, &values); err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		digest, err := m.Digest()
		if err != nil {
			t.Fatal(err)
		}
		named := folder + "/" + m.Command + "@" + digest.String()
		if !strings.Contains(said.String(), named+"\n") {
			t.Errorf("%s is not said to be pushed: %s", named, said.String())
		}
		if v := values[m.Value]; m.Value != "" && v.Image.Repository+"@"+v.Image.Digest != named {
			t.Errorf("%s is called %+v", named, v.Image)
		}
		if diff := cmp.Diff(map[string]string{"kubernetes.io/arch": "arm64"}, values[m.Value].NodeSelector); m.Value != "" && diff != "" {
			t.Errorf("%s is run where it cannot: %s", m.Value, diff)
		}
		ref, err := name.NewDigest(named)
		if err != nil {
			t.Fatal(err)
		}
		pulled, err := remote.Image(ref)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(content(t, m), content(t, pulled)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestWhatIsPackedHasTheChartsNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "images.tar")
	all := pretended(t)
	t.Chdir("../..")
	var said strings.Builder
	if err := packed(&said, all, file, file+".yaml"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "--values "+file+".yaml") {
		t.Errorf("said was %s", &said)
	}
	placed, err := os.ReadFile(file + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	only := "  nodeSelector:\n    kubernetes.io/arch: arm64\n"
	if diff := cmp.Diff("agent:\n"+only+"controller:\n"+only, string(placed)); diff != "" {
		t.Error(diff)
	}
	chart, err := readChart()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ofChart(all) {
		tag, err := name.NewTag("ghcr.io/skep-dev/" + m.Command + ":" + chart.version)
		if err != nil {
			t.Fatal(err)
		}
		image, err := tarball.ImageFromPath(file, &tag)
		if err != nil {
			t.Errorf("%s: %v", tag, err)
			continue
		}
		if diff := cmp.Diff(content(t, m), content(t, image)); diff != "" {
			t.Error(diff)
		}
	}
}
