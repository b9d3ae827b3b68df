package migrate

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/test/harness/controlplane"
)

// bpfman is a cluster with kinds of bpfman's, whose schema takes any field, and a kubeconfig.
func bpfman(t *testing.T) (client.Client, string) {
	t.Helper()
	plane, err := controlplane.Start(t.Context(), controlplane.Options{WithoutCRDs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Stop() })
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(plane.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "config")
	if err := plane.WriteKubeconfig(config); err != nil {
		t.Fatal(err)
	}
	return c, config
}

// define adds a kind whose objects hold any field.
func define(t *testing.T, c client.Client, group, kind string, scope apiextensionsv1.ResourceScope) {
	t.Helper()
	plural, any := strings.ToLower(kind)+"s", true
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group, Annotations: map[string]string{"api-approved.kubernetes.io": "unapproved, for a test"}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: scope, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind, ListKind: kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1alpha1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &any},
				}}},
		},
	}
	if err := c.Create(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
}

// create makes an object as soon as its kind is served.
func create(t *testing.T, c client.Client, apiVersion, kind, namespace, name string, spec map[string]any) {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		last = c.Create(ctx, o.DeepCopy())
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("create %s: %v", name, last)
	}
}

func TestObjectsOfACluster(t *testing.T) {
	c, config := bpfman(t)
	define(t, c, "bpfman.io", "BpfApplication", apiextensionsv1.NamespaceScoped)
	define(t, c, "bpfman.io", "ClusterBpfApplicationState", apiextensionsv1.ClusterScoped)
	define(t, c, "bpfd.dev", "XdpProgram", apiextensionsv1.ClusterScoped)
	image := map[string]any{"image": map[string]any{"url": "registry.example.com/bpf/app:v1", "imagePullPolicy": "Always"}}
	links := []any{map[string]any{
		"interfaceSelector": map[string]any{"interfaces": []any{"eth0"}}, "priority": int64(7),
		"networkNamespaces": map[string]any{"pods": map[string]any{}},
	}}
	team := map[string]any{"byteCode": image, "programs": []any{map[string]any{"name": "count", "type": "XDP", "xdp": map[string]any{"links": links}}}}
	create(t, c, "bpfman.io/v1alpha1", "BpfApplication", "default", "ours", team)
	create(t, c, "bpfman.io/v1alpha1", "BpfApplication", "kube-system", "theirs", team)
	create(t, c, "bpfman.io/v1alpha1", "ClusterBpfApplicationState", "", "report", map[string]any{})
	create(t, c, "bpfd.dev/v1alpha1", "XdpProgram", "", "old", map[string]any{
		"bpffunctionname": "count", "bytecode": image, "priority": int64(7), "interfaceselector": map[string]any{"interfaces": []any{"eth0"}},
		"globaldata": map[string]any{"limit": "AQ=="},
	})

	out, summary, err := run(t, "--from-cluster", "--kubeconfig="+config)
	if !errors.Is(err, exit.ErrDenied) {
		t.Errorf("error %v, want that a TODO is left", err)
	}
	for _, want := range []string{"namespace: default\n", "namespace: kube-system\n", "kind: ClusterBpfApplication\n", "limit: bytes 0x01"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if want := "applications: 3; objects left out: 0; notes: 3; TODO: 1\n"; !strings.HasSuffix(summary, want) ||
		!strings.Contains(summary, "bpfapplications.bpfman.io/kube-system/theirs:1: note ") {
		t.Errorf("summary %s, want %s", summary, want)
	}

	out, _, err = run(t, "--from-cluster", "--kubeconfig="+config, "-n", "kube-system")
	if err != nil || strings.Count(out, "---\n") != 1 || !strings.Contains(out, "name: theirs\n") {
		t.Errorf("of one namespace: %v\n%s", err, out)
	}
}

// run runs skep convert.
func run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return runWith(t.Context(), t, "", args...)
}

// runWith runs skep convert with a context and standard input.
func runWith(ctx context.Context, t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := New()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}
