package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// root is the module's folder.
const root = "../.."

func TestTheDirectoryIsWhatTheChartComesTo(t *testing.T) {
	rendered, err := render(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	files, err := divide(rendered)
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]string{}, map[string]string{}
	for name, content := range files {
		want[name] = string(content)
	}
	written := os.DirFS(filepath.Join(root, "deploy", "kustomize"))
	err = fs.WalkDir(written, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(written, name)
		got[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("run make generate (-chart +deploy/kustomize):\n%s", diff)
	}
}

func TestWhatHelmSaysIsTakenOut(t *testing.T) {
	files, err := divide([]byte(`
kind: Deployment
metadata:
  name: a
  labels: {helm.sh/chart: skep-1, app.kubernetes.io/name: skep}
  annotations: {helm.sh/resource-policy: keep}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: skep}}
  template:
    metadata:
      labels: {app.kubernetes.io/managed-by: Helm, app.kubernetes.io/version: "1", app.kubernetes.io/name: skep}
---
# Nothing.
---
kind: CustomResourceDefinition
metadata: {name: b}
`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"crds/crds.yaml": generated + "---\nkind: CustomResourceDefinition\nmetadata:\n  name: b\n",
		"skep/skep.yaml": generated + `---
kind: Deployment
metadata:
  labels:
    app.kubernetes.io/name: skep
  name: a
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: skep
  template:
    metadata:
      labels:
        app.kubernetes.io/name: skep
`,
	} {
		if diff := cmp.Diff(want, string(files[name])); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
