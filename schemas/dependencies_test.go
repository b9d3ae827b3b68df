package schemas_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cuelabs.dev/go/oci/ociregistry"
	"cuelabs.dev/go/oci/ociregistry/ocimem"
	"cuelang.org/go/mod/modregistrytest"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/skep-dev/skep/schemas"
)

// published are modules in a registry: lib needs an older base than its user.
const published = `
-- example.com_lib_v0.1.0/cue.mod/module.cue --
module: "example.com/lib@v0"
language: version: "v0.14.0"
deps: "example.com/base@v0": v: "v0.1.0"
-- example.com_lib_v0.1.0/lib.cue --
package lib

import "example.com/base@v0"

#App: {apiVersion: "skep.dev/v1alpha1", kind: "ClusterBpfApplication", spec: {bytecode: image: base.image, programs: [{name: "f"}]}, ...}
-- example.com_base_v0.1.0/cue.mod/module.cue --
module: "example.com/base@v0"
language: version: "v0.14.0"
-- example.com_base_v0.1.0/base.cue --
package base

image: "r.example.com/x:old"
-- example.com_base_v0.2.0/cue.mod/module.cue --
module: "example.com/base@v0"
language: version: "v0.14.0"
deps: "skep.dev/schemas@v1": v: "v1.0.0"
-- example.com_base_v0.2.0/base.cue --
package base

image: "r.example.com/x:new"
-- example.com_base_v1.0.0/cue.mod/module.cue --
module: "example.com/base@v1"
language: version: "v0.14.0"
-- example.com_base_v1.0.0/base.cue --
package base
`

// registry serves the modules, and env is how cue is told of it.
func registry(t *testing.T, wrap func(ociregistry.Interface) ociregistry.Interface) (env []string) {
	t.Helper()
	fsys, err := txtar.FS(txtar.Parse([]byte(published)))
	if err != nil {
		t.Fatal(err)
	}
	store := ocimem.New()
	if err := modregistrytest.Upload(t.Context(), store, fsys); err != nil {
		t.Fatal(err)
	}
	server, err := modregistrytest.NewServer(wrap(store), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return []string{"CUE_REGISTRY=" + server.Host() + "+insecure", "CUE_CACHE_DIR=" + t.TempDir(), "HOME=" + t.TempDir()}
}

// plain is a registry as it is.
func plain(r ociregistry.Interface) ociregistry.Interface { return r }

// user is a module that needs others.
func user(t *testing.T, deps string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "cue.mod/module.cue"), "module: \"example.com/fleet@v0\"\nlanguage: version: \"v0.14.0\"\ndeps: {\n"+deps+"}\n")
	write(t, filepath.Join(dir, "a.cue"), "package a\n\nimport \"example.com/lib@v0\"\n\napp: lib.#App & {metadata: name: \"a\"}\n")
	return dir
}

const libAndBase = "\"example.com/lib@v0\": v: \"v0.1.0\"\n\"example.com/base@v0\": v: \"v0.2.0\"\n\"skep.dev/schemas@v1\": v: \"v1.0.0\"\n"

// TestAModuleWithDependenciesRendersOnceTheyAreVendored does what the problem recommends.
func TestAModuleWithDependenciesRendersOnceTheyAreVendored(t *testing.T) {
	dir := user(t, libAndBase)
	_, problems, err := schemas.Render(t.Context(), schemas.Options{Root: dir})
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0].Fix, "skep schema vendor --deps") {
		t.Fatalf("before: %v, %v; want a problem that names the command", problems, err)
	}
	modules, err := schemas.VendorDependencies(t.Context(), dir, registry(t, plain))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range modules {
		names = append(names, m.Folder+" "+m.Module)
		if !strings.HasPrefix(m.Digest, "sha256:") {
			t.Errorf("the digest of %s is %q", m.Module, m.Digest)
		}
	}
	want := []string{"cue.mod/pkg/example.com/base example.com/base@v0.2.0", "cue.mod/pkg/example.com/lib example.com/lib@v0.1.0"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	objects, problems, err := schemas.Render(t.Context(), schemas.Options{Root: dir})
	if err != nil || len(problems) > 0 || len(objects) != 1 || !strings.Contains(string(objects[0].JSON), "x:new") {
		t.Errorf("after: %s, %v, %v", objects, problems, err)
	}
}

// TestAVendoredPackageComesBeforeDependencies has one copied by hand, and a module inside the source.
func TestAVendoredPackageComesBeforeDependencies(t *testing.T) {
	for _, within := range []string{"", "sub/"} {
		top := t.TempDir()
		dir := user(t, "\"example.com/lib@v0\": {v: \"v0.1.0\", default: true}\n")
		if err := os.CopyFS(filepath.Join(top, within), os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(top, within, "cue.mod/pkg/example.com/lib/lib.cue"), "package lib\n#App: {apiVersion: \"skep.dev/v1alpha1\", "+
			"kind: \"ClusterBpfApplication\", spec: {bytecode: image: \"r.example.com/x:mine\", programs: [{name: \"f\"}]}, ...}\n")
		objects, problems, err := schemas.Render(t.Context(), schemas.Options{Root: top})
		if err != nil || len(problems) > 0 || len(objects) != 1 || !strings.Contains(string(objects[0].JSON), "x:mine") {
			t.Errorf("in %q: %s, %v, %v", within, objects, problems, err)
		}
	}
}

// forged answers another content than its digest says.
type forged struct{ ociregistry.Interface }

// GetBlob implements ociregistry.Interface.
func (f forged) GetBlob(ctx context.Context, repo string, digest ociregistry.Digest) (ociregistry.BlobReader, error) {
	r, err := f.Interface.GetBlob(ctx, repo, digest)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return ocimem.NewBytesReader(bytes.ReplaceAll(data, []byte("e"), []byte("f")), r.Descriptor()), nil
}

func TestWhatCannotBeVendoredIsLeftAsItIs(t *testing.T) {
	for why, c := range map[string]struct {
		deps, says string
		wrap       func(ociregistry.Interface) ociregistry.Interface
	}{
		"a module that is not there": {"\"example.com/lib@v0\": v: \"v0.1.0\"\n\"example.com/none@v0\": v: \"v0.1.0\"\n", "fetch example.com/none@v0.1.0", plain},
		"two major versions":         {libAndBase + "\"example.com/base@v1\": v: \"v1.0.0\"\n", "one major version", plain},
		"another content":            {libAndBase, "digest", func(r ociregistry.Interface) ociregistry.Interface { return forged{r} }},
	} {
		dir := user(t, c.deps)
		write(t, filepath.Join(dir, "cue.mod/pkg/example.com/lib/old.cue"), "package lib\n")
		if _, err := schemas.VendorDependencies(t.Context(), dir, registry(t, c.wrap)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %q", why, err, c.says)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "cue.mod/pkg/example.com/*/*")); err != nil || len(left) != 1 {
			t.Errorf("%s: %v is there, %v; want what was before", why, left, err)
		}
	}
	if _, err := schemas.VendorDependencies(t.Context(), t.TempDir(), nil); err == nil || !strings.Contains(err.Error(), "cue.mod/module.cue") {
		t.Errorf("no module: %v", err)
	}
}

func TestVendoringDependenciesWritesNothingOutside(t *testing.T) {
	dir, outside := user(t, libAndBase), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "cue.mod/pkg")); err != nil {
		t.Fatal(err)
	}
	if _, err := schemas.VendorDependencies(t.Context(), dir, registry(t, plain)); err == nil {
		t.Error("a link out of the folder was followed")
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside are %v, %v", left, err)
	}
}
