package migrate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/convert"
)

// file writes a manifest.
func file(t *testing.T, dir, name, data string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFilesAreBoundedTogether(t *testing.T) {
	dir := t.TempDir()
	application := manifests(t, "registry.example.com/a:v1")
	large := file(t, dir, "large.yaml", strings.Repeat("#\n", convert.MaxBytes/2))
	for name, paths := range map[string][]string{
		"bytes": append([]string{application}, slices.Repeat([]string{large}, maxBytes/convert.MaxBytes+1)...),
		"files": append([]string{application}, slices.Repeat([]string{file(t, dir, "small.yaml", "")}, maxFiles)...),
	} {
		out, _, err := run(t, append(paths, "nowhere")...)
		if err == nil || !strings.Contains(err.Error(), "convert them in parts") || strings.Contains(err.Error(), "nowhere") {
			t.Errorf("%s: error %v, want that the inputs are too many, and nothing after them", name, err)
		}
		if !strings.Contains(out, "name: app-0") {
			t.Errorf("%s: what was read before is not converted", name)
		}
	}
}

func TestAFileThatCannotBeReadHidesNoOther(t *testing.T) {
	out, _, err := run(t, filepath.Join(t.TempDir(), "nowhere"), manifests(t, "registry.example.com/a:v1"))
	if err == nil || errors.Is(err, exit.ErrDenied) || !strings.Contains(err.Error(), "nowhere") || !strings.Contains(out, "name: app-0") {
		t.Errorf("error %v, want that of the file, and the other converted:\n%s", err, out)
	}
}

func TestStandardInputNamesNoLayout(t *testing.T) {
	in, err := os.ReadFile(manifests(t, "oci:counter"))
	if err != nil {
		t.Fatal(err)
	}
	if out, _, err := runWith(t.Context(), t, string(in), "-"); !errors.Is(err, exit.ErrDenied) || strings.Contains(out, "image: oci:") {
		t.Errorf("%v, want a TODO and no layout:\n%s", err, out)
	}
}

// The bounds are of all kinds together: what one took, another has not.
func TestObjectsOfAClusterAreBoundedTogether(t *testing.T) {
	resource := schema.GroupVersionResource{Group: "bpfman.io", Version: "v1alpha1", Resource: "xdpprograms"}
	var objects []runtime.Object
	for i := range 3 {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "bpfman.io/v1alpha1", "kind": "XdpProgram"}}
		o.SetName(fmt.Sprintf("p-%d", i))
		objects = append(objects, o)
	}
	kinds := map[schema.GroupVersionResource]string{resource: "XdpProgramList"}
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...).Resource(resource)
	for name, left := range map[string]total{"objects": {objects: 5, bytes: maxBytes}, "bytes": {objects: 100, bytes: 400}} {
		if found, err := every(t.Context(), api, "xdpprograms", &left); err != nil || len(found) != 3 {
			t.Errorf("%s: %v, %d objects, want 3", name, err, len(found))
		}
		if _, err := every(t.Context(), api, "xdpprograms", &left); !errors.Is(err, errTotal) || !strings.Contains(err.Error(), "with -n") {
			t.Errorf("%s: error %v, want that they are too many", name, err)
		}
	}
}
