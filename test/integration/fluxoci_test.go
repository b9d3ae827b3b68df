package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/test/fixture/images"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/controlplane"
	fluxcd "github.com/skep-dev/skep/test/harness/flux"
)

// pipeline is a folder of definitions, a registry, and a cluster whose Flux follows the registry.
type pipeline struct {
	client.Client
	t                      *testing.T
	plane                  *controlplane.Plane
	skep, dir, key, config string
	registry               string
}

// newPipeline runs Flux's controllers against an API server with Skep's CRDs and without its webhook.
func newPipeline(t *testing.T) *pipeline {
	t.Helper()
	if os.Getenv(gitopsEnv) == "" {
		t.Skip("SKIPPED: tests with Flux's controllers are run by make test-gitops")
	}
	fluxcd.Need(t)
	plane, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Stop() })
	p := &pipeline{t: t, plane: plane, skep: command.Build(t, "skep"), dir: t.TempDir(), registry: images.Real(t, registry.WithReferrersSupport(true)).Host}
	p.config, p.key = filepath.Join(t.TempDir(), "kubeconfig"), filepath.Join(t.TempDir(), "team")
	if p.Client, err = client.New(plane.Config, client.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fluxcd.CRDs(t.Context(), plane.Config), writeKubeconfig(plane.Config, p.config)); err != nil {
		t.Fatal(err)
	}
	fluxcd.SourceController(t, p.config)
	fluxcd.KustomizeController(t, p.config)
	p.run(0, "key", "generate", "--output-key-prefix", p.key)
	public, err := os.ReadFile(p.key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "team"}, Data: map[string][]byte{"team.pub": public}}
	if err := p.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs skep, and returns what it printed.
func (p *pipeline) run(code int, args ...string) string {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), p.skep, args...)
	cmd.Env = append(os.Environ(), "COSIGN_PASSWORD=secret", "KUBECONFIG="+p.config, "HOME="+p.t.TempDir())
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if _ = cmd.Run(); cmd.ProcessState.ExitCode() != code {
		p.t.Fatalf("skep %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), code, out.String(), said.String())
	}
	return out.String()
}

// define has the folder hold one application with a label.
func (p *pipeline) define(tier string) {
	p.t.Helper()
	body := fmt.Sprintf("apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: hello, labels: {tier: %s}}\n"+
		"spec: {bytecode: {image: \"r.example.com/hello:v1\"}, programs: [{name: hello, attach: [{interfaces: {names: [lo]}}]}]}\n", tier)
	if err := os.WriteFile(filepath.Join(p.dir, "hello.yaml"), []byte(body), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// push renders and pushes the folder, and returns the digest.
func (p *pipeline) push(repository string, flags ...string) string {
	p.t.Helper()
	reference := p.run(0, append([]string{
		"render", p.dir, "--push", "oci://" + p.registry + "/" + repository + ":main", "--source", "https://git.example.com/bpf.git", "--revision", "main@sha1:0",
	}, flags...)...)
	_, digest, _ := strings.Cut(strings.TrimSpace(reference), "@")
	return digest
}

// source has Flux follow a repository, and verify it, by a specification that is added to the usual one.
func (p *pipeline) source(repository string, spec map[string]any) *unstructured.Unstructured {
	p.t.Helper()
	o := object("source.toolkit.fluxcd.io/v1", "OCIRepository", path.Base(repository))
	o.Object["spec"] = map[string]any{
		"interval": "1h", "url": "oci://" + p.registry + "/" + repository, "insecure": true, "ref": map[string]any{"tag": "main"},
		"verify": map[string]any{"provider": "cosign", "secretRef": map[string]any{"name": "team"}},
	}
	for field, value := range spec {
		_ = unstructured.SetNestedField(o.Object, value, "spec", field)
	}
	if err := p.Create(p.t.Context(), o); err != nil {
		p.t.Fatal(err)
	}
	return o
}

// said is the status of an object of Flux's.
type said struct {
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
		Artifact   struct {
			Revision string            `json:"revision"`
			Metadata map[string]string `json:"metadata"`
		} `json:"artifact"`
	} `json:"status"`
}

// settled waits until the condition Ready of an object is known, and a source that is Ready has its
// artifact: the controller writes the conditions first.
func (p *pipeline) settled(o *unstructured.Unstructured) (of said) {
	p.t.Helper()
	err := wait.PollUntilContextTimeout(p.t.Context(), 250*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if err := p.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return false, err
		}
		of = said{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &of); err != nil {
			return false, err
		}
		c := apimeta.FindStatusCondition(of.Status.Conditions, "Ready")
		isSource := strings.HasPrefix(o.GetAPIVersion(), "source.")
		return c != nil && (c.Status == metav1.ConditionFalse || c.Status == metav1.ConditionTrue && (!isSource || of.Status.Artifact.Revision != "")), nil
	})
	if err != nil {
		p.t.Fatalf("%s is not settled: %v: %+v", o.GetName(), err, of)
	}
	return of
}

// TestFluxTakesWhatRenderPushes has a real source-controller verify and unpack what skep render pushes, a real
// kustomize-controller apply it, and skep diff find nothing to change then.
func TestFluxTakesWhatRenderPushes(t *testing.T) {
	p := newPipeline(t)
	p.define("front")
	signed := []string{"--sign", "--key", p.key + ".key"}
	for repository, flags := range map[string][]string{"tagged": signed, "bundled": append(signed, "--bundle")} {
		digest := p.push(repository, flags...)
		got := p.settled(p.source(repository, nil))
		if got.Status.Artifact.Revision != "main@"+digest || !apimeta.IsStatusConditionTrue(got.Status.Conditions, "Ready") ||
			!apimeta.IsStatusConditionTrue(got.Status.Conditions, "SourceVerified") {
			t.Errorf("%s: %+v, want revision main@%s", repository, got.Status, digest)
		}
		if m := got.Status.Artifact.Metadata; m["org.opencontainers.image.revision"] != "main@sha1:0" ||
			m["org.opencontainers.image.source"] != "https://git.example.com/bpf.git" {
			t.Errorf("%s: metadata %q", repository, m)
		}
	}
	p.push("unsigned")
	if got := p.settled(p.source("unsigned", nil)); apimeta.IsStatusConditionTrue(got.Status.Conditions, "Ready") {
		t.Errorf("unsigned: %+v", got.Status)
	}

	apply := object("kustomize.toolkit.fluxcd.io/v1", "Kustomization", "definitions")
	apply.Object["spec"] = map[string]any{
		"interval": "1h", "path": "./", "prune": true, "sourceRef": map[string]any{"kind": "OCIRepository", "name": "tagged"},
	}
	if err := p.Create(t.Context(), apply); err != nil {
		t.Fatal(err)
	}
	if got := p.settled(apply); !apimeta.IsStatusConditionTrue(got.Status.Conditions, "Ready") {
		t.Fatalf("Kustomization: %+v", got.Status)
	}
	if out := p.run(0, "diff", "--from-cluster", p.dir); !strings.HasPrefix(out, "0 added, 0 changed, 0 removed, 1 unchanged") {
		t.Errorf("diff of what Flux applied: %s", out)
	}
	p.define("back")
	if out := p.run(1, "diff", "--from-cluster", p.dir); !strings.Contains(out, "\n-    tier: front\n+    tier: back\n") {
		t.Errorf("diff: %s", out)
	}
}
