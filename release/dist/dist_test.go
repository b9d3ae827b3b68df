package dist_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/skep-dev/skep/release/build"
	"github.com/skep-dev/skep/release/dist"
)

// committed is when the commit of a checkout was made.
var committed = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// program is a small binary that says what the linker told it.
const program = `package main

import "github.com/skep-dev/skep/cmd/internal/version"

func main() { println(version.Release(), version.Revision(), version.Committed()) }
`

// versions is the package whose variables the linker sets.
const versions = `package version

var release, revision, committed string

func Release() string   { return release }
func Revision() string  { return revision }
func Committed() string { return committed }
`

// checkout makes a working tree with a commit of a module that has the commands of Skep
// and is small. Equal ones have equal commits.
func checkout(t *testing.T) string {
	t.Helper()
	files := map[string]string{
		"go.mod":                          "module github.com/skep-dev/skep\n\ngo 1.26\n",
		"cmd/internal/version/version.go": versions,
	}
	for _, c := range build.Components() {
		for _, command := range c.Commands() {
			files["cmd/"+command+"/main.go"] = program
		}
	}
	dir := t.TempDir()
	repo, err := git.PlainInit(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := repo.Worktree()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		write(t, filepath.Join(dir, name), files[name])
		if _, err := tree.Add(name); err != nil {
			t.Fatal(err)
		}
	}
	by := &object.Signature{Name: "Releaser", Email: "releaser@example.com", When: committed}
	if _, err := tree.Commit("Begin", &git.CommitOptions{Author: by, Committer: by}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// options are those of an unsigned release of a new checkout.
func options(t *testing.T) dist.Options {
	t.Helper()
	return dist.Options{
		Version: "v1.2.3-rc.1", Checkout: checkout(t), Dir: filepath.Join(t.TempDir(), "dist", "release"),
		Folder: "registry.example.com/team", Builder: "https://example.com/ci", Out: new(bytes.Buffer), Build: linked,
		Authorities: debug.Module{Path: "example.com/roots", Version: "v1.0.0", Sum: "h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="},
	}
}

// sums are the checksums of all files below a folder.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		sum := sha256.Sum256(content)
		all[name] = hex.EncodeToString(sum[:])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestTwoFoldersGiveEqualReleases builds the same commit in two folders, as make release does,
// with different settings of the one who builds, in the environment or by go env -w.
func TestTwoFoldersGiveEqualReleases(t *testing.T) {
	var all []map[string]string
	for _, set := range [][2]string{{"GOFLAGS", "-buildmode=pie"}, {"GOENV", settings(t, "GOFLAGS=-buildmode=pie\nGOAMD64=v3\n")}} {
		t.Setenv(set[0], set[1])
		o := options(t)
		o.Build = build.Binaries
		t.Chdir(o.Checkout)
		o.Checkout, o.Dir = ".", "dist/release"
		if err := dist.Make(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		all = append(all, sums(t, o.Dir))
	}
	if diff := cmp.Diff(all[0], all[1]); diff != "" || len(all[0]) == 0 {
		t.Errorf("%d files differ: %s", len(all[0]), diff)
	}
}

// settings is a file such as go env -w writes. Go finds modules and its cache as before.
func settings(t *testing.T, content string) string {
	t.Helper()
	found, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Fields(string(found))
	file := filepath.Join(t.TempDir(), "env")
	write(t, file, content+"GOMODCACHE="+known[0]+"\nGOPROXY="+known[1]+"\n")
	return file
}

// once are folders of binaries by their architecture, which TestMain removes.
var once = map[string]string{}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, dir := range once {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// linked builds once for all tests, and copies that from then on: every checkout has the
// same commit.
func linked(ctx context.Context, l build.Link) error {
	if once[l.Arch] == "" {
		dir, err := os.MkdirTemp("", "linked-")
		if err != nil {
			return err
		}
		once[l.Arch] = dir
		to := l
		to.To = dir
		if err := build.Binaries(ctx, to); err != nil {
			return err
		}
	}
	return os.CopyFS(l.To, os.DirFS(once[l.Arch]))
}

func TestTheFilesOfARelease(t *testing.T) {
	o := options(t)
	o.More = func(_ context.Context, made dist.Made) ([]dist.Artifact, []dist.File, error) {
		for _, called := range []string{"controller", "agent"} {
			if !strings.HasPrefix(made.Images[called], "skep-"+called+"@sha256:") {
				t.Errorf("images are %v", made.Images)
			}
		}
		if _, err := os.Stat(filepath.Join(made.Source, "go.mod")); err != nil {
			t.Error(err)
		}
		return []dist.Artifact{{Repository: "charts/skep", Tag: "1.2.3", Image: empty.Image}}, []dist.File{{Name: "notes.md", Content: []byte("# Notes\n")}}, nil
	}
	if err := dist.Make(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	found := sums(t, o.Dir)
	said, err := os.ReadFile(filepath.Join(o.Dir, dist.SumsFile))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(said)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if found[name] != sum {
			t.Errorf("%s is said to have %s, and has %s", name, sum, found[name])
		}
		names = append(names, name)
	}
	var want []string
	for _, arch := range []string{"amd64", "arm64"} {
		for _, c := range []string{"skep", "skep-agent", "skep-controller"} {
			one := c + "-linux-" + arch
			want = append(want, one, one+".cdx.json", one+".image.cdx.json")
		}
		want = append(want, "kubectl-skep-linux-"+arch)
		if skep := "skep-linux-" + arch; found["kubectl-"+skep] != found[skep] {
			t.Error("the plug-in is another binary")
		}
	}
	want = append(want, "images.txt", "notes.md", "provenance.json")
	slices.Sort(want)
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	images, err := os.ReadFile(filepath.Join(o.Dir, dist.ImagesFile))
	if err != nil || strings.Count(string(images), "@sha256:") != 4 || !strings.Contains(string(images), "registry.example.com/team/charts/skep:1.2.3@sha256:") {
		t.Errorf("images are %s: %v", images, err)
	}
	if said := o.Out.(*bytes.Buffer).String(); !strings.Contains(said, "NOTHING IS SIGNED") || !strings.Contains(said, string(bytes.Fields(images)[0])) {
		t.Errorf("said was %s", said)
	}
}

func TestTheLayoutsOfARelease(t *testing.T) {
	o := options(t)
	if err := dist.Make(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for _, c := range build.Components() {
		path, err := layout.FromPath(filepath.Join(o.Dir, "oci", c.Command))
		if err != nil {
			t.Fatal(err)
		}
		whole, err := path.ImageIndex()
		if err != nil {
			t.Fatal(err)
		}
		listed, err := whole.IndexManifest()
		if err != nil || len(listed.Manifests) != 1 || listed.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != o.Version {
			t.Fatalf("the layout of %s lists %+v: %v", c.Command, listed, err)
		}
		index, err := whole.ImageIndex(listed.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(index); err != nil {
			t.Errorf("%s: %v", c.Command, err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		if got := manifest.Annotations; got["org.opencontainers.image.version"] != o.Version || got["org.opencontainers.image.created"] != "2026-03-04T05:06:07Z" {
			t.Errorf("%s is annotated %v", c.Command, got)
		}
		var platforms []string
		for _, d := range manifest.Manifests {
			platforms = append(platforms, d.Platform.String())
			image, err := index.Image(d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			checkImage(t, c, image)
		}
		if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, platforms); diff != "" {
			t.Errorf("%s: %s", c.Command, diff)
		}
	}
}

func checkImage(t *testing.T, c build.Component, image v1.Image) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Created.Time != committed || config.Config.Labels["org.opencontainers.image.title"] != c.Title || config.Config.User != c.User {
		t.Errorf("%s has the config %+v", c.Command, config)
	}
	manifest, err := image.Manifest()
	if err != nil || len(manifest.Annotations["org.opencontainers.image.revision"]) != 40 {
		t.Errorf("%s is annotated %v: %v", c.Command, manifest.Annotations, err)
	}
}

func TestWhatIsSaidOfARelease(t *testing.T) {
	o := options(t)
	o.Time = time.Unix(1_800_000_000, 0)
	if err := dist.Make(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	found := sums(t, o.Dir)
	for _, name := range []string{"skep-agent-linux-arm64.cdx.json", "skep-agent-linux-arm64.image.cdx.json"} {
		content, err := os.ReadFile(filepath.Join(o.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		var bom cyclonedx.BOM
		if err := json.Unmarshal(content, &bom); err != nil {
			t.Fatal(err)
		}
		if bom.SerialNumber != "" || bom.Metadata.Timestamp != "2027-01-15T08:00:00Z" || bom.Metadata.Component.Version != o.Version {
			t.Errorf("%s begins %+v", name, bom.Metadata)
		}
		if !strings.Contains(string(content), found["skep-agent-linux-arm64"]) {
			t.Errorf("%s does not have the binary's checksum", name)
		}
	}
	content, err := os.ReadFile(filepath.Join(o.Dir, dist.ProvenanceFile))
	if err != nil {
		t.Fatal(err)
	}
	var said struct {
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ExternalParameters struct {
					Version         string
					SourceDateEpoch int64
				}
				ResolvedDependencies []struct {
					URI    string
					Digest map[string]string
				}
			}
			RunDetails struct{ Builder struct{ ID string } }
		}
	}
	if err := json.Unmarshal(content, &said); err != nil {
		t.Fatal(err)
	}
	about := map[string]bool{}
	for _, s := range said.Subject {
		about[s.Digest["sha256"]] = true
		if sum := found[s.Name]; sum != "" && sum != s.Digest["sha256"] {
			t.Errorf("%s is said to be %v", s.Name, s.Digest)
		}
	}
	// 3 binaries and the plug-in, 2 bills each of 3, for 2 architectures; the list of images; 3 indexes of 2 images.
	if len(said.Subject) != 2*(4+6)+1+9 || !about[found["skep-linux-amd64"]] {
		t.Errorf("%d subjects: %+v", len(said.Subject), said.Subject)
	}
	p := said.Predicate
	if all := p.BuildDefinition.ResolvedDependencies; !strings.HasPrefix(all[len(all)-1].URI, "pkg:golang/example.com/roots@v1.0.0") ||
		len(all[len(all)-1].Digest["dirHash"]) != 64 {
		t.Errorf("the authorities of images are from nowhere: %+v", all)
	}
	if p.BuildDefinition.ExternalParameters.Version != o.Version || p.BuildDefinition.ExternalParameters.SourceDateEpoch != 1_800_000_000 ||
		len(p.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"]) != 40 || p.RunDetails.Builder.ID != "https://example.com/ci" {
		t.Errorf("%+v", p)
	}
}

// TestNoReleaseIsBetterThanAHalfOne makes releases that fail where one is already.
func TestNoReleaseIsBetterThanAHalfOne(t *testing.T) {
	broken := errors.New("no linker")
	for sentence, c := range map[string]struct {
		with func(*dist.Options)
		says string
	}{
		"a version that is none":          {func(o *dist.Options) { o.Version = "1.2" }, "write it as vX.Y.Z"},
		"a version with build metadata":   {func(o *dist.Options) { o.Version = "v1.2.3+4" }, "write it as vX.Y.Z"},
		"a push that nobody could verify": {func(o *dist.Options) { o.Push = true }, "sign it with KEY=cosign.key"},
		"a folder of no registry":         {func(o *dist.Options) { o.Folder = "team" }, "write them as registry.example.com/team"},
		"a builder that is no URI":        {func(o *dist.Options) { o.Builder = "me" }, `read builder "me": it is no URI`},
		"a file that is not as committed": {
			func(o *dist.Options) { write(t, filepath.Join(o.Checkout, "go.mod"), "module other\n") }, "go.mod differs from its commit",
		},
		"a file that is committed and gone": {func(o *dist.Options) { _ = os.Remove(filepath.Join(o.Checkout, "go.mod")) }, "go.mod differs from its commit"},
		"a file that is in no commit": {
			func(o *dist.Options) { write(t, filepath.Join(o.Checkout, "cmd", "skep", "more.go"), "package main\n") }, "cmd/skep/more.go is not in the commit",
		},
		"a folder that has no release":   {func(o *dist.Options) { _ = os.Remove(filepath.Join(o.Dir, dist.SumsFile)) }, "it has no release; name another folder"},
		"a folder that is no checkout":   {func(o *dist.Options) { o.Checkout = t.TempDir() }, "it lies in no git repository"},
		"binaries that cannot be linked": {func(o *dist.Options) { o.Build = func(context.Context, build.Link) error { return broken } }, "no linker"},
		"a chart that cannot be made": {func(o *dist.Options) {
			o.More = func(context.Context, dist.Made) ([]dist.Artifact, []dist.File, error) { return nil, nil, broken }
		}, "no linker"},
		"an agent that is larger than 40 MB": {
			func(o *dist.Options) { o.Build = large }, "make image of skep-agent: it has 41.0 MB for linux/amd64, and a release takes no more than 40 MB",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			o := options(t)
			write(t, filepath.Join(o.Dir, "before"), "")
			write(t, filepath.Join(o.Dir, dist.SumsFile), "")
			c.with(&o)
			if err := dist.Make(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %s", err, c.says)
			}
			left, err := os.ReadDir(filepath.Dir(o.Dir))
			if err != nil || len(left) != 1 {
				t.Errorf("beside the release is left %v: %v", left, err)
			}
			if _, err := os.Stat(filepath.Join(o.Dir, "before")); err != nil {
				t.Errorf("the release before: %v", err)
			}
		})
	}
}

// large links an agent that has 41 MB with what is around it.
func large(ctx context.Context, l build.Link) error {
	if err := linked(ctx, l); err != nil {
		return err
	}
	// An empty tail: Go's build information stands before it.
	return errors.Join(os.Truncate(filepath.Join(l.To, "skep-agent"), 41_000_000-4096), os.Truncate(filepath.Join(l.To, "skep-mounter"), 0))
}
