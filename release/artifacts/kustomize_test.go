package artifacts_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/skep-dev/skep/release/artifacts"
	"github.com/skep-dev/skep/test/harness/module"
)

// kustomizeFolder is the repository's kustomize directory.
func kustomizeFolder() fs.FS { return os.DirFS(filepath.Join(module.Root(), "deploy", "kustomize")) }

func TestTheKustomizeDirectoryNamesItsImagesByDigest(t *testing.T) {
	made, err := artifacts.Kustomize(artifacts.Options{
		Files: kustomizeFolder(), Version: version, Images: images(t, "registry.example.com/team"), Created: created,
	})
	if err != nil {
		t.Fatal(err)
	}
	folder := served(t, made)
	pulled := fetched(t, folder+"/kustomize/skep:v0.2.0")
	if got := title(t, pulled); got != "kustomize.tar.gz" {
		t.Errorf("its file is called %q", got)
	}
	got := unpacked(t, pulled)
	for _, file := range []string{"kustomization.yaml", "namespace.yaml", "crds/kustomization.yaml", "crds/crds.yaml", "skep/kustomization.yaml"} {
		want, err := fs.ReadFile(kustomizeFolder(), file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got[file]); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
	}
	var named []string
	for _, m := range regexp.MustCompile(`image: (\S+)`).FindAllStringSubmatch(got["skep/skep.yaml"], -1) {
		named = append(named, m[1])
	}
	want := []string{
		"registry.example.com/team/skep-agent@sha256:" + strings.Repeat("b", 64),
		"registry.example.com/team/skep-controller@sha256:" + strings.Repeat("a", 64),
	}
	if diff := cmp.Diff(want, named); diff != "" {
		t.Error(diff)
	}
}

func TestAKustomizeDirectoryHasTheImagesOfEveryComponent(t *testing.T) {
	all := images(t, "r.example.com")
	const both = "containers:\n- image: ghcr.io/a/skep-agent:0.1.0\n  name: agent\n- image: localhost:5000/skep-controller\n"
	for sentence, c := range map[string]struct {
		manifest   string
		images     map[string]name.Digest
		want, says string
	}{
		"every image is replaced": {both, all, "containers:\n- image: r.example.com/skep-agent@sha256:" + strings.Repeat("b", 64) +
			"\n  name: agent\n- image: r.example.com/skep-controller@sha256:" + strings.Repeat("a", 64) + "\n", ""},
		"none is, where none is given": {both, nil, both, ""},
		"one that is not given":        {both, map[string]name.Digest{"agent": all["agent"]}, "", "the image of controller is not given"},
		"one that is not there":        {"image: skep-agent:1\n", all, "", "no object has an image of controller"},
	} {
		t.Run(sentence, func(t *testing.T) {
			made, err := artifacts.Kustomize(artifacts.Options{Files: fstest.MapFS{"a.yaml": {Data: []byte(c.manifest)}}, Version: version, Images: c.images})
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("it says %v, and not %q", err, c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]string{"a.yaml": c.want}, unpacked(t, made.Image)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
