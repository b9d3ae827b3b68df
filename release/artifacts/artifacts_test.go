package artifacts_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/skep-dev/skep/release/artifacts"
	"github.com/skep-dev/skep/schemas"
	fixture "github.com/skep-dev/skep/test/fixture/images"
	"github.com/skep-dev/skep/test/harness/module"
	"github.com/skep-dev/skep/test/harness/workers"
)

// TestMain lets the test binary render CUE, as every binary that loads definitions does.
func TestMain(m *testing.M) {
	schemas.MaybeRenderChild()
	workers.Use()
	os.Exit(m.Run())
}

const version = "v0.2.0"

// created is the time of what is made.
var created = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// chartFolder is the repository's chart.
func chartFolder() fs.FS { return os.DirFS(filepath.Join(module.Root(), "charts", "skep")) }

// images are those of the components at a registry; there is nothing behind the digests.
func images(t *testing.T, folder string) map[string]name.Digest {
	t.Helper()
	all := map[string]name.Digest{}
	for component, digit := range map[string]string{"controller": "a", "agent": "b"} {
		digest, err := name.NewDigest(folder + "/skep-" + component + "@sha256:" + strings.Repeat(digit, 64))
		if err != nil {
			t.Fatal(err)
		}
		all[component] = digest
	}
	return all
}

// every makes every artifact once.
func every(t *testing.T) []artifacts.Artifact {
	t.Helper()
	chart, err := artifacts.Chart(artifacts.Options{Files: chartFolder(), Version: version, Images: images(t, "registry.example.com/team"), Created: created})
	if err != nil {
		t.Fatal(err)
	}
	cue, err := artifacts.Module(t.Context(), version)
	if err != nil {
		t.Fatal(err)
	}
	all, err := artifacts.Policies(version)
	if err != nil {
		t.Fatal(err)
	}
	directory, err := artifacts.Kustomize(artifacts.Options{
		Files: kustomizeFolder(), Version: version, Images: images(t, "registry.example.com/team"), Created: created,
	})
	if err != nil {
		t.Fatal(err)
	}
	return append(all, chart, cue, directory)
}

func TestEqualInputGivesEqualDigests(t *testing.T) {
	again := every(t)
	named := map[string]string{}
	for i, a := range every(t) {
		if err := validate.Image(a.Image, validate.Fast); err != nil {
			t.Errorf("%s: %v", a.Repository, err)
		}
		first, err := a.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if second, err := again[i].Digest(); err != nil || first != second {
			t.Errorf("%s made twice is %s and %s: %v", a.Repository, first, second, err)
		}
		named[a.Repository] = a.Tag
	}
	want := map[string]string{
		"charts/skep": "0.2.0", "skep.dev/schemas": "v1.0.0-0.2.0",
		"policies/baseline": "v0.2.0", "policies/restricted": "v0.2.0", "policies/library": "v0.2.0",
		"kustomize/skep": "v0.2.0",
	}
	if diff := cmp.Diff(want, named); diff != "" {
		t.Error(diff)
	}
}

func TestAVersionThatIsNoneIsRefused(t *testing.T) {
	for _, version := range []string{"", "0.2.0", "v0.2", "v0.2.0+", "v0.2.0+build.5", "latest"} {
		if _, err := artifacts.Chart(artifacts.Options{Files: chartFolder(), Version: version}); err == nil || !strings.Contains(err.Error(), "vX.Y.Z") {
			t.Errorf("a chart of %q: %v", version, err)
		}
		if _, err := artifacts.Kustomize(artifacts.Options{Files: kustomizeFolder(), Version: version}); err == nil || !strings.Contains(err.Error(), "vX.Y.Z") {
			t.Errorf("a kustomize directory of %q: %v", version, err)
		}
		if _, err := artifacts.Module(t.Context(), version); err == nil || !strings.Contains(err.Error(), "vX.Y.Z") {
			t.Errorf("a module of %q: %v", version, err)
		}
		if _, err := artifacts.Policies(version); err == nil || !strings.Contains(err.Error(), "vX.Y.Z") {
			t.Errorf("policies of %q: %v", version, err)
		}
	}
}

// served pushes artifacts to a registry on loopback, and returns its folder as host:port/team.
func served(t *testing.T, all ...artifacts.Artifact) string {
	t.Helper()
	folder := fixture.Real(t).Host + "/team"
	for _, a := range all {
		ref, err := name.NewTag(folder + "/" + a.Repository + ":" + a.Tag)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(ref, a.Image, remote.WithContext(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// fetched is what a registry has of an artifact.
func fetched(t *testing.T, ref string) v1.Image {
	t.Helper()
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Image(parsed, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// title is the file as which oras pull writes an artifact's only layer.
func title(t *testing.T, image v1.Image) string {
	t.Helper()
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	return manifest.Layers[0].Annotations["org.opencontainers.image.title"]
}

// onlyLayer opens the layer of an artifact that has one.
func onlyLayer(t *testing.T, image v1.Image) io.ReadCloser {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers: %v", len(layers), err)
	}
	content, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// unpacked are the files of an artifact's only layer.
func unpacked(t *testing.T, image v1.Image) map[string]string {
	t.Helper()
	content := onlyLayer(t, image)
	defer content.Close()
	z, err := gzip.NewReader(content)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(body)
	}
}
