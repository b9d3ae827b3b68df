package chart

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/skep-dev/skep/test/harness/module"
)

// directory is that of kubectl apply -k.
func directory() string { return filepath.Join(module.Root(), "deploy", "kustomize") }

// kubectl runs kubectl as an admin, and returns what it wrote.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "admin")
	if err := plane.WriteKubeconfig(config); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), plane.Kubectl, append(args, "--kubeconfig", config)...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, complaint.Bytes())
	}
	return string(out)
}

// ordered are objects by kind, namespace and name, without what only Helm reads.
func ordered(objects []*unstructured.Unstructured) []map[string]any {
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(strings.Compare(a.GetKind(), b.GetKind()), strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	var all []map[string]any
	for _, o := range objects {
		for _, at := range [][]string{{"metadata"}, {"spec", "template", "metadata"}} {
			for _, name := range []string{"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"} {
				unstructured.RemoveNestedField(o.Object, slices.Concat(at, []string{"labels", name})...)
			}
		}
		unstructured.RemoveNestedField(o.Object, "metadata", "annotations", "helm.sh/resource-policy")
		all = append(all, o.Object)
	}
	return all
}

func TestTheKustomizeDirectoryIsTheChartByItsDefaults(t *testing.T) {
	var built []*unstructured.Unstructured
	for r := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(kubectl(t, "kustomize", directory())))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		built = append(built, decoded(t, document))
	}
	namespaces := 0
	built = slices.DeleteFunc(built, func(o *unstructured.Unstructured) bool {
		if o.GetKind() != "Namespace" {
			return false
		}
		namespaces++
		return o.GetName() == namespace && o.GetLabels()["pod-security.kubernetes.io/enforce"] == "privileged"
	})
	if namespaces != 1 {
		t.Errorf("there are %d namespaces", namespaces)
	}
	if diff := gocmp.Diff(ordered(setting{older: true}.objects(t)), ordered(built)); diff != "" {
		t.Errorf("make generate writes it anew (-chart +kustomize):\n%s", diff)
	}
}

func TestTheAPIServerTakesTheKustomizeDirectory(t *testing.T) {
	// Nothing is stored, so the other tests do not see it.
	out := kubectl(t, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-k", directory())
	for _, want := range []string{
		"namespace/skep-system", "customresourcedefinition.apiextensions.k8s.io/bpfapplications.skep.dev", "deployment.apps/skep-controller",
		"daemonset.apps/skep-agent",
	} {
		if !strings.Contains(out, want+" serverside-applied (server dry run)") {
			t.Errorf("%s is not applied:\n%s", want, out)
		}
	}
}
