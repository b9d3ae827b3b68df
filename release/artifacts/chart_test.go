package artifacts_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/release/artifacts"
	"github.com/skep-dev/skep/test/harness/helm"
)

// must runs helm, which is to succeed.
func must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := helm.Run(t.Context(), t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestHelmInstallsTheChartByDigestFromARegistry(t *testing.T) {
	chart, err := artifacts.Chart(artifacts.Options{Files: chartFolder(), Version: version, Images: images(t, "registry.example.com/team"), Created: created})
	if err != nil {
		t.Fatal(err)
	}
	digest, err := chart.Digest()
	if err != nil {
		t.Fatal(err)
	}
	folder := served(t, chart)
	for sentence, args := range map[string][]string{
		"by its version": {"oci://" + folder + "/charts/skep", "--version", "0.2.0"},
		"by its digest":  {"oci://" + folder + "/charts/skep@" + digest.String()},
	} {
		t.Run(sentence, func(t *testing.T) {
			out := must(t, append([]string{"template", "skep", "--plain-http", "--namespace", "skep-system"}, args...)...)
			named := map[string]bool{}
			for _, m := range regexp.MustCompile(`(?m)^\s*image: (.*)$`).FindAllStringSubmatch(out, -1) {
				named[m[1]] = true
			}
			want := map[string]bool{
				"registry.example.com/team/skep-controller@sha256:" + strings.Repeat("a", 64): true,
				"registry.example.com/team/skep-agent@sha256:" + strings.Repeat("b", 64):      true,
			}
			if diff := cmp.Diff(want, named); diff != "" {
				t.Error(diff)
			}
			if !strings.Contains(out, "helm.sh/chart: skep-0.2.0\n") || !strings.Contains(out, `app.kubernetes.io/version: "v0.2.0"`) {
				t.Error("its objects do not have the version")
			}
		})
	}
}

// TestTheChartIsWhatHelmPushes has Helm pack and push the same folder.
func TestTheChartIsWhatHelmPushes(t *testing.T) {
	ours, err := artifacts.Chart(artifacts.Options{Files: chartFolder(), Version: version, Images: images(t, "registry.example.com/team"), Created: created})
	if err != nil {
		t.Fatal(err)
	}
	folder, dir := served(t), t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "skep"), chartFolder()); err != nil {
		t.Fatal(err)
	}
	// The values are ours, since Helm fills none in.
	values := unpacked(t, ours.Image)["skep/values.yaml"]
	if err := os.WriteFile(filepath.Join(dir, "skep", "values.yaml"), []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "package", filepath.Join(dir, "skep"), "--version", "0.2.0", "--app-version", "v0.2.0", "--destination", dir)
	must(t, "push", filepath.Join(dir, "skep-0.2.0.tgz"), "oci://"+folder+"/charts", "--plain-http")
	theirs := fetched(t, folder+"/charts/skep:0.2.0")
	if diff := cmp.Diff(unpacked(t, theirs), unpacked(t, ours.Image)); diff != "" {
		t.Errorf("files (-helm +ours):\n%s", diff)
	}
	if diff := cmp.Diff(shape(t, theirs), shape(t, ours.Image)); diff != "" {
		t.Errorf("manifest (-helm +ours):\n%s", diff)
	}
}

// shape is all that does not follow from when something was packed, and how well.
func shape(t *testing.T, image v1.Image) map[string]any {
	t.Helper()
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	annotations := maps.Clone(manifest.Annotations)
	if _, err := time.Parse(time.RFC3339, annotations["org.opencontainers.image.created"]); err != nil {
		t.Error(err)
	}
	delete(annotations, "org.opencontainers.image.created")
	return map[string]any{
		"schema": manifest.SchemaVersion, "config": string(config), "config type": manifest.Config.MediaType,
		"layer type": manifest.Layers[0].MediaType, "annotations": annotations,
	}
}

