package artifacts_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/load"
	"cuelang.org/go/mod/modconfig"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/release/artifacts"
	"github.com/skep-dev/skep/schemas"
)

// project is a CUE module that has the schema as a dependency.
func project(t *testing.T, version, hook string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"cue.mod/module.cue": `module: "example.com/bpf@v0"
language: version: "v0.14.0"
deps: "skep.dev/schemas@v1": v: "` + version + `"
`,
		"counter.cue": `package bpf

import "skep.dev/schemas@v1"

counter: schemas.#ClusterBpfApplication & {
	metadata: name: "counter"
	spec: {
		bytecode: image: "registry.example.com/bpf/counter:v1"
		programs: [{name: "count", attach: [{hook: "` + hook + `", interfaces: names: ["eth0"]}]}]
	}
}
`,
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// byCUE evaluates the project as the cue command does, with the module from a registry.
func byCUE(t *testing.T, dir, folder string) (map[string]any, error) {
	t.Helper()
	// Nothing else is in the environment, so no other registry is asked.
	env := []string{"CUE_REGISTRY=skep.dev=" + folder + "+insecure,none", "CUE_CACHE_DIR=" + cache(t), "HOME=" + dir}
	registry, err := modconfig.NewRegistry(&modconfig.Config{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	instance := load.Instances([]string{"."}, &load.Config{Dir: dir, Registry: registry, Env: env})[0]
	if instance.Err != nil {
		return nil, instance.Err
	}
	value := cuecontext.New().BuildInstance(instance)
	if err := value.Validate(); err != nil {
		return nil, err
	}
	body, err := value.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var all struct{ Counter map[string]any }
	return all.Counter, json.Unmarshal(body, &all)
}

// cache is a folder for CUE, which writes its files without the right to remove them.
func cache(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		_ = filepath.WalkDir(dir, func(file string, entry os.DirEntry, _ error) error {
			if entry != nil && entry.IsDir() {
				return os.Chmod(file, 0o700)
			}
			return nil
		})
	})
	return dir
}

func TestCUEFindsTheModuleInARegistry(t *testing.T) {
	module, err := artifacts.Module(t.Context(), version)
	if err != nil {
		t.Fatal(err)
	}
	folder := served(t, module)
	dir := project(t, module.Tag, "xdp")
	theirs, err := byCUE(t, dir, folder)
	if err != nil {
		t.Fatal(err)
	}
	objects, problems, err := schemas.Render(t.Context(), schemas.Options{Root: dir})
	if err != nil || len(problems) > 0 || len(objects) != 1 {
		t.Fatalf("%d objects, %v: %v", len(objects), problems, err)
	}
	var ours map[string]any
	if err := json.Unmarshal(objects[0].JSON, &ours); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ours, theirs); diff != "" {
		t.Errorf("by what is built in, and by the module of the registry:\n%s", diff)
	}
}

func TestTheModuleOfARegistryRefusesTheSame(t *testing.T) {
	module, err := artifacts.Module(t.Context(), version)
	if err != nil {
		t.Fatal(err)
	}
	folder := served(t, module)
	dir := project(t, module.Tag, "xdpp")
	if _, err := byCUE(t, dir, folder); err == nil || !strings.Contains(err.Error(), "attach.0.hook") {
		t.Errorf("a hook that is misspelt: %v", err)
	}
	_, problems, err := schemas.Render(t.Context(), schemas.Options{Root: dir})
	if err != nil || len(problems) == 0 {
		t.Errorf("what is built in takes a hook that is misspelt: %v", err)
	}
	if _, err := byCUE(t, project(t, "v1.0.0-0.9.0", "xdp"), folder); err == nil || !strings.Contains(err.Error(), "v1.0.0-0.9.0") {
		t.Errorf("a version that nobody published: %v", err)
	}
}