func TestTheChartsValuesKeepTheirComments(t *testing.T) {
	const values = "# Of all.\nimagePullSecrets: []\n\ncontroller:\n  image:\n    repository: ghcr.io/a/controller # here\n    # sha256:…\n    digest: " +
		"\"\"\n  replicas: 2\n" +
		"agent:\n  image: {repository: ghcr.io/a/agent}\n"
	const block = "agent:\n  image:\n    digest: 'sha256:old'\n    repository: ghcr.io/a/agent\n"
	files := func(values string) fstest.MapFS {
		return fstest.MapFS{
			".helmignore": {Data: []byte("# Names alone.\n*.swp\n\n.git\n")}, "Chart.yaml": {Data: []byte("apiVersion: v2\nname: skep\nversion: 0.1.0\n")},
			"values.yaml": {Data: []byte(values)}, "templates/.a.yaml.swp": {Data: []byte("x")}, ".git/config": {Data: []byte("x")},
		}
	}
	controller, agent := images(t, "r.example.com")["controller"], images(t, "r.example.com")["agent"]
	const a, b = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
		"sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	for sentence, c := range map[string]struct {
		values     string
		images     map[string]name.Digest
		want, says string
	}{
		"everything but the images stays": {
			strings.Split(values, "agent:")[0] + block, map[string]name.Digest{"controller": controller, "agent": agent},
			"# Of all.\nimagePullSecrets: []\n\ncontroller:\n  image:\n    repository: r.example.com/skep-controller # here\n    # sha256:…\n    digest: " + a +
				"\n  replicas: 2\n" +
				"agent:\n  image:\n    digest: " + b + "\n    repository: r.example.com/skep-agent\n", "",
		},
		"without images all of it does": {values, nil, values, ""},
		"a component without an image":  {values, map[string]name.Digest{"agent": agent}, "", "controller.image is not given: give the image of every component"},
		"a component that is not there": {block, map[string]name.Digest{"controller": controller, "agent": agent}, "", "the values have no image of controller"},
		"an image that is in one line":  {values, map[string]name.Digest{"controller": controller, "agent": agent}, "", "set agent.image."},
		"an image that has no digest": {
			"agent:\n  image:\n    repository: a\n", map[string]name.Digest{"agent": agent}, "", "set agent.image.digest: it is no value in one line",
		},
		"a repository in several lines": {
			"agent:\n  image:\n    digest: \"\"\n    repository: |\n      a\n", map[string]name.Digest{"agent": agent}, "",
			"set agent.image.repository: it is no value in one line",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			chart, err := artifacts.Chart(artifacts.Options{Files: files(c.values), Version: version, Images: c.images})
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("it says %v, and not %q", err, c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := unpacked(t, chart.Image)
			if diff := cmp.Diff(c.want, got["skep/values.yaml"]); diff != "" {
				t.Error(diff)
			}
			if len(got) != 3 {
				t.Errorf("what is ignored is in it: %v", got)
			}
			manifest, err := chart.Manifest()
			if err != nil {
				t.Fatal(err)
			}
			if _, is := manifest.Annotations["org.opencontainers.image.created"]; is {
				t.Error("it says a time that nobody gave")
			}
		})
	}
}

func TestTheChartsConfigIsItsMetadata(t *testing.T) {
	chart, err := artifacts.Chart(artifacts.Options{Files: chartFolder(), Version: "v1.2.3-rc.1"})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := chart.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	var config, packed map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(unpacked(t, chart.Image)["skep/Chart.yaml"]), &packed); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(packed, config); diff != "" {
		t.Error(diff)
	}
	if config["version"] != "1.2.3-rc.1" || config["appVersion"] != "v1.2.3-rc.1" || chart.Tag != "1.2.3-rc.1" {
		t.Errorf("it is %v, tagged %s", config, chart.Tag)
	}
}

func TestAPatternThatWouldBeReadOtherwiseIsRefused(t *testing.T) {
	for _, pattern := range []string{"docs/*.md", "!values.yaml"} {
		files := fstest.MapFS{".helmignore": {Data: []byte(pattern + "\n")}}
		if _, err := artifacts.Chart(artifacts.Options{Files: files, Version: version}); err == nil ||
			!strings.Contains(err.Error(), "more than the pattern of a name") {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}
